"""``rankspawn.report``: how far this rank is, for the parent and whoever looks.

Runs in the worker, also in a program of ``rankrun``, inside its innermost loop. It is a write into
a file in memory, which never waits for a reader: for each call if somebody looks, else once a
second.
"""

from __future__ import annotations

import sys
from time import monotonic_ns

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from rankspawn.workers.board import Page
    from rankspawn.workers.report import Report

# A value may be a tensor on a device, and reading it takes a while: not more often than this
# while somebody looks, and while nobody does.
_LOOKED_AT_EVERY_NS = 100_000_000
_UNSEEN_EVERY_NS = 1_000_000_000
# Types whose values cost nothing to read.
_PLAIN = (int, float, str, bool, type(None))
# The report of this worker for which `_write` was found out; at first one that cannot be, since
# a process that is no worker has None.
_known_report: object = ...
_write: Callable[[float | None, float | None, Mapping[str, Any]], None] | None = None


def report(step: float | None = None, total: float | None = None, **values: Any) -> None:
    """Say how far this rank is; ``spawn(..., progress=True)`` shows it, among others.

    Its parent has it, see ``MultiprocessContext.reports`` and the option ``on_report``. Outside of
    a worker it does nothing. It never waits and never raises because of a value.

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
    """Find out who writes for the report of this process: nobody, if it is no worker.

    Called once in each process: a fork has a report of its own.
    """
    global _known_report, _write  # noqa: PLW0603 - the process is in this state, not an object
    _known_report = current
    if current is not None:
        from rankspawn.workers.report import LOOKED_AT

        writer = _Writer(current, is_looked_at=bool(current.flags & LOOKED_AT))
        current.write_steps = writer.write_late
        _write = writer.write
        return
    from rankspawn.workers.board import open_page

    page = open_page()
    _write = None
    if page is not None:
        writer = _Writer(page, is_looked_at=page.is_looked_at)
        page.at_end(writer.write_late)
        _write = writer.write


class _Writer:
    """Puts records of steps and values into the report of this rank."""

    def __init__(self, rank_report: Report | Page, *, is_looked_at: bool) -> None:
        self._rank_report = rank_report
        self._is_looked_at = is_looked_at
        self._every_ns = _LOOKED_AT_EVERY_NS if self._is_looked_at else _UNSEEN_EVERY_NS
        self._serial = 0
        self._due_ns = 0
        # The last call of report(), while it is not written yet: a row has the values of its step.
        self._late: tuple[float | None, float | None, Mapping[str, Any]] | None = None

    def write(self, step: float | None, total: float | None, values: Mapping[str, Any]) -> None:
        """Write this at once, if it is due, or somebody looks and its values cost nothing."""
        now = monotonic_ns()
        if now < self._due_ns and not (self._is_looked_at and _are_plain(values)):
            self._late = (step, total, values)
            return
        if now >= self._due_ns:
            self._due_ns = now + self._every_ns
        self._put(step, total, values)

    def write_late(self) -> None:
        """Write what was put off; called at the end of the rank.

        A tensor may wait for a device that will never answer: it is not read for nobody.
        """
        if self._late is not None:
            step, total, values = self._late
            if self._is_looked_at or _are_plain(values):
                self._put(step, total, values)

    def _put(self, step: float | None, total: float | None, values: Mapping[str, Any]) -> None:
        """Write a record."""
        from rankspawn.step_records import pack_steps, pack_values

        self._late = None
        self._serial += 1
        try:
            text = pack_values({name: _plain(value) for name, value in values.items()})
            record = pack_steps(self._serial, _number(step), _number(total), text)
            self._rank_report.put_steps(record)
        except OSError:  # no memory left, or the program closed what is not its own
            return


def _are_plain(values: Mapping[str, Any]) -> bool:
    return all(type(value) in _PLAIN for value in values.values())


def _number(value: float | None) -> float | None:
    """The value as a float; None if it is none, since ``report`` never raises for a value."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _plain(value: Any) -> float | str:
    """A value as a number, if it is one, or as a text."""
    try:
        if type(value) is int and abs(value) < 1 << 63:
            return value
        # Scalars of frameworks have a number as well, and a long text. Texts are left out by
        # name, because numpy's have a `__float__`, too; large ints and bools are shown as text.
        if hasattr(value, "__float__") and not isinstance(value, (str, int)):
            return float(value)
        return str(value)
    except Exception:  # anybody's code
        return "?"
