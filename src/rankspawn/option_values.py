"""Readers of single option values: each takes what was given and returns its checked form.

Every error names the option, shows the value and says what is allowed. Nothing is
converted silently that could hide a mistake: ``True`` is no number, ``"4"`` is no int.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from operator import index

from rankspawn.values import dataclass

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

HIGHEST_PORT = 65535
# More ranks than a machine runs; an iterator may have no end.
_MOST_ROWS = 100_000


def read_flag(name: str, value: Any) -> bool:
    """True or False, and nothing that merely behaves like one."""
    if isinstance(value, bool):
        return value
    raise _wrong_type(name, value, "True or False")


def read_text(name: str, value: Any, *, may_be_empty: bool = False) -> str:
    """A string that is not empty, unless it may be."""
    if not isinstance(value, str):
        raise _wrong_type(name, value, "a string")
    if not value and not may_be_empty:
        raise ValueError(f"{name} must not be empty")
    return value


def read_callable(name: str, value: Any) -> Callable[..., object]:
    """Anything that can be called."""
    if not callable(value):
        raise _wrong_type(name, value, "a function")
    function: Callable[..., object] = value
    return function


def read_choice(name: str, value: Any, choices: Sequence[str], *, or_none: bool = False) -> str:
    """One of ``choices``; errors speak of None, too, if that says something of its own."""
    allowed = ", ".join(map(repr, [*choices, None] if or_none else choices))
    if not isinstance(value, str):
        raise _wrong_type(name, value, f"one of {allowed}")
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not supported: use one of {allowed}")
    return value


def read_count(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """A whole number; anything with ``__index__`` counts, such as NumPy's integers."""
    allowed = f"an int of at least {least}" + ("" if most is None else f" and at most {most}")
    number = _index(value)
    if number is None:
        raise _wrong_type(name, value, allowed)
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name}={number} is out of range: it must be {allowed}")
    return number


@dataclass(frozen=True, slots=True)
class DebugRequest:
    """Which rank has the terminal.

    Attributes:
        rank: That rank.
        holds: The others wait at the breakpoints that it is at.
    """

    rank: int
    holds: bool = False

    def __str__(self) -> str:
        return f"{self.rank},hold" if self.holds else str(self.rank)


def read_debug(name: str, value: Any) -> DebugRequest:
    """A rank; ``"hold"``, which is rank 0 while the others wait for it; or ``"1,hold"``."""
    if not isinstance(value, str):
        return DebugRequest(read_count(name, value, least=0))
    text, holds = value.replace(" ", ""), value.rstrip().endswith("hold")
    rank = text.removesuffix("hold").removesuffix(",") if holds else text
    if not (rank.isdecimal() or (holds and not rank)):
        raise ValueError(
            f"{name}={value!r} is no rank: give one such as 1, 'hold' (rank 0, and the others wait "
            "at its breakpoints) or '1,hold'"
        )
    return DebugRequest(int(rank or 0), holds)


@dataclass(frozen=True, slots=True)
class DebugpyRequest:
    """Which ranks an editor's debugger can be attached to.

    Attributes:
        rank: That rank; None for all.
        waits: It begins once a debugger is there.
    """

    rank: int | None
    waits: bool = False

    def __str__(self) -> str:
        who = "all" if self.rank is None else str(self.rank)
        return f"{who},wait" if self.waits else who


def read_debugpy(name: str, value: Any) -> DebugpyRequest:
    """A rank, or ``"all"``; with ``",wait"`` after it they wait for the debugger."""
    if not isinstance(value, str):
        return DebugpyRequest(read_count(name, value, least=0))
    who, comma, word = value.replace(" ", "").partition(",")
    if not (who == "all" or who.isdecimal()) or (comma and word != "wait"):
        raise ValueError(
            f"{name}={value!r} is no rank: give one such as 1, or 'all'; with '1,wait' it waits "
            "until a debugger is there"
        )
    return DebugpyRequest(None if who == "all" else int(who), bool(comma))


