"""What ``spawn`` is asked to run: whether every rank can call it, and how.

A mistake that would make every rank fail in the same way is an error here, before any start.
"""

from __future__ import annotations

from functools import partial
from types import FunctionType, MethodType

from rankspawn.option_values import shortly

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Sequence
    from types import CodeType
    from typing import Any

    from rankspawn.options import SpawnOptions

# What a function calls its rank that other launchers pass to it.
_RANKS = ("rank", "local_rank")
# What the compiler says of a function; inspect, which has names for it, takes 4 ms to import.
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200
# Partials of methods of objects: more levels than anybody has.
_DEEPEST = 8


def name_of(func: Callable[..., Any]) -> str:
    """What people call a function."""
    inner = func.func if isinstance(func, partial) else func
    name = getattr(inner, "__qualname__", None)
    return name if isinstance(name, str) else type(inner).__name__


def check_callable(func: Any) -> None:
    """Refuse what nobody could call."""
    if not callable(func):
        raise TypeError(f"func must be callable, not {type(func).__name__}: {shortly(func)}")


def check_func(
    func: Callable[..., Any], args: Sequence[Any], options: SpawnOptions
) -> Callable[..., Any]:
    """What a rank calls in place of ``func``: itself, or what runs its coroutine.

    Args:
        func: What the user gave.
        args: Its positional arguments.
        options: These may have more of them.

    Raises:
        TypeError: It is a generator function, or wants a rank that nobody gives to it.
    """
    name = name_of(func)
    code = _code_of(func)
    flags = 0 if code is None else code.co_flags
    if flags & (_GENERATOR | _ASYNC_GENERATOR):
        raise TypeError(
            f"func is a generator function ({name}): calling it runs nothing of it, and what it "
            "yields reaches nobody. Have it return a list; what should be seen while it runs goes "
            "through rankspawn.report() or a multiprocessing queue among args"
        )
    if code is not None and not {*_RANKS}.isdisjoint(code.co_varnames):
        _check_rank(func, name, args, options)
    if flags & _COROUTINE:
        from rankspawn.workers.coroutine import InEventLoop

        return InEventLoop(func)
    return func


def _code_of(func: Any) -> CodeType | None:
    """The code that a call runs first, below partials and methods; None if it is not Python's."""
    for _ in range(_DEEPEST):
        # By type: an object may have any attribute, and be anybody's code.
        if type(func) is FunctionType:
            return func.__code__
        if type(func) is MethodType:
            func = func.__func__
        elif type(func) is partial:
            func = func.func
        else:
            func = getattr(type(func), "__call__", None)  # noqa: B004 - its code, not whether
    return None


def _check_rank(
    func: Callable[..., Any], name: str, args: Sequence[Any], options: SpawnOptions
) -> None:
    """Refuse a call that lacks just what torch's ``spawn`` would have added to it."""
    import inspect  # few functions have such a parameter

    try:
        signature = inspect.signature(func)
        wanted = next((each for each in _RANKS if _is_required(signature, each)), None)
    except Exception:  # a builtin without one, or anybody's code
        return
    if wanted is None:
        return
    own = options.rank_args[0] if options.rank_args else ()
    named = options.rank_kwargs[0] if options.rank_kwargs else {}
    kwargs = {**options.kwargs, **named}
    try:
        signature.bind(*args, *own, **kwargs)
    except TypeError:
        if not _is_one_short(signature, (*args, *own), kwargs):
            return  # something else is wrong, and Python's own error says what
        raise TypeError(
            f"func ({name}) has a parameter {wanted!r}, and nothing is given for it: every rank "
            "calls func(*args), without its rank. Leave the parameter out and ask "
            "rankspawn.get_rank() in the function; or give one row per rank, "
            f"rank_kwargs=[{{{wanted!r}: 0}}, {{{wanted!r}: 1}}, ...]; or use "
            "rankspawn.compat.torch.spawn, which passes the rank first"
        ) from None


def _is_required(signature: inspect.Signature, name: str) -> bool:
    parameter = signature.parameters.get(name)
    if parameter is None or parameter.default is not parameter.empty:
        return False
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _is_one_short(
    signature: inspect.Signature, args: Sequence[Any], kwargs: dict[str, Any]
) -> bool:
    """Whether one more argument, before the others or by name, would make the call a right one."""
    attempts = [((0, *args), kwargs), *((args, {**kwargs, name: 0}) for name in _RANKS)]
    for positional, named in attempts:
        try:
            signature.bind(*positional, **named)
        except TypeError:
            continue
        return True
    return False
