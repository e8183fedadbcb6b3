"""Pickles with their large buffers, in one file that both sides can map.

Used for arguments (one file for all ranks) and for results (one file per rank)::

    table at T:  stream offset, stream length, number of buffers, (offset, length) of each
    stream:      the pickle, protocol 5
    buffers:     page-aligned, so that a reader maps them privately: no copy is made, and its
                 array is writable and its own all the same

Runs on both sides; a worker loads it first, so it imports only what the interpreter has
loaded already, and ``mmap`` when there are buffers to map.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

    # ``pwrite`` of one file: bytes and offset to the number of bytes that were written.
    Write = Callable[[bytes | memoryview, int], int]

# A machine word: every number in these files takes one.
WORD = 8
PAGE = 4096
# A short pickle is read; mapping pays only above this.
_WORTH_MAPPING = 64 * 1024
# One write() moves at most about 2 GiB on Linux.
_WRITE_AT_MOST = 1 << 30


def write_parcel(
    write: Write, offset: int, dump: Callable[[BinaryIO], list[memoryview]]
) -> tuple[int, int]:
    """Pickle into a file at ``offset``; return the table's offset and the file's new end.

    Args:
        write: Writes to the file, as ``pwrite`` does.
        offset: Where to begin.
        dump: Writes the pickle to the file it is given; returns the buffers left out of it.
    """
    offset = _aligned(offset, WORD)
    stream: Any = _Stream(write, offset)
    buffers = dump(stream)
    end = stream.tell()
    words = [offset, end - offset, len(buffers)]
    for raw in buffers:
        start = _aligned(end, PAGE)
        end = start + write_all(write, start, raw)
        words += [start, raw.nbytes]
    table = _aligned(end, WORD)
    return table, table + write_all(write, table, memoryview(pack_words(words)))


class _Stream:
    """What a pickler writes to.

    No file of Python's: user code runs while something is pickled, and may change which file a
    descriptor stands for, so each write has to be made by whoever knows.
    """

    def __init__(self, write: Write, offset: int) -> None:
        self._write = write
        self._offset = offset

    def write(self, data: bytes) -> int:
        """Picklers collect what is small, and write some 64 KiB at once."""
        with memoryview(data).cast("B") as view:
            done = write_all(self._write, self._offset, view)
        self._offset += done
        return done

    def tell(self) -> int:
        """Where the next write goes."""
        return self._offset

    def seek(self, offset: int) -> None:
        """Go on from there."""
        self._offset = offset

    def truncate(self) -> None:
        """What comes after is written over, or not referred to."""


def open_parcel(fd: int, table: int) -> tuple[bytes | memoryview, list[memoryview]]:
    """The pickle and its buffers, for ``loads``.

    The file may be closed afterwards: what is mapped lives as long as it is used.

    Args:
        fd: The file.
        table: What :func:`write_parcel` returned.
    """
    offset, length, count = unpack_words(os.pread(fd, 3 * WORD, table))
    if not count and length < _WORTH_MAPPING:
        return os.pread(fd, length, offset), []
    places = unpack_words(os.pread(fd, 2 * count * WORD, table + 3 * WORD))
    view = _map_privately(fd, table)
    buffers = [
        view[start : start + size] for start, size in zip(places[::2], places[1::2], strict=True)
    ]
    return view[offset : offset + length], buffers


def _map_privately(fd: int, length: int) -> memoryview:
    """A writable view of the file whose changes only this process sees."""
    import mmap

    # One mapping for all buffers: before Python 3.13 each mmap object keeps a descriptor.
    options = {"trackfd": False} if sys.version_info >= (3, 13) else {}
    return memoryview(
        mmap.mmap(
            fd,
            length,
            flags=mmap.MAP_PRIVATE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
            **options,
        )
    )


def write_all(write: Write, offset: int, data: memoryview) -> int:
    """Write all of the bytes; return how many."""
    size = data.nbytes
    while data.nbytes:
        done = write(data[:_WRITE_AT_MOST], offset)
        data = data[done:]
        offset += done
    return size


def _aligned(offset: int, to: int) -> int:
    return -(-offset // to) * to


def pack_words(words: list[int]) -> bytes:
    """Numbers as 8 bytes each."""
    return b"".join(word.to_bytes(WORD, "little") for word in words)


def unpack_words(data: bytes) -> list[int]:
    """What :func:`pack_words` packed."""
    return [
        int.from_bytes(data[start : start + WORD], "little") for start in range(0, len(data), WORD)
    ]
