"""File descriptors that belong to the supervising process alone.

A process that the user forks (or that we fork as a worker) inherits every descriptor, and a
copy of a held port or of a lifeline keeps alive what should end with the parent. So each one
is wrapped in an :class:`Owned`, and a forked child drops all of them at once. Programs that
are executed drop them anyway: they are close-on-exec.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import Protocol

    class Closable(Protocol):
        """A file, a socket, an :class:`Owned`."""

        def close(self) -> None:
            """Close it; a second call does nothing."""


# Which numbers are owned, a byte for each: a forked worker closes them in a few calls and touches
# none of the objects, each of which would cost it a page. There are thousands in a large group.
_owned = bytearray()
# How many forks lie between this process and the one that imported this module. An object of
# an earlier one does not own the number it holds any more.
_generation = 0
# Of a fork under way, by its thread: the descriptors that the child takes over.
_handed_over: dict[int, Sequence[int]] = {}
_closables: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_in_forks(one: Closable) -> None:
    """Have forked children close this, too."""
    _closables.add(one)


class Owned:
    """One descriptor; closed by ``close``, by garbage collection, or in a forked child."""

    __slots__ = ("_fd", "_generation")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._generation = _generation
        if fd >= len(_owned):
            _owned.extend(bytes(fd + 1))  # in one call, so two threads can do it at once
        _owned[fd] = True

    def fileno(self) -> int:
        """The number, while it is open."""
        if self.closed:
            raise ValueError("this descriptor was closed")
        return self._fd

    @property
    def closed(self) -> bool:
        """True after ``close``, and in a forked child."""
        return self._fd < 0 or self._generation != _generation

    def close(self) -> None:
        """Close it; a second call does nothing."""
        if not self.closed:
            fd, self._fd = self._fd, -1
            _owned[fd] = False
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class handed_over:
    """A child that this thread forks in here keeps these descriptors, as its own."""

    __slots__ = ("_fds", "_thread")

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds = fds
        self._thread = threading.get_ident()

    def __enter__(self) -> None:
        _handed_over[self._thread] = self._fds

    def __exit__(self, *_: object) -> None:
        _handed_over.pop(self._thread, None)


def drop_in_forked_child() -> None:
    """Runs in a forked child: close what belongs to the parent."""
    global _generation  # noqa: PLW0603 - the process is in this state, not an object
    _generation += 1
    for fd in _handed_over.get(threading.get_ident(), ()):
        _owned[fd] = False
    _handed_over.clear()  # was of this fork; the same numbers may mean others in later ones
    end = 0
    while (first := _owned.find(1, end)) >= 0:  # runs of consecutive numbers
        end = _owned.find(0, first)
        end = len(_owned) if end < 0 else end
        os.closerange(first, end)
    _owned.clear()
    if len(_closables):
        for one in list(_closables):
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
