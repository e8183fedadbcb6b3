"""When a node must have stopped because its lease may end.

A store ends a lease of L seconds when its clock has counted L since it *received* the last
renewal. The node counts from when it *sent* that renewal, which is never later, and does

* nothing new from 0.6 L on: it stops its workers, with what is left as their grace period;
* at 0.8 L a process outside of the launcher kills whatever is left of them (``fence``), also if
  the launcher is stopped, swapped out or dead.

So with clocks whose rates are off by at most r, a node's workers are gone before the store lets
go of its lease if killing them takes no longer than ``L/(1+r) - 0.8 L/(1-r)``. **The
assumptions**: r is at most 1 % (quartz is off by 0.01 %, and a clock that is being corrected by
0.05 %), and a killed process is gone after at most 0.18 L, 1.8 s with the usual 10 s. A machine
that is suspended stops its workers and its clock together; the time is taken from a clock that
counts the suspension, so the kill comes first thing after it, though not before the workers got
to run again.
"""

from __future__ import annotations

import time

__all__ = ["LeaseTimes", "now"]

_SAFE = 0.6
_FENCE = 0.8
# Several renewals can be lost before anything has to be done about it.
_RENEWALS = 5


class LeaseTimes:
    """The times that follow from the length of a lease, in seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.renew_every = seconds / _RENEWALS
        # A request that takes longer is given up for another try.
        self.answer_within = seconds / _RENEWALS

    def safe_until(self, sent: float) -> float:
        """Up to when workers may start and run, by a renewal that was sent at this time."""
        return sent + _SAFE * self.seconds

    def fence_at(self, sent: float) -> float:
        """When workers that still run are killed."""
        return sent + _FENCE * self.seconds


def now() -> float:
    """This machine's clock: never set, and going on while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