def read_seconds(name: str, value: Any, *, positive: bool) -> float:
    """A duration in seconds; NaN and negative durations are errors."""
    allowed = f"a {'positive' if positive else 'non-negative'} number of seconds"
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise _wrong_type(name, value, allowed)
    seconds = float(value)
    # Written so that NaN, which compares false with everything, fails as well.
    if not (seconds > 0 or (seconds == 0 and not positive)):
        raise ValueError(f"{name}={value!r} is out of range: it must be {allowed}")
    return seconds


def read_path(name: str, value: Any) -> str:
    """A directory as text; ``os.PathLike`` objects are fine."""
    if not isinstance(value, (str, os.PathLike)):
        raise _wrong_type(name, value, "a path")
    return read_text(name, os.fspath(value))


class Selection(tuple[str, ...]):
    """Device ids, and what the option was called that names them.

    Attributes:
        option: As the caller wrote it, for messages; today's name may be another one.
    """

    option: str


def read_ids(name: str, value: Any, *, may_repeat: bool = False, hint: str = "") -> Selection:
    """Device ids from ``"4,5"``, ``[4, 5]`` or ``["GPU-8932f937"]``; order counts."""
    allowed = f"device ids, such as {name}='4,5' or {name}=[4, 5]"
    if isinstance(value, str):
        value = value.split(",") if value.strip() else []
    elif not isinstance(value, (list, tuple, range)):
        # An int is refused on purpose: is gpus=2 the device 2 or two devices?
        raise _wrong_type(name, value, allowed)
    ids = Selection(_device_id(name, item, allowed) for item in value)
    if not ids:
        raise ValueError(f"{name} selects no device: give {allowed}, or leave {name} out")
    if not may_repeat:
        _no_duplicates(name, ids, hint)
    ids.option = name
    return ids


def _device_id(name: str, item: Any, allowed: str) -> str:
    number = _index(item)
    if number is None and not isinstance(item, str):
        raise _wrong_type(name, item, allowed)
    text = item.strip() if number is None else str(number)
    if not text or text.startswith("-"):
        raise ValueError(f"{name}: {item!r} is no device id: give {allowed}")
    # '05' and '5' are the same device.
    return str(int(text)) if text.isascii() and text.isdecimal() else text


def read_addresses(name: str, value: Any) -> tuple[str, ...]:
    """Node addresses from ``"10.0.0.1,10.0.0.2"`` or a list; host names are fine."""
    allowed = f"node addresses, such as {name}='10.0.0.1,10.0.0.2'"
    if isinstance(value, str):
        value = value.split(",")
    elif not isinstance(value, (list, tuple)):
        raise _wrong_type(name, value, allowed)
    addresses = tuple(read_address(name, item, allowed) for item in value)
    if not addresses:
        raise ValueError(f"{name} is empty: give {allowed}")
    _no_duplicates(name, addresses)
    return addresses


def read_address(name: str, item: Any, allowed: str = "one address, without a port") -> str:
    """One host name, IPv4 or IPv6 address, without brackets."""
    if not isinstance(item, str):
        raise _wrong_type(name, item, allowed)
    text = item.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    if not text or any(char.isspace() or char in "[]/" for char in text):
        raise ValueError(f"{name}: {item!r} is no address: give {allowed}")
    # IPv6 has at least two colons, so a single one is the colon of host:port.
    if text.count(":") == 1:
        raise ValueError(
            f"{name}: {item!r} names a port, which does not belong here: give {allowed}"
        )
    return text


def read_kwargs(name: str, value: Any) -> dict[str, Any]:
    """Keyword arguments: a mapping whose keys are strings."""
    if not isinstance(value, Mapping):
        raise _wrong_type(name, value, "a mapping of keyword arguments")
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"{name}: the key {key!r} is no string, so it cannot name an argument")
    return dict(value)


def read_rows(name: str, value: Any) -> tuple[tuple[Any, ...], ...]:
    """One tuple of extra arguments per rank."""
    allowed = "a sequence with one tuple per rank"
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _wrong_type(name, value, allowed)
    rows = []
    for rank, row in enumerate(itertools.islice(value, _MOST_ROWS)):
        if not isinstance(row, (tuple, list)):
            raise TypeError(
                f"{name}[{rank}] must be a tuple, not {shown(row)}: "
                f"for a single argument write ({shortly(row)},)"
            )
        rows.append(tuple(row))
    return tuple(rows)


