"""The other ranks as processes: who has joined, who left, gave up or is gone.

What a rank says of itself stands in its words, of which it is the only writer. Whether its process
lives, the kernel says: a pidfd, or what stands in for it, opened when somebody first has to wait
longer than a moment.
"""

from __future__ import annotations

import os
import time

from rankspawn.parallel.layout import ABOUT, PID, REASON, STATE, TICKS
from rankspawn.workers.marker import (
    open_process,
    ticks_since_boot,
    wait_for_ends,
    when_started,
)
from rankspawn.workers.meeting import ENTRY, FIRST_ENTRY_AT

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.parallel.region import Region

# States of a rank.
ABSENT, JOINED, LEFT, BROKEN = range(4)
# Why a rank cannot go on, and about whom that is.
BY_EXCEPTION, BY_LOSS, BY_TIMEOUT, BY_MISMATCH, BY_MESSAGE = range(1, 6)


class Peers:
    """All ranks of a region, as one of them sees the others."""

    def __init__(self, region: Region, rank: int) -> None:
        self._region = region
        self._layout = region.layout
        self._words = region.words
        self._long = region.controls.cast("Q")
        self._rank = rank
        self._handles: dict[int, int] = {}
        self._gone: set[int] = set()

    def claim(self) -> None:
        """Be this rank.

        Raises:
            RuntimeError: Another process is, or was.
        """
        at = self._layout.control(self._rank)
        self._region.lock(self._rank)
        try:
            state, holder = self._words[(at + STATE) // 4], self._words[(at + PID) // 4]
            if state != ABSENT:
                raise RuntimeError(
                    f"rank {self._rank} of this job is process {holder}, which has "
                    f"{'left' if state == LEFT else 'joined'} already; this is {os.getpid()}: one "
                    "process of a rank talks to the others, once"
                )
            self._words[(at + PID) // 4] = os.getpid()
            self._long[(at + TICKS) // 8] = ticks_since_boot()
            self._words[(at + STATE) // 4] = JOINED
        finally:
            self._region.unlock(self._rank)

    def say(self, state: int, reason: int = 0, about: int = 0) -> None:
        """Tell the others that this rank left, or cannot go on."""
        at = self._layout.control(self._rank)
        self._words[(at + REASON) // 4] = reason
        self._words[(at + ABOUT) // 4] = about
        self._words[(at + STATE) // 4] = state

    def state(self, rank: int) -> int:
        """What a rank says of itself."""
        return int(self._words[(self._layout.control(rank) + STATE) // 4])

    def reason(self, rank: int) -> tuple[int, int]:
        """Why a rank cannot go on, and about which rank that is."""
        at = self._layout.control(rank)
        return int(self._words[(at + REASON) // 4]), int(self._words[(at + ABOUT) // 4])

    def pid(self, rank: int) -> int:
        """Its process id: its own word, or what whoever started it says; 0 if nobody does yet."""
        return self._process(rank)[0]

    def _process(self, rank: int) -> tuple[int, int]:
        """The id, and a time at which that process ran already."""
        at = self._layout.control(rank)
        if self.state(rank) != ABSENT:
            return int(self._words[(at + PID) // 4]), int(self._long[(at + TICKS) // 8])
        entry = (FIRST_ENTRY_AT + ENTRY * rank) // 8
        return int(self._long[entry]), int(self._long[entry + 1])

    def is_gone(self, rank: int) -> bool:
        """Whether its process has ended."""
        if rank in self._gone:
            return True
        pid, ticks = self._process(rank)
        if pid == 0:
            return False
        handle = self._handles.get(pid)
        if handle is None:
            handle = _open(pid, ticks)
            if handle is None:  # too many open files: asked anew each time
                return False
            if handle >= 0:
                self._handles[pid] = handle
        # A rank that was started as another process may have joined meanwhile as one of its own.
        is_over = handle < 0 or wait_for_ends([handle], time.monotonic())
        has_ended = is_over and self._process(rank)[0] == pid
        if has_ended:
            self._gone.add(rank)
        return has_ended

    def close(self) -> None:
        """Let go of the descriptors; a second call does nothing."""
        while self._handles:
            os.close(self._handles.popitem()[1])
        self._long.release()


def _open(pid: int, ticks: int) -> int | None:
    """A handle; -1 if the process ended, and its number may be a stranger's; None if unknown."""
    try:
        handle = open_process(pid)
    except (ProcessLookupError, FileNotFoundError):
        return -1
    except OSError:
        return -1 if when_started(pid) > ticks else None
    if when_started(pid) > ticks:  # after the process that was meant, or gone
        os.close(handle)
        return -1
    return handle
