"""What stands for a rank's process, and for its result, where they are on another machine."""

from __future__ import annotations

import signal
import time

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.cluster.group import ClusterGroup


class Received:
    """A pickle that came over a channel, in memory; see ``workers.kept.Kept``."""

    def __init__(self, pieces: list[memoryview]) -> None:
        self.pieces = pieces

    def free_the_rest(self) -> None:
        """There is nothing else."""


class RemoteProcess:
    """What stands for a rank's process; see ``supervise.group.StartedProcess``."""

    __slots__ = ("_group", "_index", "host", "pid")

    # A descriptor per rank is more than a process may have; few programs want one.
    makes_sentinel = True

    def __init__(self, group: ClusterGroup, index: int, pid: int, host: str) -> None:
        self._group, self._index = group, index
        self.pid: int = pid
        self.host: str = host

    @property
    def outlives_driver(self) -> bool:
        """It runs on when this process ends."""
        return self._group.outlives_driver

    @property
    def sentinel(self) -> int:
        """Readable once it ended; a descriptor that is made by asking for it."""
        return self._group.sentinel_of(self._index)

    def poll(self, flag: int = 0) -> int | None:  # noqa: ARG002 - as multiprocessing has it
        """The exit code, minus the number for a signal; None while it runs."""
        group = self._group
        return group.outcomes[self._index].exit_code if group.has_ended(self._index) else None

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end; None if the time ran out first."""
        if timeout != 0:
            deadline = None if timeout is None else time.monotonic() + timeout
            self._group.wait(lambda: self._group.has_ended(self._index), deadline)
        return self.poll()

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._group.signal(self._index, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._group.signal(self._index, signal.SIGKILL)

    def interrupt(self) -> None:
        """Send SIGINT."""
        self._group.signal(self._index, signal.SIGINT)

    def close(self) -> None:
        """The group has all that there is to let go of."""
