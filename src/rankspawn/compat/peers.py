"""The projects whose names are in here, as far as they are there: their names, and their classes.

None of them is imported unless a program asks for a name that only it has.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeVar

    _T = TypeVar("_T")

# What was made of two classes, by both.
_made: dict[tuple[type, type], type] = {}


def forward(name: str, *, module: str, to: str) -> Any:
    """What the other project's module has under a name that ours lacks.

    Args:
        name: What was asked for.
        module: Our module.
        to: Theirs; imported if need be.

    Raises:
        AttributeError: It has none, or it is not installed.
    """
    # Python, debuggers and notebooks ask modules for private names, which is no reason to import
    # a framework.
    if name.startswith("_") and (name.startswith("__") or to not in sys.modules):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    from importlib import import_module

    project = to.partition(".")[0]
    try:
        theirs = import_module(to)
    except ModuleNotFoundError as error:
        if not f"{to}.".startswith(f"{error.name}."):
            raise  # it is there, and lacks something itself
        raise AttributeError(
            f"module {module!r} has no attribute {name!r} of its own, and would take {to}'s, but "
            f"{project} is not installed"
        ) from None
    try:
        return getattr(theirs, name)
    except AttributeError:
        raise AttributeError(f"module {module!r} has no attribute {name!r}, nor has {to}") from None


def also(
    ours: type[_T], module: str, name: str, methods: Mapping[str, object] | None = None
) -> type[_T]:
    """Our class, or one that is theirs as well if their module is loaded.

    A real subclass: ``except`` looks at nothing but the bases, whatever a class is registered as.

    Args:
        ours: Our class.
        module: Where theirs is.
        name: Its name there.
        methods: What the class of both has besides.
    """
    theirs = getattr(sys.modules.get(module), name, None)
    if not isinstance(theirs, type):
        return ours
    if (ours, theirs) not in _made:
        about = {key: getattr(ours, key) for key in ("__module__", "__qualname__", "__doc__")}
        try:
            _made[ours, theirs] = type(ours.__name__, (ours, theirs), {**about, **(methods or {})})
        except TypeError:  # theirs has become something that no class can be beside
            return ours
    return _made[ours, theirs]
