"""The memory that ranks share: found, opened, mapped, with room reserved before it is written.

The file of all ranks is made by whoever started them (workers/meeting.py); that of a part of them
by its first rank. It has no name, and only processes of this user can open it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os

from rankspawn.parallel.layout import PAGE, Layout
from rankspawn.workers.meeting import write_entries

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

# Of less, it is not looked whether a control group has so much: that takes longer than the rest.
_WORTH_A_LOOK = 1 << 20


def open_at(address: str) -> int:
    """A descriptor of the file at this address, ``pid:fd:device:inode``.

    Raises:
        RuntimeError: Whoever has it is gone, or it cannot be reached from here.
    """
    pid, number, *identity = (int(part) for part in address.split(":"))
    path = f"/proc/{pid}/fd/{number}"
    try:
        # Looked at before it is opened: that would wait, or more, with some files.
        if _identity(path) != tuple(identity):
            raise FileNotFoundError("the number means another file by now")
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RuntimeError(
            f"the memory that ranks share cannot be reached at process {pid} ({error}): that "
            "process is gone, or this one runs as another user or in another container"
        ) from error
    if _identity(fd) != tuple(identity):
        os.close(fd)
        raise RuntimeError(f"process {pid}, which had the memory that ranks share, is gone")
    return fd


def address_of(fd: int) -> str:
    """Where other processes find a file that this one has open."""
    device, inode = _identity(fd)
    return f"{os.getpid()}:{fd}:{device}:{inode}"


def _identity(file: int | str) -> tuple[int, int]:
    status = os.stat(file)
    return status.st_dev, status.st_ino


def _stretch(fd: int, length: int) -> None:
    """Make a file so long, which takes no memory.

    Raises:
        MemoryError: It may not be; files in memory are files, too, to `ulimit -f`.
    """
    try:
        os.ftruncate(fd, length)
    except OSError as error:
        raise no_room(length, error) from error


def _forbid_cutting(fd: int) -> None:
    """Nobody can make the file smaller any more: what is mapped behind its end is a SIGBUS."""
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except OSError:  # not in memory, where the system has no such files
        return


def take_room(fd: int, offset: int, length: int) -> None:
    """Take memory for a part of a file before it is written.

    A page that cannot be had when it is first written is a SIGBUS, which nobody can handle; and
    for one that a control group does not have, the kernel kills one of its processes.

    Raises:
        MemoryError: There is no room.
    """
    if length >= _WORTH_A_LOOK:
        from rankspawn.machine import Cgroups  # for large data only

        left = Cgroups().memory_left()
        if left is not None and left < length:
            why = f"the control group has {left:,} bytes left"
            raise no_room(length, OSError(errno.ENOMEM, why))
    try:
        os.posix_fallocate(fd, offset, length)
    except OSError as error:
        raise no_room(length, error) from error


def no_room(length: int, error: OSError) -> MemoryError:
    """The error that says what there was no room for."""
    return MemoryError(f"no room for {length:,} bytes of memory that ranks share: {error.strerror}")


class Region:
    """One shared file, mapped in parts when they are first needed.

    Args:
        fd: The file; the region closes it.
        size: How many ranks share it.

    Attributes:
        layout: Where everything is.
        controls: The words, announcements and small data of all ranks.
        words: The same as 32-bit words.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.layout: Layout = Layout(size)
        self._fd = fd
        self._maps: list[mmap.mmap] = []
        self._views: list[memoryview] = []
        self._addresses: list[object] = []
        self._stages: memoryview | None = None
        self._reserved: set[tuple[int, int]] = set()
        # Without memory; it makes mappings possible of what nobody has written yet. Each rank does
        # it with the same number, so it never cuts anything off.
        try:
            _stretch(fd, self.layout.end)
            _forbid_cutting(fd)
            self.reserve(0, self.layout.controls_end)
            self.controls: memoryview = self.map(0, self.layout.controls_end)
        except BaseException:
            os.close(fd)
            raise
        self.words: memoryview = self.controls.cast("I")
        self._views.append(self.words)
        pointer = ctypes.c_char.from_buffer(self.controls)
        self._addresses.append(pointer)
        self.base: int = ctypes.addressof(pointer)

    def list_processes(self, pids: Sequence[int]) -> None:
        """Write down who takes part; see ``workers/meeting.py``."""
        write_entries(self._fd, pids)

    def lock(self, rank: int) -> None:
        """Wait until no other process claims this rank; the system lets go if one dies."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, rank)

    def unlock(self, rank: int) -> None:
        """Let others claim it."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, rank)

    def reserve(self, offset: int, length: int) -> None:
        """Take memory for a part before it is written, once.

        Raises:
            MemoryError: There is no room.
        """
        if (offset, length) not in self._reserved:
            take_room(self._fd, offset, length)
            self._reserved.add((offset, length))

    def map(self, offset: int, length: int) -> memoryview:
        """A part of the file as bytes.

        Raises:
            MemoryError: There is no room for it in the addresses of this process.
        """
        assert offset % PAGE == 0, "the system maps whole pages"
        try:
            part = mmap.mmap(self._fd, length, offset=offset)
        except OSError as error:  # beyond `ulimit -v`
            raise no_room(length, error) from error
        view = memoryview(part)
        self._maps.append(part)
        self._views.append(view)
        return view

    def stages(self, rank: int) -> memoryview:
        """All ranks' room for large data; that of the given rank is reserved."""
        layout = self.layout
        self.reserve(layout.controls_end + layout.stage_offset(rank, 0), 2 * layout.stage)
        if self._stages is None:
            self._stages = self.map(layout.controls_end, layout.stages_end - layout.controls_end)
        return self._stages

    def close(self) -> None:
        """Let go of the memory; a second call does nothing."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        self._addresses.clear()
        for view in reversed(self._views):
            view.release()
        for part in self._maps:
            try:
                part.close()
            except BufferError:  # somebody still has a view of it, and frees it with that
                continue
