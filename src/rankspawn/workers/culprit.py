"""Which part of an object cannot be pickled: ``args[0].trainer.lock``.

Only used after pickling failed, so it may be slow: it tries the parts of the object one by
one, and goes down into the first that fails, until no part of it fails by itself.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import (
    AsyncGeneratorType,
    CoroutineType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
)
from typing import Any

from rankspawn.workers.pickling import PROTOCOL, Rules, dump

# Deeper nesting than this is reported at this depth; the path would be unreadable anyway.
_DEEPEST = 30
# __dict__, __weakref__ and slots.
_MADE_WITH_THE_CLASS = (GetSetDescriptorType, MemberDescriptorType)


def find_culprit(obj: Any, name: str, rules: Rules) -> tuple[str, Any, BaseException] | None:
    """The path, value and error of the innermost part that fails; None if all is well."""
    error = _failure(obj, rules)
    if error is None:
        return None
    seen = {id(obj)}
    for _ in range(_DEEPEST):
        for step, part in _parts(obj):
            if id(part) in seen:
                continue
            seen.add(id(part))
            part_error = _failure(part, rules)
            if part_error is not None:
                name, obj, error = name + step, part, part_error
                break
        else:
            break
    return name, obj, error


def say_what_to_return(result: Any) -> str:
    """What a function can do that calls another one and returns what only that could run."""
    if type(result) is CoroutineType:
        return "; func returned it before it was run: give the async def itself, or asyncio.run it"
    if type(result) in (GeneratorType, AsyncGeneratorType):
        return "; what it yields reaches nobody: return a list of that"
    return ""


def _failure(obj: Any, rules: Rules) -> BaseException | None:
    try:
        dump(obj, io.BytesIO(), rules)
    except Exception as error:
        return error
    return None


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """The steps from an object to what pickling it would pickle as well."""
    if isinstance(obj, dict):
        yield from ((_key_step(key), value) for key, value in obj.items())
        yield from ((f" key {key!r}", key) for key in obj)
    elif isinstance(obj, list | tuple | set | frozenset | deque):
        yield from ((f"[{index}]", value) for index, value in enumerate(obj))
    if isinstance(obj, MethodType):
        yield ".__self__", obj.__self__
    elif isinstance(obj, partial):
        yield ".func", obj.func
        yield from ((f".args[{index}]", value) for index, value in enumerate(obj.args))
        yield from ((f".keywords{_key_step(key)}", value) for key, value in obj.keywords.items())
    elif isinstance(obj, FunctionType):
        yield from _function_parts(obj)
    elif isinstance(obj, type):
        yield from _class_parts(obj)
    elif not _is_opaque(obj):
        yield from _state_parts(obj)


def _is_opaque(obj: Any) -> bool:
    """It has no state beside its items, or none that means anything to users."""
    is_plain = type(obj) in (dict, list, tuple, set, frozenset)
    return is_plain or type(obj).__module__.startswith("multiprocessing")


def _key_step(key: Any) -> str:
    """With the quotes that most programs are written with."""
    plain = isinstance(key, str) and key.isprintable() and '"' not in key and "\\" not in key
    return f'["{key}"]' if plain else f"[{key!r}]"


def _function_parts(func: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function that goes by value takes along."""
    for variable, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
        try:
            yield f" (its variable {variable!r})", cell.cell_contents
        except ValueError:  # an empty cell: not assigned yet
            continue
    for name in func.__code__.co_names:
        if name in func.__globals__:
            yield f" (its global {name!r})", func.__globals__[name]
    yield from (
        (f" (its default {index})", value) for index, value in enumerate(func.__defaults__ or ())
    )


def _class_parts(kind: type) -> Iterator[tuple[str, Any]]:
    """What a class that goes by value takes along; methods last, for they may refer to it."""
    attributes = [
        (f".{name}", value)
        for name, value in vars(kind).items()
        if name != "_abc_impl" and not isinstance(value, _MADE_WITH_THE_CLASS)
    ]
    yield from sorted(attributes, key=lambda part: isinstance(part[1], FunctionType))
    yield from ((f" (its base {base.__name__})", base) for base in kind.__bases__)


def _state_parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """What the object's own way of being pickled takes along."""
    try:
        reduced = obj.__reduce_ex__(PROTOCOL)
    except Exception:
        return
    if not isinstance(reduced, tuple):
        return
    _, arguments, state, *_ = (*reduced, None)
    parts = state if isinstance(state, tuple) else (state,)
    for part in parts:  # instance dictionary, and slots where there are any
        if isinstance(part, dict):
            yield from ((f".{name}", value) for name, value in part.items())
        elif part is not None:
            yield " (its state)", part
    for index, value in enumerate(arguments):
        yield ".__class__" if value is type(obj) else f" (its argument {index})", value
