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
    from typing import BinaryIO

# A machine word: every number in these files takes one.
WORD = 8
PAGE = 4096
# A short pickle is read; mapping pays only above this.
_WORTH_MAPPING = 64 * 1024
# One write() moves at most about 2 GiB on Linux.
_WRITE_AT_MOST = 1 << 30


def write_parcel(
    fd: int, offset: int, dump: Callable[[BinaryIO], list[memoryview]]
) -> tuple[int, int]:
    """Pickle into the file at ``offset``; return the table's offset and the file's new end.

    Args:
        fd: The file; its position is not used by readers.
        offset: Where to begin.
        dump: Writes the pickle to the file it is given; returns the buffers left out of it.
    """
    offset = _aligned(offset, WORD)
    os.lseek(fd, offset, os.SEEK_SET)
    with open(fd, "wb", closefd=False) as stream:
        buffers = dump(stream)
    end = os.lseek(fd, 0, os.SEEK_CUR)
    words = [offset, end - offset, len(buffers)]
    for raw in buffers:
        start = _aligned(end, PAGE)
        _write_all(fd, start, raw)
        end = start + raw.nbytes
        words += [start, raw.nbytes]
    table = _aligned(end, WORD)
    _write_all(fd, table, memoryview(pack_words(words)))
    return table, table + len(words) * WORD


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


def _write_all(fd: int, offset: int, data: memoryview) -> None:
    while data.nbytes:
        done = os.pwrite(fd, data[:_WRITE_AT_MOST], offset)
        data = data[done:]
        offset += done


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
