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

# A value may be a tensor on a device, and reading it takes a while: not more often than this.
_VALUES_EVERY_NS = 100_000_000
# The report of this worker for which `_write` was found out; at first one that cannot be, since
# a process that is no worker has None.
_known_report: object = ...
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
    if current is not _known_report:
        _find_reader(current)
    if _write is not None:
        _write(step, total, values)


def _find_reader(current: Report | None) -> None:
    """Find out who writes for the report of this process: nobody, if nobody looks.

    Called once in each process: a fork has a report of its own.
    """
    global _known_report, _write  # noqa: PLW0603 - the process is in this state, not an object
    from rankspawn.workers.report import LOOKED_AT

    _known_report, _write = current, None
    if current is not None and current.flags & LOOKED_AT:
        _write = _Writer(current).write


class _Writer:
    """Puts records of steps and values into the report of this rank."""

    def __init__(self, rank_report: Report) -> None:
        from rankspawn.workers.steps import pack_steps

        self._rank_report = rank_report
        self._pack = pack_steps
        self._serial = 0
        self._text = ""
        self._due_ns = 0
        # The last call of report(), while its values are not written yet.
        self._late: tuple[float | None, float | None, Mapping[str, Any]] | None = None
        rank_report.write_steps = self.write_late

    def write(self, step: float | None, total: float | None, values: Mapping[str, Any]) -> None:
        """Write the steps at once, and the values if they are due."""
        now = monotonic_ns()
        if now < self._due_ns:
            self._late = (step, total, values)
        else:
            self._due_ns = now + _VALUES_EVERY_NS
            self._late = None
            self._text = _describe(values)
        self._put(step, total)

    def write_late(self) -> None:
        """Write the values that were put off; called at the end of the rank."""
        if self._late is not None:
            step, total, values = self._late
            self._text = _describe(values)
            self._put(step, total)

    def _put(self, step: float | None, total: float | None) -> None:
        """Write a record with the values of the last text."""
        self._serial += 1
        try:
            record = self._pack(self._serial, _number(step), _number(total), self._text)
            self._rank_report.put_steps(record)
        except OSError:  # no memory left, or the program closed what is not its own
            return


def _number(value: float | None) -> float | None:
    """The value as a float; None if it is none, since ``report`` never raises for a value."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _describe(values: Mapping[str, Any]) -> str:
    """The values as a text for people: ``loss=0.25 lr=0.1``."""
    return " ".join(f"{name}={_text_of(value)}" for name, value in values.items())


def _text_of(value: Any) -> str:
    """A value in one line, numbers with four digits."""
    try:
        # Scalars of frameworks have a number as well, and a long text. Texts are left out by
        # name, because numpy's have a `__float__`, too; ints are shown with all digits.
        if hasattr(value, "__float__") and not isinstance(value, (str, int)):
            return f"{float(value):.4g}"
        return " ".join(str(value).split())
    except Exception:  # anybody's code
        return "?"
