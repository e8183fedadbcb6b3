"""File descriptors that belong to the supervising process alone.

Each is wrapped in an :class:`Owned`, and a forked child closes all of them at once. Programs
that are executed do not get them anyway: they are close-on-exec.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from rankspawn.portable import is_portable, open_event, open_memory, open_unlinked

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import Protocol

    class Closable(Protocol):
        """A file, a socket, an :class:`Owned`."""

        def close(self) -> None:
            """Close the object; a second call does nothing."""


# Which numbers are owned, a byte for each: a forked worker closes them in a few calls and touches
# none of the objects, each of which would cost it a page. There are thousands in a large group.
_owned = bytearray()
# How many forks lie between this process and the one that imported this module. An object of
# an earlier one does not own the number it holds any more.
_generation = 0
# Of a fork under way, by the id of its thread: the descriptors that stay open in the child.
_kept_in_fork: dict[int, Sequence[int]] = {}
_closables: weakref.WeakSet[Closable] = weakref.WeakSet()
# Descriptors that the rest of a program opens while workers are being started.
_SPARE = 64
# What an eventfd takes, as the machine has its numbers; of a FIFO all that is in it is read.
_ONE = (1).to_bytes(8, sys.byteorder)
_AT_ONCE = 1 << 16


def close_in_forks(closable: Closable) -> None:
    """Have forked children close ``closable``, too; it is not kept alive by this."""
    _closables.add(closable)


class Owned:
    """A descriptor that ``close``, garbage collection, or a fork (in the child) closes."""

    __slots__ = ("_fd", "_generation")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._generation = _generation
        if fd >= len(_owned):
            # In one call, so that two threads can do it at once: more bytes than needed do no harm.
            _owned.extend(bytes(fd + 1))
        _owned[fd] = True

    def fileno(self) -> int:
        """The number of the descriptor; ValueError if it is not open here."""
        if self.closed:
            raise ValueError("this descriptor was closed")
        return self._fd

    @property
    def closed(self) -> bool:
        """Whether this object owns no descriptor: after ``close``, and in a forked child."""
        return self._fd < 0 or self._generation != _generation

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if not self.closed:
            # The number is free for others from os.close on, so it is forgotten before.
            fd, self._fd = self._fd, -1
            _owned[fd] = False
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class Waker(Owned):
    """A descriptor that ends waits: readable from a :meth:`wake` to the next :meth:`clear`.

    An eventfd, or a FIFO where there is none: one number for both ends, and no reader's end whose
    closing would be an error for whoever wakes. Python's own wakeup descriptor has to be a pipe,
    because an eventfd does not take the single byte that is written for a signal (interrupts.py).
    """

    __slots__ = ("_using",)

    def __init__(self) -> None:
        self._fd = -1  # closed, if there are too many open files
        # Somebody may wake while another thread closes, and a number that was just closed may
        # be somebody else's already. A handler of a signal may do so in the middle of either.
        self._using = threading.RLock()
        super().__init__(open_event())

    def wake(self) -> None:
        """Make it readable; from any thread, and also after ``close``, when it does nothing."""
        if self.closed:  # in a forked child nobody may be left to let go of the lock
            return
        with self._using:
            if not self.closed:
                with suppress(BlockingIOError):  # a FIFO is full, and so readable
                    os.write(self._fd, _ONE)

    def clear(self) -> None:
        """Make it unreadable, before looking at what happened: what comes later wakes again."""
        with suppress(BlockingIOError):
            os.read(self.fileno(), _AT_ONCE)

    def close(self) -> None:
        """Close it; a second call does nothing."""
        if not self.closed:
            with self._using:
                super().close()


class kept_in_fork:
    """A block in which a child that this thread forks keeps these descriptors, as its own.

    A class, because it is entered for every rank between two forks, where each page that is
    touched gets copied: a generator of contextlib touches more of them.
    """

    __slots__ = ("_fds", "_thread")

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds = fds
        self._thread = threading.get_ident()

    def __enter__(self) -> None:
        _kept_in_fork[self._thread] = self._fds

    def __exit__(self, *_: object) -> None:
        _kept_in_fork.pop(self._thread, None)


def drop_in_forked_child() -> None:
    """Runs in a forked child: close what belongs to the parent.

    A copy of a held port or of a lifeline would keep alive what should end with the parent.
    """
    global _generation  # noqa: PLW0603 - the process is in this state, not an object
    _generation += 1
    for fd in _kept_in_fork.get(threading.get_ident(), ()):
        _owned[fd] = False
    # It was of this fork; in later ones the same numbers may mean other descriptors.
    _kept_in_fork.clear()
    end = 0
    while (first := _owned.find(1, end)) >= 0:  # runs of consecutive numbers
        end = _owned.find(0, first)
        end = len(_owned) if end < 0 else end
        os.closerange(first, end)
    _owned.clear()
    if len(_closables):
        for closable in list(_closables):
            closable.close()


# Registered once, at import, because a fork by anybody's code must be covered, the user's too.
os.register_at_fork(after_in_child=drop_in_forked_child)


def anonymous_file(name: str) -> int:
    """The descriptor of a new file without a path, in memory where the system can.

    The file vanishes with its last descriptor, so nothing is left however its users die.

    Raises:
        OSError: The limit on the size of files leaves no room for what we write to them.
    """
    from rankspawn.file_limit import check_room

    check_room()
    return open_unlinked(name) if is_portable() else open_memory(name)


def write_patiently(fd: int, data: bytes | memoryview) -> int:
    """Write some bytes of the data, at least one, and say how many.

    Waits for the reader, also if whoever gave us this descriptor does not want to wait.

    Raises:
        OSError: Nobody is there any more: the reader of a pipe left, a terminal was closed.
    """
    while True:
        try:
            return os.write(fd, data)
        except BlockingIOError:
            import select

            poller = select.poll()  # select() takes no number above 1,023
            poller.register(fd, select.POLLOUT)
            poller.poll()


@contextmanager
def stdio_occupied() -> Iterator[None]:
    """A block in which the numbers 0 to 2 are in use, by the null device where they were free.

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


def make_room_for_descriptors(count: int) -> None:
    """Raise the soft limit of open files if ``count`` more would not fit.

    Raises:
        OSError: They would not fit under the hard limit either.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _count_open() + count + _SPARE
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise OSError(
            errno.EMFILE,
            f"{needed} open files are needed, but this process may have {hard} at most "
            "(the hard limit, see `ulimit -Hn`)",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _count_open() -> int:
    """How many descriptors this process has; none are known of where no folder lists them."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(FileNotFoundError):
            return len(os.listdir(folder))
    return 0
