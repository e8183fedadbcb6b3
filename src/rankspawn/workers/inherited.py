"""What a worker gets from its parent beside the payload. Runs in the worker.

Descriptors that objects in the payload bring along (queues, pipes, shared tensors), where
``detach()`` is what multiprocessing calls to take one over; and the job's mark.
"""

from __future__ import annotations

# Runs in the worker: what came with it from the parent, in the order of the payload's places.
received: list[int] = []
MARK_SIZE = 4096
_carried: list[object] = []


def carry_mark(fd: int) -> None:
    """For a forked worker: map the file of that name for as long as it lives; see ``marker``."""
    import mmap
    import os

    _carried.append(mmap.mmap(fd, MARK_SIZE, prot=mmap.PROT_READ))
    os.close(fd)  # the mapping keeps a copy


class SameFd:
    """A descriptor that has the same number in the worker (start method spawn)."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def detach(self) -> int:
        """The number; whoever asks owns it from now on."""
        return self.fd


class ReceivedFd:
    """A descriptor that was sent, and got another number on the way (forkserver)."""

    def __init__(self, place: int) -> None:
        self.place = place

    def detach(self) -> int:
        """The number; whoever asks owns it from now on."""
        return received[self.place]
