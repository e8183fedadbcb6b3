"""Readers of single flags: each takes where a text comes from, and the text, and gives its value.

Every error names the flag or variable, shows the text and says what is allowed. Those of
``spawn`` take Python values and are used where the value is text there, too.
"""

from __future__ import annotations

from rankspawn.option_values import (
    HIGHEST_PORT,
    read_address,
    read_addresses,
    read_debug,
    read_debugpy,
    read_ids,
)

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from rankspawn.option_values import DebugpyRequest, DebugRequest

RUN_MODES = ("collective", "ps", "ps-heter", "rpc")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LEAST_SILENCE, _MOST_SILENCE = 2, 120
_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off")
BINDINGS = ("node", "socket", "exclusive", "core-complex")


def text(origin: str, given: str) -> str:
    """Any text that is not empty."""
    if not given.strip():
        raise ValueError(f"{origin} must not be empty")
    return given.strip()


def identifier(origin: str, given: str) -> str:
    """A word that can be part of a variable's name."""
    if not (given.isidentifier() and given.isascii()):
        raise ValueError(f"{origin}={given!r} is no device type: give a name such as gpu or npu")
    return given


def number(least: int, most: int | None = None) -> Callable[[str, str], int]:
    """A reader of whole numbers in a range."""
    allowed = f"at least {least}" if most is None else f"from {least} to {most}"

    def read(origin: str, given: str) -> int:
        digits = given.strip()
        if not (digits.isascii() and digits.removeprefix("-").isdecimal()):
            raise ValueError(f"{origin}={given!r} is no whole number; it must be {allowed}")
        value = int(digits)
        if value < least or (most is not None and value > most):
            raise ValueError(f"{origin}={value} is out of range: it must be {allowed}")
        return value

    return read


port: Callable[[str, str], int] = number(1, HIGHEST_PORT)


def workers(origin: str, given: str) -> int | str:
    """A positive number of workers, or ``auto``, or a type of device to have one for each."""
    word = given.strip()
    if word.isascii() and word.isidentifier():
        return word
    return number(1)(origin, given)


def node_counts(origin: str, given: str) -> tuple[int, int]:
    """The fewest and the most nodes, from ``2`` or ``2:4``."""
    fewest, colon, most = given.partition(":")
    read = number(1)
    try:
        low = read(origin, fewest)
        high = read(origin, most) if colon else low
    except ValueError:
        raise ValueError(
            f"{origin}={given!r} is no number of nodes: write 2, or 2:4 for an elastic job"
        ) from None
    if low > high:
        raise ValueError(f"{origin}={given!r} is upside down: the fewest come first, as in 2:4")
    return low, high


def seconds(origin: str, given: str) -> float:
    """A duration; NaN and negative ones are errors."""
    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{origin}={given!r} is no number of seconds, such as 30 or 2.5")
    return value


def time_limit(origin: str, given: str) -> float:
    """A duration above 0."""
    value = seconds(origin, given)
    if not value:
        raise ValueError(f"{origin}={given} leaves no time: leave it out for no limit")
    return value


def exit_codes(origin: str, given: str) -> frozenset[int]:
    """Exit codes of failures, as a comma list; 128 and its number for a signal."""
    return frozenset(number(1, 255)(origin, entry) for entry in given.split(","))


def trace(origin: str, given: str) -> str:
    """A path whose ending says what is written there."""
    from rankspawn.trace.request import read_trace

    return read_trace(origin, given)


def template(origin: str, given: str) -> str:
    """A prefix of lines, with what may stand in braces."""
    from rankspawn.view.prefix import check_prefix

    check_prefix(origin, given)
    return given


def debug(origin: str, given: str) -> DebugRequest:
    """A rank, and whether the others wait for it."""
    return read_debug(origin, given)


def debugpy(origin: str, given: str) -> DebugpyRequest:
    """A rank or ``all``, and whether they wait for an editor."""
    return read_debugpy(origin, given)


def assignments(origin: str, given: str) -> tuple[tuple[str, str], ...]:
    """``NAME=VALUE``, one a line."""
    found = []
    for line in filter(str.strip, given.splitlines()):
        name, equals, value = line.partition("=")
        if not equals or not name.strip() or not name.isprintable() or " " in name.strip():
            # Without the value: it may be a secret.
            raise ValueError(f"{origin}: {name!r} is no NAME=VALUE, such as OMP_NUM_THREADS=4")
        found.append((name.strip(), value))
    return tuple(found)


def node_timeout(origin: str, given: str) -> float:
    """How long a node may be silent: not less than a busy machine is, now and then."""
    value = seconds(origin, given)
    if not _LEAST_SILENCE <= value <= _MOST_SILENCE:
        allowed = f"from {_LEAST_SILENCE} to {_MOST_SILENCE}"
        raise ValueError(f"{origin}={given} is out of range: it must be {allowed} seconds")
    return value


