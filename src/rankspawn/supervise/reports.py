"""What ranks said last with ``rankspawn.report``, and who is told of it while somebody waits."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan

from rankspawn.step_records import HEAD, TAIL, unpack_values

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rankspawn.supervise.group import Group

# How often new reports are looked for, at most; and of its time a thread takes at most this part.
_LOOK_SECONDS = 0.1
_PART = 0.01


@dataclass(frozen=True, slots=True)
class Steps:
    """What a rank said last with ``rankspawn.report``, all in one call.

    Attributes:
        step: How much is done.
        total: Of how much.
        values: What else it said: numbers, and the text of anything else.
    """

    step: float | None = None
    total: float | None = None
    values: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def fraction(self) -> float | None:
        """How far it is, from 0 to 1; None if a number is missing."""
        if self.step is None or not self.total or self.total < 0:
            return None
        return min(1.0, max(0.0, self.step / self.total))

    def describe(self, pace: str = "") -> str:
        """The same in words, as in ``120/1000 12% loss=0.25``.

        Args:
            pace: More on how far it is, before the values.
        """
        words = []
        if self.step is not None:
            of = "" if self.total is None else f"/{self.total:g}"
            words.append(f"{self.step:.10g}{of}")
        if self.fraction is not None:
            words.append(f"{self.fraction:.0%}")
        if pace:
            words.append(pace)
        words += [f"{name}={_value_text(value)}" for name, value in self.values.items()]
        return " ".join(words)


def _value_text(value: float | str) -> str:
    """A value for people: floats with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def serial_of(record: bytes) -> int:
    """The number of a rank's record, which grows with each; 0 before the first."""
    return int.from_bytes(record[:8], "little")


def unpack_steps(record: bytes) -> Steps | None:
    """The steps in a rank's record; None if it has said nothing, or was writing just then."""
    if len(record) < HEAD.size + TAIL.size:
        return None
    # The worker writes its serial number at both ends and the rest between: where they differ, or
    # the tail is not where the head says, we read in the middle of a write.
    serial, step, total, length = HEAD.unpack_from(record)
    end = HEAD.size + length
    if not serial or end + TAIL.size > len(record) or TAIL.unpack_from(record, end)[0] != serial:
        return None
    values = unpack_values(record[HEAD.size : end].decode("utf-8", "replace"))
    return Steps(None if isnan(step) else step, None if isnan(total) else total, values)


def reports_of(group: Group) -> dict[int, Steps]:
    """Rank to what it said last, of the ranks of a group that said anything."""
    reports = {}
    for index, process in enumerate(group.processes):
        steps = unpack_steps(group.steps_of(index))
        if steps is not None:
            reports[process.rank] = steps
    return reports


class ReportTeller:
    """Calls a function with what ranks report, from a thread that waits for them anyway.

    Of several reports between two looks, only the last one is told.

    Args:
        call: Gets a rank and its steps.
    """

    def __init__(self, call: Callable[[int, Steps], object]) -> None:
        self._call = call
        self._group: Group | None = None
        self._told: dict[int, int] = {}
        self._due = 0.0
        # Others who wait have nothing to tell meanwhile, nor the function itself if it waits.
        self._telling = threading.Lock()

    @property
    def due(self) -> float:
        """When to look again, on the monotonic clock."""
        return self._due

    def tell(self, group: Group) -> None:
        """Call it for each rank of which something new is known.

        Raises:
            BaseException: Whatever it raised.
        """
        with self._claimed() as is_ours:
            if not is_ours:
                return
            began = time.monotonic()
            if group is not self._group:
                self._group, self._told = group, {}
            news = []
            for index, process in enumerate(group.processes):
                record = group.steps_of(index)
                serial = serial_of(record)
                if serial == self._told.get(index, 0):
                    continue
                steps = unpack_steps(record)
                if steps is not None:
                    self._told[index] = serial
                    news.append((process.rank, steps))
            took = time.monotonic() - began
            self._due = began + max(_LOOK_SECONDS, took / _PART)
            for rank, steps in news:
                self._call(rank, steps)

    @contextmanager
    def _claimed(self) -> Iterator[bool]:
        is_ours = self._telling.acquire(blocking=False)
        try:
            yield is_ours
        finally:
            if is_ours:
                self._telling.release()