def read_named_rows(name: str, value: Any) -> tuple[Mapping[str, Any], ...]:
    """One mapping of extra keyword arguments per rank."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _wrong_type(name, value, "a sequence with one mapping per rank")
    rows = itertools.islice(value, _MOST_ROWS)
    return tuple(read_kwargs(f"{name}[{rank}]", row) for rank, row in enumerate(rows))


def read_ranks(name: str, value: Any) -> bool | tuple[int, ...]:
    """True, False, or the ranks meant: ``"0,3"``, ``[0, 3]``."""
    allowed = f"True, False or ranks, such as {name}='0,3' or {name}=[0, 3]"
    if isinstance(value, bool):
        return value
    items: Iterable[Any] = value
    if isinstance(value, str):
        items = [_number_in(item) for item in value.split(",")]
    elif not isinstance(value, (list, tuple, range)):
        raise _wrong_type(name, value, allowed)
    ranks = tuple(_index(item) for item in items)
    if not all(rank is not None and rank >= 0 for rank in ranks):
        raise ValueError(f"{name}={value!r} names something that is no rank: use {allowed}")
    return tuple(sorted({rank for rank in ranks if rank is not None}))


def read_modules(name: str, value: Any) -> tuple[str, ...]:
    """Module names: ``"torch"``, ``"torch,numpy"`` or a list of them."""
    allowed = f"module names, such as {name}=['numpy', 'torch']"
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",")]
    elif not isinstance(value, (list, tuple)):
        raise _wrong_type(name, value, allowed)
    for item in value:
        if not isinstance(item, str):
            raise _wrong_type(name, item, allowed)
        if not all(part.isidentifier() for part in item.split(".")):
            raise ValueError(f"{name}: {item!r} is no module name: give {allowed}")
    return tuple(value)


def read_env(
    name: str, value: Any
) -> dict[str, str | None] | Callable[[int], Mapping[str, str | None]]:
    """Environment changes for all ranks, or a callable that makes them from a rank.

    What the callable returns is checked when it is called, with :func:`read_variables`.
    """
    if isinstance(value, Mapping):
        return read_variables(name, value)
    if callable(value):
        return value  # type: ignore[no-any-return]  # its result is checked when called
    raise _wrong_type(name, value, "a mapping, or a callable that takes the rank and returns one")


def read_variables(name: str, value: Any) -> dict[str, str | None]:
    """Environment changes: names to strings, or to None for a variable to remove."""
    if not isinstance(value, Mapping):
        raise _wrong_type(name, value, "a mapping of variable names to strings or None")
    for variable, text in value.items():
        if not isinstance(variable, str):
            raise TypeError(f"{name}: the variable name {variable!r} is not a string")
        # The operating system stores NAME=value strings that end in a NUL byte.
        if not variable or "=" in variable or "\0" in variable:
            raise ValueError(f"{name}: {variable!r} cannot be a variable's name")
        if text is not None and not isinstance(text, str):
            raise TypeError(
                f"{name}[{variable!r}] is {shown(text)}: the environment holds strings only, "
                f"so write str({shortly(text)}), or None to remove the variable"
            )
        if text is not None and "\0" in text:
            raise ValueError(f"{name}[{variable!r}] holds a NUL character, which no variable can")
    return dict(value)


def _index(value: Any) -> int | None:
    """``value`` as an int, or None for anything that is not one, bool included."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def _number_in(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else None


def _no_duplicates(name: str, items: Sequence[str], hint: str = "") -> None:
    for position, item in enumerate(items):
        if item in items[:position]:
            raise ValueError(f"{name} names {item!r} twice: {','.join(items)}{hint}")


def _wrong_type(name: str, value: Any, allowed: str) -> TypeError:
    return TypeError(f"{name} must be {allowed}, not {shown(value)}")


def shown(value: Any) -> str:
    """A value and its type, for a message."""
    return f"{shortly(value)} ({type(value).__name__})"


def shortly(value: Any) -> str:
    """``repr`` for a message; it cannot fail."""
    try:
        text = repr(value)
    except Exception as error:
        return f"a value whose repr() raises {type(error).__name__}"
    # A model or an array given by mistake must not fill the screen.
    return text if len(text) <= 80 else text[:77] + "..."
