"""What pickle sends by name although it is no function or class, sent by value.

cloudpickle does that for functions and classes only: a function with a cache, or a ``NewType``,
that was typed into a notebook would be looked up in a worker that has never heard of it.

Runs on both sides, beside cloudpickle, which imports the same modules.
"""

from __future__ import annotations

import copyreg
import functools
import sys
from types import FunctionType
from typing import NewType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

CachedFunction: Any = type(functools.cache(len))
UNKNOWN_TO_CLOUDPICKLE = (CachedFunction, NewType)
SENT_BY_NAME = (type, FunctionType, *UNKNOWN_TO_CLOUDPICKLE)


def reduce_by_value(obj: Any) -> tuple[Any, ...]:
    """How to make again what cloudpickle does not know; a cache starts empty."""
    if isinstance(obj, CachedFunction):
        return _cache_again, (obj.__wrapped__, obj.cache_parameters())
    return copyreg.__newobj__, (NewType,), obj.__dict__  # type: ignore[attr-defined]


def reduce_cached_property(prop: functools.cached_property[Any]) -> tuple[Any, ...]:
    """Without the lock that it has before Python 3.12."""
    return _cached_property, (prop.func, prop.attrname)


def holds(module: ModuleType | None, qualname: str, obj: object) -> bool:
    """True if looking up ``qualname`` in the module gives this very object."""
    found: object = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found is obj


def is_found_by_name(obj: Any) -> bool:
    """Looking up its name gives this very object."""
    module = sys.modules.get(str(getattr(obj, "__module__", None)))
    return holds(module, getattr(obj, "__qualname__", ""), obj)


def _cache_again(func: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(func)


def _cached_property(func: Callable[..., Any], name: str | None) -> Any:
    prop = functools.cached_property(func)
    prop.attrname = name
    return prop
