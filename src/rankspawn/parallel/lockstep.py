"""Ranks in step: each phase of each collective is a meeting of all of them.

A rank says how far it is in one entry of a board, of which it is the only writer: the number of
the phase, and a mark of what it calls. To publish something it writes it into its slot of this
phase, odd or even, and then its entry; whoever sees the new entry sees what was written. Whoever
finds the entries of all equal to its own came last, and lets the others go on with one word, at
which they sleep: so each of them wakes once, and the last one never sleeps.

**The rule that keeps this right:** a rank writes into its slot for phase t only after all others
have counted t-1, and it reads what others published at t-2 only before it counts t-1. So what is
overwritten, nobody reads any more: two slots are enough, over all collectives and all sizes, and
two boards are. There is one count over all of them; with a count for each kind, a large sum after
a small one overwrites what is still being read.

Several may find that they came last. They write the same, and before they count on; until they do,
nobody gets further than they are: so the word never goes back.

Nobody holds anything that others need, so a rank may die at any instruction. Either it has counted,
and what it published is whole; or it has not, and the others notice that it is gone.
"""

from __future__ import annotations

import sys
import threading
import time

from rankspawn.parallel.announcing import Announcements, Call, Told
from rankspawn.parallel.layout import (
    ANNOUNCED,
    INLINE_AT,
    LAST,
    MESSAGE,
    RELEASE,
    SINCE,
    SLEEPING,
    SLOTS,
    TO,
)
from rankspawn.parallel.losses import Losses
from rankspawn.parallel.peers import BROKEN, BY_MESSAGE, BY_MISMATCH, LEFT, Peers
from rankspawn.parallel.region import open_at
from rankspawn.parallel.statistics import Shown, Tally
from rankspawn.parallel.waiting import Patience

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.parallel.region import Region
    from rankspawn.parallel.waiting import Sleeper

_MASK = 0xFFFFFFFF
# An entry: the lowest bits of the phase, above them the mark. Ranks are at most one phase apart.
_PHASE_BITS, _PHASE = 16, 0xFFFF
# The mark of a meeting that belongs to a call on which all have agreed.
_AGREED = 1
# How long a rank sleeps before it looks whether those it waits for still live.
_LOOK_SECONDS = 0.04
# How long a process that has closed its files may take to end, on a busy machine.
_ENDING_SECONDS = 2.0


