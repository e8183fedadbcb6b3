"""Decisions on their way from a session's thread to the agent, which waits on a descriptor."""

from __future__ import annotations

import contextlib
import os
from collections import deque

from rankspawn.descriptors import Owned
from rankspawn.launch.rendezvous.decisions import Decision

__all__ = ["Outbox"]


class Outbox:
    """A queue with a descriptor that is readable while something is in it."""

    def __init__(self) -> None:
        read, write = os.pipe()
        self._readable, self._signal = Owned(read), Owned(write)
        for fd in (read, write):
            os.set_blocking(fd, False)
        self._decisions: deque[Decision] = deque()

    def fileno(self) -> int:
        """What to wait on."""
        return self._readable.fileno()

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return self._readable.closed

    def put(self, decision: Decision) -> None:
        """Add a decision, from any thread."""
        self._decisions.append(decision)
        # A full pipe is readable enough.
        with contextlib.suppress(BlockingIOError):
            os.write(self._signal.fileno(), b"\0")

    def take(self) -> list[Decision]:
        """All that are there, oldest first."""
        # The pipe first: what is added in between makes it readable again.
        with contextlib.suppress(BlockingIOError):
            os.read(self._readable.fileno(), 4096)
        taken = []
        while self._decisions:
            taken.append(self._decisions.popleft())
        return taken

    def close(self) -> None:
        """Close the descriptors; a second call does nothing."""
        self._readable.close()
        self._signal.close()
