"""Reading what is added to growing files, and waiting for more of it.

For all who show what workers write: ``rankrun`` copies logs as they are (``follow``), and the
view of ``spawn`` puts lines together (``view.sources``).
"""

from __future__ import annotations

import os
import select
from contextlib import suppress

from rankspawn.cpython import call_c
from rankspawn.descriptors import Owned, Waker

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable

CHUNK = 64 * 1024
# Where the system cannot say that a file has grown, we look this often.
_LOOK_SECONDS = 0.1
_IN_MODIFY = 0x2
# Of a file in memory, what was read is freed in steps of this size; the end of it stays for the
# last lines of an error.
_FREED_AT_ONCE = 1 << 20
_KEPT = 64 * 1024
# Of fallocate(2): keep the size, and free the room.
_KEEP_SIZE_PUNCH_HOLE = 3


class Tail:
    """What is added to a file, piece by piece, from a given place on.

    Args:
        file: Belongs to this object from now on.
        start: Where to begin.
    """

    __slots__ = ("_end", "_freed", "file", "position")

    def __init__(self, file: Owned, start: int = 0) -> None:
        self.file: Owned = file
        self.position: int = start
        self._end: int | None = None
        self._freed = 0

    def end_here(self) -> None:
        """Have what is added from now on not read; a second call does nothing."""
        if self._end is None:
            self._end = os.fstat(self.file.fileno()).st_size

    @property
    def is_over(self) -> bool:
        """There is an end, and all before it was read."""
        return self._end is not None and self.position >= self._end

    def read(self) -> bytes:
        """The next piece, of at most :data:`CHUNK` bytes; empty if there is none for now."""
        size = CHUNK if self._end is None else max(0, min(CHUNK, self._end - self.position))
        chunk = os.pread(self.file.fileno(), size, self.position)
        if chunk:
            self.position += len(chunk)
        else:
            # Somebody emptied it; what comes now is new.
            self.position = min(self.position, os.fstat(self.file.fileno()).st_size)
        return chunk

    def free_what_was_read(self) -> None:
        """Free the memory of a file without a name up to here: a rank may print for weeks."""
        end = self.position - _KEPT
        if end - self._freed < _FREED_AT_ONCE:
            return
        import ctypes

        try:
            libc = ctypes.CDLL(None)
            sizes = (ctypes.c_long(self._freed), ctypes.c_long(end - self._freed))
            libc.fallocate(self.file.fileno(), _KEEP_SIZE_PUNCH_HOLE, *sizes)
        except (OSError, AttributeError):  # another system: then it stays
            pass
        self._freed = end

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class Growth:
    """Waits until some file has grown, or somebody wakes it.

    The system tells (inotify), or else whoever waits looks up ten times a second. One thread
    waits; any other may wake it, and change what is watched.

    Attributes:
        is_told: By the system.
    """

    def __init__(self) -> None:
        self._waker = Waker()
        fd = _call("inotify_init1", os.O_CLOEXEC | os.O_NONBLOCK)
        self._inotify = Owned(fd) if fd >= 0 else None
        self.is_told: bool = self._inotify is not None
        self._watched: list[int] = []
        self._poller = select.poll()
        for source in (self._waker, self._inotify):
            if source is not None:
                self._poller.register(source.fileno(), select.POLLIN)

    @property
    def closed(self) -> bool:
        """True after ``close``, and in a forked child."""
        return self._waker.closed

    def fileno(self) -> int | None:
        """Readable once a file has grown; None where the system does not tell."""
        return self._inotify.fileno() if self._inotify is not None and self.is_told else None

    def watch_only(self, paths: Iterable[str]) -> None:
        """Watch these files from now on, and no others."""
        if self._inotify is None:
            return
        # The kernel takes some milliseconds to free a watch. It does so by itself if the watch
        # was removed before, and otherwise in the close() that ends this process.
        for number in self._watched:
            _call("inotify_rm_watch", self._inotify.fileno(), number)
        self._watched = [
            _call("inotify_add_watch", self._inotify.fileno(), os.fsencode(path), _IN_MODIFY)
            for path in paths
        ]
        if -1 in self._watched:
            self.is_told = False  # gone, or too many watches of this user: then by looking

    def wake(self) -> None:
        """Make the wait return, or the next one; from any thread, also after ``close``."""
        self._waker.wake()

    def wait(self, timeout: float | None = None) -> None:
        """Until something was added, or ``wake``; at most ``timeout`` seconds, None for ever."""
        if not self.is_told:
            timeout = _LOOK_SECONDS if timeout is None else min(timeout, _LOOK_SECONDS)
        milliseconds = None if timeout is None else int(timeout * 1000) + (timeout > 0)
        # Which file it was does not matter, nor how often.
        for fd, _ in self._poller.poll(milliseconds):
            with suppress(BlockingIOError):
                os.read(fd, CHUNK)

    def close(self) -> None:
        """Let go of all descriptors; nobody may be waiting."""
        self._waker.close()
        if self._inotify is not None and not self._inotify.closed:
            self.watch_only(())
            self._inotify.close()


def _call(name: str, *arguments: object) -> int:
    """Call a function of the C library that Python's own has no name for; -1 if that fails."""
    result = call_c(name, *arguments)
    return -1 if result is None else result
