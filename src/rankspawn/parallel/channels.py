"""Messages from one rank to another: an own pair of slots for each pair of ranks.

The sender counts what it has put into the channel, the receiver what it has taken; each is the only
writer of its count. A message begins with its size, type and tag. Messages whose tag is not asked
for are put aside, so a sender never waits for a message to be taken that was sent later.
"""

from __future__ import annotations

import struct
import time

from rankspawn.errors import CollectiveMismatchError
from rankspawn.parallel.layout import SLOTS, TO
from rankspawn.parallel.peers import BROKEN, BY_MESSAGE, LEFT

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.parallel.announcing import Call
    from rankspawn.parallel.buffers import Flat
    from rankspawn.parallel.lockstep import Lockstep

_MASK = 0xFFFFFFFF
# Tag, bytes, length of the text that says what they are.
_HEAD = struct.Struct("<qQI")
_TEXT_ROOM = 384
_HEAD_ROOM = 512
_LOOK_SECONDS = 0.04


class _Message:
    """What the beginning of a message says."""

    def __init__(self, room: memoryview) -> None:
        self.tag, self.nbytes, length = _HEAD.unpack_from(room)
        self.text: str = bytes(room[_HEAD.size : _HEAD.size + length]).decode("utf-8", "replace")


class Channels:
    """This rank's messages to and from the others."""

    def __init__(self, step: Lockstep) -> None:
        self._step = step
        self._maps: dict[tuple[int, int], memoryview] = {}
        self._aside: dict[int, list[tuple[_Message, bytearray]]] = {}

    def release(self) -> None:
        """Let go of the memory."""
        self._maps.clear()
        self._aside.clear()

    def send(self, call: Call, flat: Flat, dst: int, tag: int) -> None:
        """Put a message into the channel, in pieces if it is large."""
        step, layout = self._step, self._step.region.layout
        deadline = _deadline(call)
        room = self._room(step.rank, dst, reserve=True)
        sent_at, taken_at = layout.sent(step.rank, dst), layout.taken(dst, step.rank)
        words, text = step.region.words, flat.text.encode()[:_TEXT_ROOM]
        data, at, begun = flat.data, 0, False
        try:
            while not begun or at < data.nbytes:
                sent = words[sent_at // 4]
                # Two slots: one may be read while the other is written.
                self._wait(call, taken_at, (sent - SLOTS) & _MASK, dst, deadline)
                slot = room[(sent & 1) * layout.parcel :][: layout.parcel]
                begin = 0
                if not begun:
                    _HEAD.pack_into(slot, 0, tag, data.nbytes, len(text))
                    slot[_HEAD.size : _HEAD.size + len(text)] = text
                    begin, begun = _HEAD_ROOM, True
                piece = data[at : at + layout.parcel - begin]
                slot[begin : begin + piece.nbytes] = piece
                at += piece.nbytes
                self._count_on(sent_at, sent)
        except BaseException as error:
            if begun:  # the receiver has the beginning of a message that has no end
                step.break_off(error)
            raise

    def receive(self, call: Call, flat: Flat, src: int, tag: int) -> None:
        """Take the first message with this tag; others that come before it are put aside."""
        kept = self._aside.setdefault(src, [])
        for place, (message, data) in enumerate(kept):
            if message.tag == tag:
                del kept[place]
                self._check(message, flat, src, call)
                flat.data[:] = data
                return
        deadline = _deadline(call)
        while True:
            message = self._look(call, src, deadline)
            if message.tag != tag:
                data = bytearray(message.nbytes)
                self._take(call, message, memoryview(data), src, deadline)
                kept.append((message, data))
                continue
            fits = (message.text, message.nbytes) == (flat.text[:_TEXT_ROOM], flat.nbytes)
            self._take(call, message, flat.data if fits else None, src, deadline)
            self._check(message, flat, src, call)
            return

    def _check(self, message: _Message, flat: Flat, src: int, call: Call) -> None:
        if (message.text, message.nbytes) == (flat.text[:_TEXT_ROOM], flat.nbytes):
            return
        rank, src = self._step.names[self._step.rank], self._step.names[src]
        calls = (call.signature.decode("utf-8", "replace"), f"send{message.text}")
        raise CollectiveMismatchError(
            f"ranks {rank} and {src} called different things: rank {rank} called {calls[0]}, "
            f"rank {src} {calls[1]} dst={rank} tag={message.tag}",
            (rank, src),
            calls,
        )

    def _look(self, call: Call, src: int, deadline: float | None) -> _Message:
        """What the next message is, which stays in the channel."""
        layout, words = self._step.region.layout, self._step.region.words
        taken = words[layout.taken(self._step.rank, src) // 4]
        sent_at = layout.sent(src, self._step.rank)
        self._wait(call, sent_at, taken, src, deadline)
        room = self._room(src, self._step.rank, reserve=False)
        return _Message(room[(taken & 1) * layout.parcel :][:_HEAD_ROOM])

    def _take(
        self,
        call: Call,
        message: _Message,
        target: memoryview | None,
        src: int,
        deadline: float | None,
    ) -> None:
        """Take a message out of the channel, into nothing if there is no target."""
        step, layout = self._step, self._step.region.layout
        words, room = step.region.words, self._room(src, step.rank, reserve=False)
        taken_at, sent_at = layout.taken(step.rank, src), layout.sent(src, step.rank)
        at, begin = 0, _HEAD_ROOM
        try:
            while begin or at < message.nbytes:
                taken = words[taken_at // 4]
                self._wait(call, sent_at, taken, src, deadline)
                slot = room[(taken & 1) * layout.parcel :][: layout.parcel]
                length = min(layout.parcel - begin, message.nbytes - at)
                if target is not None:
                    target[at : at + length] = slot[begin : begin + length]
                at, begin = at + length, 0
                self._count_on(taken_at, taken)
        except BaseException as error:
            step.break_off(error)  # the rest of the message would be taken for the next one
            raise

    def _count_on(self, word_at: int, value: int) -> None:
        step = self._step
        if step.sleeper.fence is not None:
            step.sleeper.fence()
        step.region.words[word_at // 4] = (value + 1) & _MASK
        step.sleeper.wake(step.region.base + word_at)

    def _room(self, source: int, to: int, *, reserve: bool) -> memoryview:
        """The two slots of a pair."""
        region = self._step.region
        length = 2 * region.layout.parcel
        if reserve:
            region.reserve(region.layout.channel(source, to), length)
        room = self._maps.get((source, to))
        if room is None:
            room = self._maps[source, to] = region.map(region.layout.channel(source, to), length)
        return room

    def _wait(
        self, call: Call, word_at: int, value: int, rank: int, deadline: float | None
    ) -> None:
        """Wait until another rank's count is no longer this one."""
        step = self._step
        if step.region.words[word_at // 4] == value:
            step.show_message((rank + 1) | (TO if call.name == "send" else 0), call)
            try:
                self._sleep(call, word_at, value, rank, deadline)
            finally:
                step.show_message(0)
        if step.sleeper.fence is not None:
            step.sleeper.fence()

    def _sleep(
        self, call: Call, word_at: int, value: int, rank: int, deadline: float | None
    ) -> None:
        step, index = self._step, word_at // 4
        words, began = step.region.words, time.perf_counter()
        looked = began
        while words[index] == value:
            step.sleeper.wait(step.region.base + word_at, value, _LOOK_SECONDS)
            now = time.perf_counter()
            if words[index] == value and (
                now - looked >= _LOOK_SECONDS or step.peers.state(rank) in (LEFT, BROKEN)
            ):
                looked = now
                # In this order: what it came to before it left is to be seen by then.
                error = step.losses.find(rank, call.name)
                try:
                    step.check_message(rank, index, value)
                except CollectiveMismatchError as mismatch:
                    step.break_off(mismatch, BY_MESSAGE)
                    raise
                if error is None and deadline is not None and time.monotonic() >= deadline:
                    error = step.losses.timeout(call.name, [rank], call.timeout)
                if error is not None and words[index] == value:
                    raise error
        step.tally.waited(rank, time.perf_counter() - began)


def _deadline(call: Call) -> float | None:
    return None if call.timeout is None else time.monotonic() + call.timeout
