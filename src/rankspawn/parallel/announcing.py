"""What a rank announces of its next call, for the others to compare with theirs.

The signature has to be the same on all ranks: the collective, and the operation, type, shape and
root where it has them. What may differ stands beside it: how many bytes this rank brings, where in
shared memory they are, what only its root knows, and the caller's line.
"""

from __future__ import annotations

import struct
import sys
from functools import lru_cache
from hashlib import blake2b

from rankspawn.errors import CollectiveMismatchError
from rankspawn.parallel.layout import (
    DETAILS_AT,
    DETAILS_ROOM,
    PLACE_AT,
    PLACE_ROOM,
    SIGNATURE_AT,
    SIGNATURE_ROOM,
    Layout,
)

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, FrameType

# Bytes, block and offset; the lengths of the texts; the line.
_NUMBERS = struct.Struct("<QQQIIII")
# Users know their own lines: of a backward that exchanges gradients, the one that calls it.
_NOT_THE_USERS = frozenset(("rankspawn", "torch", "paddle", "jax"))
_MARK_BYTES = 6


class Call:
    """One call of a collective on this rank.

    Attributes:
        name: The collective.
        signature: What has to be the same on all ranks.
        mark: A number that stands for it: two that differ have the same once in 2**48.
        nbytes: What this rank brings.
        block: The shared block that its data is in, plus one; 0 for none.
        offset: Where in that block.
        details: What only this rank knows.
        timeout: Seconds to wait for others; None for as long as they live.
    """

    __slots__ = ("block", "details", "mark", "name", "nbytes", "offset", "signature", "timeout")

    def __init__(
        self,
        name: str,
        what: str = "",
        *,
        nbytes: int = 0,
        details: bytes = b"",
        timeout: float | None = None,
    ) -> None:
        self.name: str = name
        self.signature: bytes = f"{name}{what}".encode()[: SIGNATURE_ROOM - 1]
        self.mark: int = _mark(self.signature)
        self.nbytes: int = nbytes
        self.block: int = 0
        self.offset: int = 0
        self.details: bytes = details
        self.timeout: float | None = timeout
        if len(details) > DETAILS_ROOM:
            raise ValueError(f"{name}: a shape of so many dimensions cannot be announced")

    def describe(self) -> str:
        """What is called, and at which line of the user's."""
        frame = _users_frame()
        path, text = frame.f_code.co_filename, self.signature.decode("utf-8", "replace")
        return f"{text} at {path[-PLACE_ROOM:]}:{frame.f_lineno}"


class Told:
    """What another rank announced beside its signature."""

    __slots__ = ("block", "details", "nbytes", "offset")

    def __init__(self, nbytes: int, block: int, offset: int, details: bytes) -> None:
        self.nbytes: int = nbytes
        self.block: int = block
        self.offset: int = offset
        self.details: bytes = details


class Announcements:
    """The announcements of all ranks, in the memory that they share."""

    def __init__(
        self, controls: memoryview, layout: Layout, rank: int, names: Sequence[int]
    ) -> None:
        self._rank = rank
        self._names = names
        ranks = range(layout.size)
        self._at = [[layout.announcement(each, parity) for parity in (0, 1)] for each in ranks]
        self._controls = controls
        # What stands in this rank's own slots: most calls are made again and again.
        self._written: list[_Written] = [_Written(), _Written()]

    def write(self, call: Call, parity: int) -> None:
        """Announce a call of this rank; the others look once it has arrived."""
        written = self._written[parity]
        frame = _users_frame()
        if written.call is call and written.code is frame.f_code and written.at == frame.f_lasti:
            return
        self._write(call, parity, written, frame)

    def _write(self, call: Call, parity: int, written: _Written, frame: FrameType) -> None:
        at, controls, code = self._at[self._rank][parity], self._controls, frame.f_code
        if written.signature != call.signature:
            begin = at + SIGNATURE_AT
            controls[begin : begin + len(call.signature)] = call.signature
            written.signature = call.signature
        if written.code is not code:
            path = code.co_filename.encode("utf-8", "replace")[-PLACE_ROOM:]
            controls[at + PLACE_AT : at + PLACE_AT + len(path)] = path
            written.place_length = len(path)
        if call.details:
            controls[at + DETAILS_AT : at + DETAILS_AT + len(call.details)] = call.details
        _NUMBERS.pack_into(
            controls,
            at,
            call.nbytes,
            call.block,
            call.offset,
            len(call.signature),
            written.place_length,
            len(call.details),
            frame.f_lineno,
        )
        written.call, written.code, written.at = call, code, frame.f_lasti

    def told(self, rank: int, parity: int) -> Told:
        """What a rank announced beside its signature."""
        at = self._at[rank][parity]
        nbytes, block, offset, _, _, length, _ = _NUMBERS.unpack_from(self._controls, at)
        details = b""
        if length:
            details = bytes(self._controls[at + DETAILS_AT : at + DETAILS_AT + length])
        return Told(nbytes, block, offset, details)

    def describe(self, rank: int, parity: int) -> str:
        """What a rank called, and where."""
        at = self._at[rank][parity]
        _, _, _, length, places, _, line = _NUMBERS.unpack_from(self._controls, at)
        text = bytes(self._controls[at + SIGNATURE_AT : at + SIGNATURE_AT + length])
        path = bytes(self._controls[at + PLACE_AT : at + PLACE_AT + places])
        return f"{text.decode('utf-8', 'replace')} at {path.decode('utf-8', 'replace')}:{line}"

    def mismatch(self, rank: int, parity: int) -> CollectiveMismatchError:
        """The error that names this rank and another, and what each called."""
        calls = (self.describe(self._rank, parity), self.describe(rank, parity))
        return mismatch_error((self._names[self._rank], self._names[rank]), calls)


def mismatch_error(ranks: tuple[int, int], calls: tuple[str, str]) -> CollectiveMismatchError:
    """The error that names two ranks, the own one first, and what each called."""
    own, other = ranks
    return CollectiveMismatchError(
        f"ranks {own} and {other} called different things: rank {own} called {calls[0]}, "
        f"rank {other} {calls[1]}",
        ranks,
        calls,
    )


class _Written:
    """What a slot of this rank has, and for which line of which code."""

    __slots__ = ("at", "call", "code", "place_length", "signature")

    def __init__(self) -> None:
        self.call: Call | None = None
        self.signature = b""
        self.code: CodeType | None = None
        self.at = -1
        self.place_length = 0


@lru_cache(1024)
def _mark(signature: bytes) -> int:
    # Not 0 and not 1, which mean other things.
    return int.from_bytes(blake2b(signature, digest_size=_MARK_BYTES).digest(), "little") | 2


def _users_frame() -> FrameType:
    """The nearest frame that is not of this package, or of a framework that has called it."""
    # Nearer are at least: write, announce, _run, the collective, and what hides our frames.
    frame = sys._getframe(5)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in _NOT_THE_USERS:
            break
        frame = frame.f_back
    return frame
