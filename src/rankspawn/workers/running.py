"""Groups with running workers: kept, let go of when they are forgotten, settled at exit."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import Protocol

    from rankspawn.supervise.group import Group
    from rankspawn.supervise.outcome import Outcome

    class SettledGroup(Group, Protocol):
        """A group that is brought to its end if nobody does that.

        Attributes:
            grace: Seconds that its ranks get.
            stops_on_failure: Else the others go on.
            what: The function that its ranks run; empty if that is not known.
        """

        grace: float
        stops_on_failure: bool
        what: str

        @property
        def is_daemonic(self) -> bool:
            """It is not waited for, but stopped."""

        @property
        def failures(self) -> list[tuple[int, Outcome]]:
            """Index and outcome of the ranks that failed by themselves."""


# They live as long as their workers, also if nobody keeps the context: with a group its lifeline
# would be closed, and the guardian would take that for our death.
running: set[SettledGroup] = set()
os.register_at_fork(after_in_child=running.clear)
# The process that settles its groups at its exit; a forked one forgets what it was to do.
_settling_pid: int | None = None


def close_forgotten() -> None:
    """Let go of groups whose context was dropped, and whose workers have ended since."""
    for group in list(running):
        if group.owner is not None and group.owner() is None:
            group.collect()
            if group.all_ended:
                group.close()


def settle_at_exit() -> None:
    """Have what nobody joins brought to its end at the exit of this process."""
    global _settling_pid  # noqa: PLW0603 - once per process
    if _settling_pid != os.getpid():
        from multiprocessing import util  # not for programs, which nobody but the launcher ends

        _settling_pid = os.getpid()
        # Before all of multiprocessing's own: workers may still use its queues and managers, and
        # it waits for them without a limit. Not by atexit, which its own children do without.
        util.Finalize(None, _settle, exitpriority=100)


def _settle() -> None:
    if running:
        from rankspawn.workers import settling  # most programs join

        settling.settle(list(running))