class Lockstep:
    """This rank's side of the meetings of one communicator.

    Attributes:
        phase: How many meetings there were.
        parity: Which of its two slots this rank writes next.
        names: What errors call the ranks, by place.
        broken: Why the communicator cannot be used any more.
    """

    def __init__(
        self,
        region: Region,
        rank: int,
        peers: Peers,
        sleeper: Sleeper,
        names: Sequence[int] | None = None,
        tally: Tally | None = None,
    ) -> None:
        layout = region.layout
        self.region = region
        self.rank = rank
        self.size: int = layout.size
        self.names: Sequence[int] = names or range(layout.size)
        self.peers = peers
        self.losses: Losses = Losses(peers, rank, self.names)
        self.sleeper = sleeper
        self.tally: Tally = tally or Tally(range(layout.size), Shown(region.controls, layout, rank))
        self._shows = tally is None
        self.phase: int = 0
        self.broken: BaseException | None = None
        self.announcements: Announcements = Announcements(region.controls, layout, rank, self.names)
        self._slots = [
            [_slot(region, each, parity) for parity in (0, 1)] for each in range(layout.size)
        ]
        self._words = region.words
        self._release = (layout.board + RELEASE) // 4
        self._release_address = region.base + layout.board + RELEASE
        self._last = (layout.board + LAST) // 4
        self._sleeping = region.controls[layout.board + SLEEPING :][: layout.size]
        self._nobody = bytes(layout.size)
        at = [layout.entries(parity) for parity in (0, 1)]
        self._entries = [region.controls[each : each + 8 * layout.size].cast("Q") for each in at]
        self._boards = [region.controls[each : each + 8 * layout.size] for each in at]
        self._others = [each for each in range(layout.size) if each != rank]
        control = layout.control(rank)
        self._announced = (control + ANNOUNCED) // 4
        self._message = (control + MESSAGE) // 4
        self._since = region.controls[control + SINCE :][:8].cast("d")
        self._mark = _AGREED
        self._call = Call("init_parallel_env")
        self._limit: float | None = None
        self._deadline: float | None = None
        self._patience = Patience(layout.size)
        self._ordering = threading.Lock()

    @property
    def parity(self) -> int:
        """Of the phase that comes next."""
        return (self.phase + 1) & 1

    def slot(self, rank: int, parity: int) -> memoryview:
        """A rank's room for small data."""
        return self._slots[rank][parity]

    def stage(self, rank: int, parity: int) -> memoryview:
        """A rank's room for a piece of large data, and for a part of a result."""
        layout = self.region.layout
        at = layout.stage_offset(rank, parity)
        return self.region.stages(self.rank)[at : at + layout.stage]

    def announce(self, call: Call, limit: float | None = None) -> None:
        """Say what this rank calls, and how long it waits; the next :meth:`agree` compares."""
        self._call = call
        self._limit = limit
        self._deadline = None if limit is None else time.monotonic() + limit
        parity = (self.phase + 1) & 1
        self.announcements.write(call, parity)
        self._words[self._announced] = parity

    def agree(self) -> None:
        """Meet, and make sure that all ranks called the same.

        Raises:
            CollectiveMismatchError: One called something else.
        """
        self._mark = self._call.mark
        try:
            self.meet()
        finally:
            self._mark = _AGREED

    def told(self) -> list[Told]:
        """What each rank announced at the meeting that was just held."""
        return [self.announcements.told(rank, self.phase & 1) for rank in range(self.size)]

    def meet(self) -> int:
        """Publish what this rank wrote, and wait for all others; the parity of the phase."""
        fence = self.sleeper.fence
        if fence is not None:
            fence()
        self.phase = phase = self.phase + 1
        parity = phase & 1
        entry = self._mark << _PHASE_BITS | phase & _PHASE
        self._entries[parity][self.rank] = entry
        if fence is not None:
            fence()
        if bytes(self._boards[parity]) == entry.to_bytes(8, sys.byteorder) * self.size:
            self._let_go(phase)
        else:
            self._wait(phase, entry)
        if fence is not None:
            fence()
        return parity

    def _let_go(self, phase: int) -> None:
        """This rank came last: have the others go on."""
        words = self._words
        words[self._last] = self.rank
        words[self._release] = phase & _MASK
        self._order()
        if bytes(self._sleeping) != self._nobody:
            self.sleeper.wake(self._release_address)

    def _wait(self, phase: int, entry: int) -> None:
        """Wait until the last one has come."""
        began = time.perf_counter()
        if not self._patience.is_rewarded(self._words, self._release, phase & _MASK):
            self._sleep(phase, entry)
        last = self._words[self._last]
        if last != self.rank:
            self.tally.waited(last, time.perf_counter() - began)

    def _sleep(self, phase: int, entry: int) -> None:
        """Sleep until somebody has found that all have come, which may be this rank after all."""
        words, release, goal = self._words, self._release, phase & _MASK
        board, complete = self._boards[phase & 1], entry.to_bytes(8, sys.byteorder) * self.size
        self._sleeping[self.rank] = 1
        looked = self._since[0] = time.perf_counter()
        try:
            self._order()
            self._compare(phase, entry)
            while words[release] != goal:
                # Two that come at the same moment may each have missed the other. And the last one
                # may have died before it said so.
                if bytes(board) == complete:
                    self._let_go(phase)
                    return
                self.sleeper.wait(self._release_address, (goal - 1) & _MASK, _LOOK_SECONDS)
                now = time.perf_counter()
                if words[release] != goal and (now - looked >= _LOOK_SECONDS or self._has_left()):
                    looked = now
                    self._look_after(phase, entry)
        finally:
            self._sleeping[self.rank] = 0
            self._since[0] = 0.0

    def show_message(self, which: int, call: Call | None = None) -> None:
        """Have others see that this rank waits for a message, or does no more."""
        if call is not None:
            # Where the next collective is announced, at which all others may have arrived already.
            self.announcements.write(call, self.parity)
            if self.sleeper.fence is not None:
                self.sleeper.fence()
        self._words[self._message] = which
        self._since[0] = time.perf_counter() if which else 0.0

    def check_message(self, rank: int, word: int, value: int) -> None:
        """Raise if a rank cannot send what this one waits for, or take what it has sent.

        It is in a collective, for which it needs this rank.

        Args:
            rank: The other rank.
            word: What it counts.
            value: How far it has counted, if this rank waits in vain.
        """
        # In this order: what it counted before it came to the collective is there by then.
        if self.has_come(rank, self.phase + 1) and self._words[word] == value:
            raise self.announcements.mismatch(rank, self.parity)

    def _waits_for_message(self, rank: int) -> bool:
        """Whether a rank waits for a message of this one, which is in a collective."""
        words, layout = self._words, self.region.layout
        # In this order: a rank that goes on shows that before it counts.
        taken = words[layout.taken(rank, self.rank) // 4]
        sent = words[layout.sent(rank, self.rank) // 4]
        waits = words[(layout.control(rank) + MESSAGE) // 4]
        if waits == self.rank + 1:
            return bool(taken == words[layout.sent(self.rank, rank) // 4])
        full = (words[layout.taken(self.rank, rank) // 4] + SLOTS) & _MASK
        return bool(waits == (self.rank + 1 | TO) and sent == full)

    def _was_at_message(self, rank: int) -> bool:
        """Whether a rank has found that what it waited for is in a collective."""
        return self.peers.state(rank) == BROKEN and self.peers.reason(rank)[0] == BY_MESSAGE

    def _order(self) -> None:
        """Have others see what this rank wrote before it reads on.

        Of two that write and then read what the other wrote, at least one must see it. Processors
        keep writes back for a while, unless there is an instruction with a lock between.
        """
        if self._ordering.acquire(blocking=False):
            self._ordering.release()

    def _compare(self, phase: int, entry: int) -> None:
        """Raise if somebody who has come called something else."""
        for rank in self._others:
            other = self._entries[phase & 1][rank]
            if other != entry and (other ^ phase) & _PHASE == 0:
                if self.sleeper.fence is not None:
                    self.sleeper.fence()
                raise self.announcements.mismatch(rank, phase & 1)

    def has_come(self, rank: int, phase: int) -> bool:
        """Whether a rank has counted this phase, the one of this rank or the next."""
        return (self._entries[phase & 1][rank] ^ phase) & _PHASE == 0

    def _has_left(self) -> bool:
        return any(self.peers.state(rank) in (LEFT, BROKEN) for rank in self._others)

    def _look_after(self, phase: int, entry: int) -> None:
        """Raise if ranks called different things, one never comes, or the time is over."""
        self._compare(phase, entry)
        late = [rank for rank in self._others if not self.has_come(rank, phase)]
        for rank in late:
            if self._waits_for_message(rank) or self._was_at_message(rank):
                raise self.announcements.mismatch(rank, phase & 1)
        # Those first who say nothing: what the others say follows from them, as a rule.
        for rank in sorted(late, key=self.peers.state):
            error = self.losses.find(rank, self._call.name)
            # It may have come just before it left: then it is not missed here.
            if error is not None and not self.has_come(rank, phase):
                # What it says of a message it may have said since the look above.
                at_message = self._was_at_message(rank)
                raise self.announcements.mismatch(rank, phase & 1) if at_message else error
        if late and self._deadline is not None and time.monotonic() >= self._deadline:
            raise self.losses.timeout(self._call.name, late, self._limit)

    def open_from(self, rank: int, address: str) -> int:
        """A descriptor of a file that another rank has open.

        Raises:
            RankLostError: It has ended meanwhile.
        """
        try:
            return open_at(address)
        except RuntimeError:
            # A process that ends closes its files a moment before it has ended.
            deadline = time.monotonic() + _ENDING_SECONDS
            while time.monotonic() < deadline:
                error = self.losses.find(rank, self._call.name)
                if error is not None:
                    raise error from None
                time.sleep(0.001)
            raise

    def break_off(self, error: BaseException, reason: int = 0) -> None:
        """This rank cannot go on: tell the others, and refuse all calls from now on."""
        if self.broken is not None:
            return
        self.broken = error
        found, about = self.losses.reason_for(error)
        self.peers.say(BROKEN, reason or found, about)
        if found != BY_MISMATCH and self._words[self._release] != self.phase & _MASK:
            # Who comes now must not go on as if this rank had. Of a mismatch, it has to see both.
            self._entries[self.phase & 1][self.rank] = (self.phase - 2) & _PHASE
        self.wake_all()

    def leave(self) -> None:
        """This rank is done: tell the others, unless they know of a better reason already."""
        if self.broken is None:
            self.peers.say(LEFT)
        self.wake_all()

    def close(self) -> None:
        """Let go of everything; after :meth:`leave`."""
        for pair in self._slots:
            for view in pair:
                view.release()
        shown, self.tally.shown = self.tally.shown, None
        if shown is not None and self._shows:
            shown.close()
        self._since.release()
        for view in (*self._entries, *self._boards, self._sleeping):
            view.release()
        self.peers.close()
        self.region.close()

    def wake_all(self) -> None:
        """Have all who wait for this rank look again."""
        self.sleeper.wake(self._release_address)
        layout = self.region.layout
        for other in self._others:
            self.sleeper.wake(self.region.base + layout.sent(self.rank, other))
            self.sleeper.wake(self.region.base + layout.taken(self.rank, other))


def _slot(region: Region, rank: int, parity: int) -> memoryview:
    at = region.layout.announcement(rank, parity) + INLINE_AT
    return region.controls[at : at + region.layout.inline]
