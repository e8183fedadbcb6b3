"""Noticing that nothing is heard of any rank any more: no report, and nothing printed."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from rankspawn.supervise.group import RankOutput

    class Ranked(Protocol):
        """One of them."""

        @property
        def rank(self) -> int:
            """Its number."""

    class Watched(Protocol):
        """What is asked of a group to see signs of life: a part of ``Group``."""

        @property
        def processes(self) -> Sequence[Ranked]:
            """Its ranks."""

        def steps_of(self, index: int) -> bytes:
            """Something that changes as the rank goes on."""

        def open_output(self, index: int) -> RankOutput | None:
            """Where what the rank prints can be read."""


# Looks in the time without a sign of life that is allowed.
_LOOKS = 10


class StallWatch:
    """Looks now and then whether one of the ranks has reported or printed something.

    Args:
        seconds: Without any of that for so long, they have stalled.

    Attributes:
        due: When to look again, on the monotonic clock.
        has_stalled: Nothing was heard of any rank for too long.
    """

    def __init__(self, seconds: float) -> None:
        self.due: float = 0.0
        self.has_stalled: bool = False
        self._seconds = seconds
        self._group: Watched | None = None
        self._outputs: dict[int, RankOutput | None] = {}
        # By rank: what there was of it, and when that was new.
        self._signs: dict[int, tuple[bytes, int]] = {}
        self._heard: dict[int, float] = {}

    def look(self, group: Watched) -> None:
        """Note what is new, if it is time to."""
        now = time.monotonic()
        if now < self.due and group is self._group:
            return
        if group is not self._group:
            self._begin(group, now)
        for index, process in enumerate(group.processes):
            signs = (group.steps_of(index), self._size(index))
            rank = process.rank
            if signs != self._signs.get(rank):
                self._signs[rank], self._heard[rank] = signs, now
        quiet_since = max(self._heard.values(), default=now)
        self.has_stalled = now - quiet_since >= self._seconds
        self.due = now + self._seconds / _LOOKS

    def describe(self) -> str:
        """Who was last heard of when; empty if they have not stalled."""
        if not self.has_stalled:
            return ""
        return (
            f"no rank reported or printed anything for {self._seconds:g} s, and they were stopped "
            f"(stall_timeout). Last heard of: {self.last_heard()}.\n"
        )

    def last_heard(self) -> str:
        """Each rank with when that was, the last one first."""
        now = time.monotonic()
        heard = sorted(self._heard.items(), key=lambda entry: (-entry[1], entry[0]))
        return ", ".join(f"rank {rank} {now - when:.1f} s ago" for rank, when in heard)

    def close(self) -> None:
        """Let go of what ranks print to."""
        for output in self._outputs.values():
            if output is not None:
                output.file.close()
        self._outputs = {}

    def _begin(self, group: Watched, now: float) -> None:
        """All ranks of a start were heard of when that was."""
        self.close()
        self._group = group
        self._signs.clear()
        self._heard = {process.rank: now for process in group.processes}
        self._outputs = {index: group.open_output(index) for index in range(len(group.processes))}

    def _size(self, index: int) -> int:
        output = self._outputs.get(index)
        return 0 if output is None else os.fstat(output.file.fileno()).st_size
