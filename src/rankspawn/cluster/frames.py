"""What driver and agents say to each other: a header in JSON, and bytes that nobody looks into.

A stream begins with :data:`GREETING`; what comes before it, such as the words of a login shell, is
skipped and kept for the error. Then frames follow::

    4 bytes   length of the header
    8 bytes   length of the blob
    header    a JSON object whose "is" says what the frame is about
    blob      pieces of the payload, of results, of output

Nothing here is unpickled: what is in a blob is for whoever asked for it. Runs on both sides, and
an agent starts with it, so it imports little.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections import deque

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Header = dict[str, Any]

GREETING = b"\0rankspawn agent 1\n"
# Large blobs go in pieces, between which what is urgent gets its turn.
PIECE = 1 << 18
_LENGTHS = struct.Struct(">IQ")
# A shell that prints more than that before the agent's first word is no channel.
_LONGEST_PREAMBLE = 1 << 16
# The addresses of 100,000 ranks fit well. What is longer is no header of ours.
_LONGEST_HEADER = 1 << 26
_LONGEST_BLOB = 1 << 32
_READ_AT_ONCE = 1 << 18


class GarbledError(Exception):
    """What came is not what an agent, or a driver, says."""


def encode(header: Header, blob: bytes | memoryview = b"") -> bytes:
    """A frame but for its blob, which follows as it is."""
    data = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(data), len(blob)) + data


class FrameReader:
    """Makes frames of bytes as they come, in pieces of any size.

    Attributes:
        preamble: What came before the greeting.
    """

    def __init__(self, *, is_greeted: bool = False) -> None:
        """Expect a greeting first, unless that was heard already."""
        self._data = bytearray()
        self._is_greeted = is_greeted
        self.preamble: bytes = b""

    def feed(self, data: bytes) -> Iterator[tuple[Header, bytes]]:
        """The frames that are complete now.

        Raises:
            GarbledError: This is no stream of frames.
        """
        self._data += data
        if not self._is_greeted and not self._skip_to_greeting():
            return
        done = 0
        while len(self._data) - done >= _LENGTHS.size:
            header_size, blob_size = _LENGTHS.unpack_from(self._data, done)
            if header_size > _LONGEST_HEADER or blob_size > _LONGEST_BLOB:
                raise GarbledError(f"a frame of {header_size} and {blob_size} bytes")
            start = done + _LENGTHS.size
            end = start + header_size + blob_size
            if len(self._data) < end:
                break
            with memoryview(self._data) as view:
                text, blob = (
                    bytes(view[start : start + header_size]),
                    bytes(view[end - blob_size : end]),
                )
            done = end
            yield _read_header(text), blob
        del self._data[:done]

    def _skip_to_greeting(self) -> bool:
        place = self._data.find(GREETING)
        if place < 0:
            self.preamble = bytes(self._data[-_LONGEST_PREAMBLE:])
            if len(self._data) > _LONGEST_PREAMBLE:
                raise GarbledError("no word of an agent in 64 KiB of other output")
            return False
        self.preamble = bytes(self._data[:place])
        del self._data[: place + len(GREETING)]
        self._is_greeted = True
        return True


def _read_header(text: bytes) -> Header:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GarbledError(f"a header that is no JSON: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("is"), str):
        raise GarbledError("a header that does not say what it is about")
    return header


def read_some(fd: int) -> bytes | None:
    """What there is to read; empty at the end, None if there is nothing yet."""
    try:
        return os.read(fd, _READ_AT_ONCE)
    except BlockingIOError:
        return None
    except OSError:  # the other end broke it: an end like any other
        return b""


class Outbox:
    """What is to be written to one channel, urgent frames before pieces of large ones.

    Any thread may put something in; one writes. Frames of one kind keep their order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._urgent: deque[bytes | memoryview] = deque()
        # With the offset of what is cut in pieces when its turn comes: all pieces of a large
        # payload, for a thousand nodes, would be more than the payload.
        self._bulk: deque[tuple[Header, memoryview, int | None]] = deque()
        self._size = 0

    @property
    def size(self) -> int:
        """How many bytes wait, about."""
        return self._size

    def put_raw(self, data: bytes) -> None:
        """Bytes that are no frame: the greeting."""
        with self._lock:
            self._urgent.append(data)
            self._size += len(data)

    def put(self, header: Header, blob: bytes | memoryview = b"") -> None:
        """A frame that goes before all pieces; its blob must not change."""
        head = encode(header, blob)
        with self._lock:
            self._urgent.append(head)
            if len(blob):
                self._urgent.append(blob)
            self._size += len(head) + len(blob)

    def put_pieces(self, header: Header, blob: bytes | memoryview, offset: int = 0) -> None:
        """The blob in several frames with this header, each when nothing urgent waits.

        Args:
            header: Of all of them; each gets its offset besides.
            blob: Must not change.
            offset: That of the first one.
        """
        view = memoryview(blob)
        if len(view):
            with self._lock:
                self._bulk.append((header, view, offset))
                self._size += len(view)

    def put_last(self, header: Header, blob: bytes | memoryview = b"") -> None:
        """A frame after all pieces that wait now."""
        with self._lock:
            self._bulk.append((header, memoryview(blob), None))
            self._size += len(blob) + 1

    def write_to(self, fd: int) -> bool:
        """Write what the descriptor takes now; whether something is left.

        Raises:
            OSError: Nobody reads it any more.
        """
        while True:
            with self._lock:
                if not self._urgent:
                    if not self._bulk:
                        self._size = 0
                        return False
                    self._urgent.extend(self._next_piece())
                data = self._urgent[0]
            try:
                done = os.write(fd, data)
            except BlockingIOError:
                return True
            with self._lock:
                self._size = max(0, self._size - done)
                rest = memoryview(data)[done:]
                if len(rest):
                    self._urgent[0] = rest
                else:
                    self._urgent.popleft()

    def _next_piece(self) -> list[bytes | memoryview]:
        """The next frame of those that are not urgent; called with the lock."""
        header, blob, offset = self._bulk.popleft()
        if offset is not None:
            header = {**header, "offset": offset}
            if len(blob) > PIECE:
                self._bulk.appendleft((header, blob[PIECE:], offset + PIECE))
                blob = blob[:PIECE]
        frame: list[bytes | memoryview] = [encode(header, blob)]
        return [*frame, blob] if len(blob) else frame