def switch(origin: str, given: str) -> bool:
    """Yes or no, in the words that are common for it."""
    if not is_switch_word(given):
        raise ValueError(f"{origin}={given!r} is neither yes nor no: write true or false")
    return given.strip().lower() in _YES


def is_switch_word(given: str) -> bool:
    """Whether a word means yes or no."""
    return given.strip().lower() in (*_YES, *_NO)


def level(origin: str, given: str) -> str:
    """A level of Python's logging, in capitals."""
    return _one_of(origin, given.strip().upper(), _LEVELS)


def run_mode(origin: str, given: str) -> str:
    """``collective``, ``ps`` or ``ps-heter``."""
    return _one_of(origin, given.strip().lower().replace("_", "-"), RUN_MODES)


def ids(origin: str, given: str) -> tuple[str, ...]:
    """Device ids as a comma list, in a tuple."""
    return read_ids(origin, given)


def address(origin: str, given: str) -> str:
    """One address without a port."""
    return read_address(origin, given)


def addresses(origin: str, given: str) -> tuple[str, ...]:
    """Addresses without ports, as a comma list."""
    return read_addresses(origin, given)


def endpoints(origin: str, given: str) -> tuple[str, ...]:
    """``host:port`` entries, as a comma list."""
    found = tuple(entry.strip() for entry in given.split(",") if entry.strip())
    for entry in found:
        host, _, digits = entry.rpartition(":")
        if not host or not digits.isdecimal() or not 0 < int(digits) <= HIGHEST_PORT:
            raise ValueError(f"{origin}: {entry!r} is no host:port, such as 10.0.0.1:6170")
    if not found:
        raise ValueError(f"{origin} must not be empty")
    for place, entry in enumerate(found):
        if entry in found[:place]:
            raise ValueError(f"{origin} names {entry} twice")
    return found


def stages(origin: str, given: str) -> tuple[tuple[str, ...], ...]:
    """Endpoints for each stage; semicolons stand between stages."""
    return tuple(endpoints(origin, stage) for stage in given.split(";"))


def stage_counts(origin: str, given: str) -> tuple[int, ...]:
    """A number for each stage; semicolons stand between stages."""
    return tuple(number(1)(origin, stage) for stage in given.split(";"))


def stage_devices(origin: str, given: str) -> tuple[str, ...]:
    """A device type for each stage; semicolons stand between stages."""
    return tuple(identifier(origin, stage.strip()) for stage in given.split(";"))


def backend(origin: str, given: str) -> str:
    """A rendezvous of torchrun's that has a counterpart."""
    return _one_of(origin, given.strip().lower(), ("c10d", "static", "etcd", "etcd-v2"))


def start_method(origin: str, given: str) -> str:
    """One of multiprocessing's."""
    return _one_of(origin, given.strip(), ("spawn", "fork", "forkserver"))


def numa(origin: str, given: str) -> str:
    """How workers are bound to CPUs."""
    return _one_of(origin, given.strip(), BINDINGS)


def settings(origin: str, given: str) -> dict[str, str]:
    """``key=value`` entries, as a comma list."""
    found: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in given.split(","))):
        key, equals, value = entry.partition("=")
        if not key.strip() or not equals:
            raise ValueError(f"{origin}: {entry!r} is no key=value, such as join_timeout=60")
        found[key.strip()] = value.strip()
    return found


def streams(origin: str, given: str) -> int | dict[int, int]:
    """Standard output (1), error (2), both (3) or none (0), of all local ranks or of some."""
    entries = [entry.partition(":") for entry in given.strip().split(",")]
    try:
        if len(entries) == 1 and not entries[0][1]:
            return _stream(entries[0][0])
        return {int(rank): _stream(value) for rank, _, value in entries}
    except ValueError:
        raise ValueError(
            f"{origin}={given!r}: write 0, 1 (stdout), 2 (stderr) or 3 (both), or that for some "
            "local ranks, such as 0:1,1:3"
        ) from None


def _stream(digits: str) -> int:
    if digits not in ("0", "1", "2", "3"):
        raise ValueError(digits)
    return int(digits)


def ranks(origin: str, given: str) -> frozenset[int]:
    """Numbers of local ranks, as a comma list."""
    return frozenset(number(0)(origin, entry) for entry in given.split(","))


def patterns(origin: str, given: str) -> tuple[str, ...]:  # noqa: ARG001 - as all of them
    """Parts of lines, as a comma list; a comma within one is written twice."""
    parts = given.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


def signals(origin: str, given: str) -> tuple[str, ...]:
    """Names of signals, as a comma list."""
    import signal

    names = tuple(name.strip() for name in given.split(","))
    for name in names:
        if name not in signal.Signals.__members__:
            raise ValueError(f"{origin}: {name!r} is no signal, such as SIGTERM")
    return names


def _one_of(origin: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{origin}={value!r} is not supported: use one of {', '.join(allowed)}")
    return value
