"""File descriptors that belong to the supervising process alone.

A process that the user forks (or that we fork as a worker) inherits every descriptor, and a
copy of a held port or of a lifeline keeps alive what should end with the parent. So each one
is wrapped in an :class:`Owned`, and a forked child drops all of them at once. Programs that
are executed drop them anyway: they are close-on-exec.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_owned: weakref.WeakSet[Closable] = weakref.WeakSet()


class Closable(Protocol):
    """A file, a socket, an :class:`Owned`."""

    def close(self) -> None:
        """Close it; a second call does nothing."""


def close_in_forks(one: Closable) -> None:
    """Have forked children close this, too."""
    _owned.add(one)


class Owned:
    """One descriptor; closed by ``close``, by garbage collection, or in a forked child."""

    __slots__ = ("__weakref__", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        close_in_forks(self)

    def fileno(self) -> int:
        """The number, while it is open."""
        if self._fd < 0:
            raise ValueError("this descriptor was closed")
        return self._fd

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return self._fd < 0

    def close(self) -> None:
        """Close it; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def drop_in_forked_child() -> None:
    """Runs in a forked child: close what belongs to the parent."""
    for one in list(_owned):
        one.close()


# Registered once, at import, because a fork by anybody's code must be covered.
os.register_at_fork(after_in_child=drop_in_forked_child)


def anonymous_file(name: str) -> int:
    """A descriptor of a new file without a name, in memory where the system can.

    It vanishes with its last descriptor, so nothing is left behind however anyone dies.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    import tempfile  # other platforms only

    fd, path = tempfile.mkstemp(prefix=name)
    os.unlink(path)
    return fd


@contextmanager
def stdio_occupied() -> Iterator[None]:
    """Have the numbers 0 to 2 in use, by the null device where they are free.

    In a parent that closed its standard streams new descriptors get these numbers, and a
    worker, which inherits them, would print into them.
    """
    fillers = []
    try:
        while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(fd, True)
            fillers.append(fd)
        os.close(fd)
        yield
    finally:
        for fd in fillers:
            os.close(fd)
