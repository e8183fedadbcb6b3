"""What a test's marker and the configuration ask for, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

# Options of ``spawn`` that make sense in a test; the plugin itself decides about the others.
_PASSED_ON = (
    "backend",
    "gpus",
    "xpus",
    "devices",
    "device_type",
    "device_visibility",
    "numa",
    "threads_per_rank",
    "env",
    "preload",
    "grace_period",
)
# A rank of a test that hangs is not worth more; a marker can say otherwise.
_GRACE_SECONDS = 5.0
# A server that has imported pytest forks a rank in milliseconds.
_PRELOADED = ("pytest", "rankspawn.pytest_plugin.in_worker")
# Ranks that are forked from a process which has collected their test.
_WARM = "warm"
# They hold from the start of a process, or before it imports a module that looks at them.
_NEED_FRESH = (
    *("gpus", "xpus", "devices", "device_type", "device_visibility", "numa"),
    *("threads_per_rank", "env", "preload"),
)


class StartError(Exception):
    """The ranks of a test cannot be started as its marker asks; the text says why."""


@dataclass(frozen=True, slots=True)
class RanksRequest:
    """How to run the ranks of a test.

    Attributes:
        ranks: How many there are.
        timeout: Seconds for all of it; None for no limit.
        options: Options of ``spawn``.
        is_warm: They may be copies of the warm process, to which the options are for others.
    """

    ranks: int
    timeout: float | None
    options: Mapping[str, Any] = field(default_factory=dict)
    is_warm: bool = False


def read_request(item: pytest.Function) -> RanksRequest:
    """The request of the nearest marker of a test.

    Raises:
        StartError: An argument of the marker is missing, unknown or of the wrong kind.
    """
    marker = item.get_closest_marker("ranks")
    assert marker is not None, "only marked tests get here"
    ini = {
        "timeout": item.config.getini("rankspawn_timeout"),
        "start_method": item.config.getini("rankspawn_start_method"),
    }
    try:
        return read_marker(marker.args, marker.kwargs, ini)
    except (TypeError, ValueError) as error:
        raise StartError(f"@pytest.mark.ranks: {error}") from error


def read_marker(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], ini: Mapping[str, str]
) -> RanksRequest:
    """The request of a marker with these arguments.

    Raises:
        TypeError: An argument is missing or unknown.
        ValueError: A value is not possible.
    """
    given = dict(kwargs)
    if len(args) > 1 or bool(args) == ("n" in given):
        raise TypeError("give the number of ranks, and options by name: ranks(4, timeout=60)")
    ranks = args[0] if args else given.pop("n")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f"the number of ranks must be a positive int, not {ranks!r}")
    timeout = _seconds(given.pop("timeout", ini["timeout"]))
    options = {
        "start_method": given.pop("start_method", ini["start_method"]),
        "backend": "gloo" if not _names_devices(given) else "auto",
        "grace_period": _GRACE_SECONDS,
    }
    unknown = sorted(given.keys() - set(_PASSED_ON))
    if unknown:
        known = ", ".join(("timeout", "start_method", *_PASSED_ON))
        raise TypeError(f"unknown option {unknown[0]!r}; there are {known}")
    if options["start_method"] == "forkserver":
        given["preload"] = (*_PRELOADED, *given.get("preload", ()))
    is_warm = options["start_method"] == _WARM
    if is_warm:
        options["start_method"] = "spawn"
        is_warm = not any(given.get(name) for name in _NEED_FRESH)
    return RanksRequest(ranks, timeout, options | given, is_warm)


def _names_devices(given: Mapping[str, Any]) -> bool:
    return any(given.get(name) for name in ("gpus", "xpus", "devices", "device_type"))


def _seconds(value: Any) -> float | None:
    """The value as seconds, or None if it means no limit: None, 0 or infinity."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"timeout must be a number of seconds, not {value!r}") from None
    if not seconds >= 0:
        raise ValueError(f"timeout must not be negative, but is {value!r}")
    return seconds if 0 < seconds < float("inf") else None
