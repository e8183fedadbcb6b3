"""What the parent keeps of a rank's outcome file, once that is closed.

It needs no descriptor, and no more memory than it is itself: small buffers are copied, and large
ones are mapped one by one.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Place = tuple[int, int]  # offset and length

# A copy of this takes a tenth of a millisecond. And a process may have 65,530 mappings.
_WORTH_MAPPING = 1 << 20
_MAP_FIXED = 0x10  # the module mmap has no name for it
_PROT = mmap.PROT_READ | mmap.PROT_WRITE
# How often this process was forked.
_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - the process is in this state, not an object
    _forks += 1


os.register_at_fork(before=_count_fork)


class Kept:
    """What is in some places of a file, each by itself; the file may be closed afterwards.

    Attributes:
        pieces: What is there, in the order of the places; each one is writable.
    """

    def __init__(self, fd: int, places: Sequence[Place], *, may_map: bool) -> None:
        """Copy what is small, map what is large.

        Args:
            fd: The file.
            places: Offsets and lengths.
            may_map: The file cannot get smaller: what is mapped beyond its end kills who reads
                it, by SIGBUS.
        """
        self._large = sorted(place for place in places if may_map and place[1] >= _WORTH_MAPPING)
        self._pages: dict[Place, mmap.mmap] = {}
        self._forks = _forks
        self._everything: mmap.mmap | None = None
        try:
            self._map_large(fd)
        except (OSError, ImportError, AttributeError):  # too many mappings, or no ctypes
            self._large.clear()
        self.pieces: list[memoryview] = [
            self._view(place) if place in self._large else _copy(fd, *place) for place in places
        ]

    def _map_large(self, fd: int) -> None:
        for place in self._large:
            offset, length = place
            before = offset % mmap.ALLOCATIONGRANULARITY
            # Privately: changes are seen by this process only, and what it forks has its own.
            self._pages[place] = _map(fd, offset - before, before + length, mmap.MAP_PRIVATE)
        if self._large:
            self._everything = _map(fd, 0, sum(self._large[-1]), mmap.MAP_SHARED)

    def _view(self, place: Place) -> memoryview:
        return memoryview(self._pages[place])[-place[1] :]

    def free_the_rest(self) -> None:
        """Give back what is not needed: at once what was copied, and each large piece after use.

        Any mapping of a file keeps all of its pages. Not called before somebody wants the pieces:
        until then they may have to be read from the file once more.
        """
        everything, self._everything = self._everything, None
        if everything is None:
            return
        end = 0
        for offset, length in self._large:
            _free(everything, end, offset)
            end = offset + length
            pages, forks = self._pages.pop((offset, length)), self._forks
            finalizer = weakref.finalize(pages, _free_unless_forked, everything, offset, end, forks)
            finalizer.atexit = False


def _copy(fd: int, offset: int, length: int) -> memoryview:
    data = memoryview(bytearray(length))
    done = 0
    while done < length:
        count = os.preadv(fd, [data[done:]], offset + done)
        if not count:
            raise EOFError(f"{length - done} bytes are missing")
        done += count
    return data


def _free_unless_forked(everything: mmap.mmap, start: int, end: int, forks: int) -> None:
    """What was forked since has the same pages, and may still read them."""
    if forks == _forks:
        _free(everything, start, end)


def _free(everything: mmap.mmap, start: int, end: int) -> None:
    """Give back the whole pages of this part of the file."""
    start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    end = end // mmap.PAGESIZE * mmap.PAGESIZE
    if start < end:
        everything.madvise(mmap.MADV_REMOVE, start, end - start)


def _map(fd: int, offset: int, length: int, flags: int) -> mmap.mmap:
    """A mapping that keeps no descriptor."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, length, flags=flags, prot=_PROT, offset=offset, trackfd=False)
    # Before, an mmap object of a file has a descriptor of its own. So it is made without a file,
    # and the file is put under it: whatever is there is unmapped with the object.
    own = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=_PROT)
    import ctypes  # with large results only: 6 ms

    map_at: Any = ctypes.CDLL(None, use_errno=True).mmap
    map_at.restype = ctypes.c_void_p
    number, size = ctypes.c_int, ctypes.c_size_t
    map_at.argtypes = [ctypes.c_void_p, size, number, number, number, ctypes.c_long]
    place = ctypes.addressof(ctypes.c_char.from_buffer(own))
    if map_at(place, length, _PROT, flags | _MAP_FIXED, fd, offset) != place:
        raise OSError(ctypes.get_errno(), "mmap failed")
    return own
