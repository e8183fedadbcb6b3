"""``rankspawn.report``: how far this rank is, for the live view.

Runs in the worker, inside its innermost loop: while nobody looks, a call is one comparison. If
somebody does, it is one write into a file in memory, which never waits for a reader.
"""

from __future__ import annotations

import sys
from time import monotonic_ns

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from rankspawn.workers.report import Report

__all__ = ["report"]

# A value may be a tensor on a device, and reading it takes a while: not more often than this.
_VALUES_EVERY_NS = 100_000_000


# What is known about this process: for which report of a worker that holds (at first for no
# possible one), and who writes.
_is_for: object = ...
_write: Callable[[float | None, float | None, Mapping[str, Any]], None] | None = None


def report(step: float | None = None, total: float | None = None, **values: Any) -> None:
    """Say how far this rank is; ``spawn(..., progress=True)`` shows it.

    Anywhere else, and outside of a worker, it does nothing. It never waits and never raises
    because of a value.

    Args:
        step: How much is done.
        total: Of how much; then there is a bar.
        **values: What else to show, such as ``loss=0.25``: numbers, or anything with a text.
    """
    module = sys.modules.get("rankspawn.workers.report")
    current = None if module is None else module.current
    if current is not _is_for:
        _find_reader(current)
    if _write is not None:
        _write(step, total, values)


def _find_reader(current: Report | None) -> None:
    """Once in each process: see whether somebody looks. A fork has a report of its own."""
    global _is_for, _write  # noqa: PLW0603 - the process is in this state, not an object
    from rankspawn.workers.report import LOOKED_AT

    _is_for, _write = current, None
    if current is not None and current.flags() & LOOKED_AT:
        _write = _Writer(current).write


class _Writer:
    """Puts records into the report of this rank."""

    def __init__(self, to: Report) -> None:
        from rankspawn.workers.steps import pack_steps

        self._to = to
        self._pack = pack_steps
        self._serial = 0
        self._text = ""
        self._due_ns = 0
        # What was said last, while its values are not written yet.
        self._late: tuple[float | None, float | None, Mapping[str, Any]] | None = None
        to.write_steps = self.write_late

    def write(self, step: float | None, total: float | None, values: Mapping[str, Any]) -> None:
        """Steps at once, values now and then."""
        now = monotonic_ns()
        if now < self._due_ns:
            self._late = (step, total, values)
        else:
            self._due_ns = now + _VALUES_EVERY_NS
            self._late = None
            self._text = _describe(values)
        self._put(step, total)

    def write_late(self) -> None:
        """At the end of the rank: what was put off."""
        if self._late is not None:
            step, total, values = self._late
            self._text = _describe(values)
            self._put(step, total)

    def _put(self, step: float | None, total: float | None) -> None:
        self._serial += 1
        try:
            record = self._pack(self._serial, _number(step), _number(total), self._text)
            self._to.put_steps(record)
        except OSError:  # no memory left, or the program closed what is not its own
            return


def _number(value: float | None) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _describe(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_text_of(value)}" for name, value in values.items())


def _text_of(value: Any) -> str:
    try:
        # Scalars of frameworks, too, have a number, and a long text.
        if isinstance(value, float) or (not isinstance(value, (str, int)) and _is_scalar(value)):
            return f"{float(value):.4g}"
        return " ".join(str(value).split())
    except Exception:  # anybody's code
        return "?"


def _is_scalar(value: Any) -> bool:
    return hasattr(value, "__float__")
