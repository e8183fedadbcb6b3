"""Where programs say how far they are: a file in memory with a page for each.

A program of ``rankrun`` that calls ``rankspawn.report`` finds the file through a variable and opens
it at the launcher (``/proc/<pid>/fd/<n>``), as ranks find where they can meet. A page that nobody
writes to takes no memory.
"""

from __future__ import annotations

import os
from contextlib import suppress

from rankspawn.descriptors import Owned, anonymous_file

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable

# The process that has the file, its number there, its device and inode, the page, and 1 if somebody
# looks all the time.
STEPS_VARIABLE = "RANKSPAWN_STEPS"
# What the file is called in /proc/<pid>/fd, where whoever looks at the launcher finds it.
BOARD_FILE = "rankspawn-steps"
_PAGE = 4096
# In a page: who writes there, and then what that says.
_WRITER_AT, _RECORD_AT, _WORD = 0, 64, 8


class Board(Owned):
    """The file, from before the start of the programs to the end of their group."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(anonymous_file(BOARD_FILE))
        os.fchmod(self._fd, 0o600)

    def address(self, index: int, *, is_looked_at: bool) -> str:
        """The value of the variable for one of the programs."""
        status = os.fstat(self._fd)
        place = f"{os.getpid()}:{self._fd}:{status.st_dev}:{status.st_ino}"
        return f"{place}:{index}:{int(is_looked_at)}"

    def read(self, index: int) -> bytes:
        """What this program said last, as a record; empty if it said nothing."""
        with suppress(OSError, ValueError):  # the group was closed
            return read_page(self.fileno(), index)
        return b""


def read_page(fd: int, index: int) -> bytes:
    """What is said on a page, as a record; empty if that is nothing."""
    record = os.pread(fd, _PAGE - _RECORD_AT, index * _PAGE + _RECORD_AT)
    return record if any(record[:_WORD]) else b""


class Page:
    """The page of this program, to write to.

    Attributes:
        is_looked_at: Somebody reads it all the time.
    """

    def __init__(self, fd: int, index: int, *, is_looked_at: bool) -> None:
        self.is_looked_at: bool = is_looked_at
        self._file = Owned(fd)
        self._start = index * _PAGE

    def claim(self) -> bool:
        """Whether this process is the one that writes here: the first that wants to.

        What a rank starts has its variables as well, and is no rank.
        """
        fd, at = self._file.fileno(), self._start + _WRITER_AT
        writer = int.from_bytes(os.pread(fd, _WORD, at), "little")
        if not writer:
            os.pwrite(fd, os.getpid().to_bytes(_WORD, "little"), at)
        return writer in (0, os.getpid())

    def put_steps(self, record: bytes) -> None:
        """Write a record over the one before."""
        os.pwrite(self._file.fileno(), record, self._start + _RECORD_AT)

    def close(self) -> None:
        """Let go of it."""
        self._file.close()

    def at_end(self, write: Callable[[], None]) -> None:
        """Have the last call, if that was put off, written when the program ends."""
        import atexit

        atexit.register(write)


def open_page() -> Page | None:
    """The page of this program; None if it has none, or that is not to be had."""
    try:
        pid, number, device, inode, index, looked_at = os.environ[STEPS_VARIABLE].split(":")
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        page = Page(fd, int(index), is_looked_at=looked_at == "1")
        status = os.fstat(fd)
        # By now that process may be another one, and its file another file.
        is_ours = (str(status.st_dev), str(status.st_ino)) == (device, inode)
        if is_ours and page.claim():
            return page
        page.close()
    except (KeyError, ValueError, OSError):
        pass
    return None
