"""Descriptors that objects in the payload bring along (queues, pipes, shared tensors).

Runs in the worker, when the payload is unpickled: ``detach()`` is what multiprocessing calls
to take a descriptor over.
"""

from __future__ import annotations

# Runs in the worker: what came with it from the parent, in the order of the payload's places.
received: list[int] = []


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
