"""Records of ``logging`` as bytes, from ranks to the parent that has the handlers.

All ranks of a group append to one file in memory, each record by one write, so that nobody waits
and their order is kept. A rank that is killed in the middle of a write leaves a part of a frame:
whoever reads looks for the next one.
"""

from __future__ import annotations

import logging
import pickle
import zlib
from struct import Struct

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import Any

# What a frame begins with, the length of its data, and their checksum.
_HEAD = Struct("<4sII")
_BEGIN = b"\xd7LR\x1e"
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# Deeper than what people log; what refers to itself has no end.
_DEEPEST = 5
_formatter = logging.Formatter()


def pack_record(record: logging.LogRecord, rank: int) -> bytes:
    """One record as a frame.

    Only built-in types go along, so that reading it neither imports nor calls anything: a message
    whose arguments are others is put together here, and other values are their text.

    Args:
        record: Stays as it is.
        rank: Whose it is.
    """
    told = dict(record.__dict__)
    if type(record.msg) is not str or not _is_plain(record.args):
        told["msg"], told["args"] = record.getMessage(), None
    if record.exc_info and not record.exc_text and record.exc_info[0] is not None:
        told["exc_text"] = _formatter.formatException(record.exc_info)
    told["exc_info"] = None
    fields = {name: value if _is_plain(value) else str(value) for name, value in told.items()}
    data = pickle.dumps((rank, fields), protocol=5)
    return _HEAD.pack(_BEGIN, len(data), zlib.crc32(data)) + data


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether it is of built-in types alone; a subclass may be anybody's."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if depth >= _DEEPEST:
        return False
    if kind is dict:
        return all(_is_plain(each, depth + 1) for item in value.items() for each in item)
    return kind in (tuple, list) and all(_is_plain(each, depth + 1) for each in value)


class FrameReader:
    """Puts frames together from pieces of the file."""

    def __init__(self) -> None:
        self._rest = b""
        # Not joined before there is enough: a long record comes in many pieces.
        self._pieces: list[bytes] = []
        self._missing = 0

    def feed(self, piece: bytes) -> list[tuple[int, dict[str, Any]]]:
        """Rank and fields of each record that is whole by now."""
        self._pieces.append(piece)
        self._missing -= len(piece)
        if self._missing > 0:
            return []
        self._join()
        return self._take()

    def _join(self) -> None:
        self._rest = b"".join((self._rest, *self._pieces))
        self._pieces.clear()
        self._missing = 0

    def finish(self) -> list[tuple[int, dict[str, Any]]]:
        """Those after a part of a frame that nobody goes on with."""
        self._join()
        found = []
        while self._rest:
            self._skip()
            found += self._take()
        return found

    def _take(self) -> list[tuple[int, dict[str, Any]]]:
        found = []
        data = memoryview(self._rest)
        at = 0
        while len(data) - at >= _HEAD.size:
            begin, length, checksum = _HEAD.unpack_from(data, at)
            body = data[at + _HEAD.size : at + _HEAD.size + length]
            if begin == _BEGIN and len(body) < length:
                self._missing = length - len(body)
                break
            if begin == _BEGIN and zlib.crc32(body) == checksum:
                found.append(pickle.loads(body))
                at += _HEAD.size + length
            else:
                at = self._next_begin(at + 1)
        self._rest = self._rest[at:]
        return found

    def _skip(self) -> None:
        self._rest = self._rest[self._next_begin(1) :]

    def _next_begin(self, at: int) -> int:
        """Where the next frame may begin, from there on; a part of its first bytes may be there."""
        found = self._rest.find(_BEGIN, at)
        return max(at, len(self._rest) - len(_BEGIN) + 1) if found < 0 else found
