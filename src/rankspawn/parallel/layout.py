"""Where everything is in the memory that the ranks of one communicator share.

Pure arithmetic. The file is::

    listing    who was started (workers/meeting.py)
    board      where all ranks are, in one look (lockstep.py)
    controls   for each rank its words, then two slots for what it announces and for small data
    stages     for each rank two slots for pieces of large data; room is taken when first used
    channels   for each pair of ranks two slots for messages; the same

All of it is sparse: what is not used takes no memory.
"""

from __future__ import annotations

from rankspawn.workers.meeting import ENTRY, FIRST_ENTRY_AT

PAGE = 4096
# Data up to this size travels with its announcement, by one meeting of all ranks.
INLINE = 32 << 10
# Larger data goes through the stages in pieces of this size: about what a core's cache holds.
CHUNK = 1 << 20
# Pieces of messages: a pair of ranks has its own room for two.
PARCEL, SLOTS = 128 << 10, 2

# The board, in bytes from its beginning: the word that lets sleepers go on, who came last, a byte
# for each rank that sleeps; then where each rank is, for odd and even phases.
RELEASE, LAST, SLEEPING = 0, 4, 64
LINE = 64
# Words of a rank, in bytes from the beginning of its controls; each has one writer, that rank.
STATE, REASON, ABOUT, PID, TICKS, CHANNELS = 0, 4, 8, 12, 16, 64
# For whoever looks from outside: in which of its slots stands what it called last; the rank that a
# message is from or, with the mark, to, plus one, while it waits for that; when it fell asleep.
ANNOUNCED, MESSAGE, SINCE = 24, 28, 32
TO = 1 << 31
# What has a place in the numbers that a rank shows of its calls.
COLLECTIVES = (
    "init_parallel_env", "barrier", "all_reduce", "reduce", "broadcast", "all_gather", "gather",
    "scatter", "reduce_scatter", "all_to_all", "send", "recv", "broadcast_object", "gather_object",
    "all_gather_object", "empty", "split",
)  # fmt: skip
# Bytes in all; then of each collective how often it was called, and the seconds in it.
_TOTALS_ROOM = 8 + 16 * len(COLLECTIVES)
# An announcement: numbers, then three texts.
NUMBERS = 64
SIGNATURE_AT, SIGNATURE_ROOM = 64, 320
PLACE_AT, PLACE_ROOM = 384, 384
DETAILS_AT, DETAILS_ROOM = 768, 1280
INLINE_AT = 2048


def rounded(size: int, unit: int = PAGE) -> int:
    """The next multiple of the unit."""
    return -(-size // unit) * unit


class Layout:
    """The places for a number of ranks; the same on each of them.

    Args:
        size: How many ranks.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.inline: int = INLINE
        self.chunk: int = CHUNK
        self.parcel: int = PARCEL
        self._words = rounded(CHANNELS + 16 * size + _TOTALS_ROOM)
        self._slot = INLINE_AT + rounded(INLINE)
        self._control = self._words + 2 * self._slot
        self.board: int = rounded(FIRST_ENTRY_AT + ENTRY * size)
        self._entries = self.board + rounded(SLEEPING + size, LINE)
        self._parity = rounded(8 * size, LINE)
        self._controls = rounded(self._entries + 2 * self._parity)
        self.controls_end: int = self._controls + size * self._control
        # A piece of the data, and this rank's part of the result of the piece before.
        self.result_at: int = rounded(CHUNK)
        self.result_room: int = rounded(CHUNK // size + 64)
        self.stage: int = self.result_at + self.result_room
        self.stages_end: int = self.controls_end + size * 2 * self.stage
        self.end: int = self.stages_end + size * size * 2 * PARCEL

    def control(self, rank: int) -> int:
        """Where a rank's words begin."""
        return self._controls + rank * self._control

    def entries(self, parity: int) -> int:
        """Where it stands how far each rank is, in odd or even phases: 64 bits for each."""
        return self._entries + parity * self._parity

    def announcement(self, rank: int, parity: int) -> int:
        """Where a rank announces what it calls, in odd or even phases."""
        return self.control(rank) + self._words + parity * self._slot

    def sent(self, rank: int, to: int) -> int:
        """The word that counts what a rank has put into its channel to another."""
        return self.control(rank) + CHANNELS + 4 * to

    def taken(self, rank: int, source: int) -> int:
        """The word that counts what a rank has taken from its channel from another."""
        return self.control(rank) + CHANNELS + 4 * (self.size + source)

    def waited(self, rank: int) -> int:
        """Where it stands how long a rank has waited for each: floats of 64 bits."""
        return self.control(rank) + CHANNELS + 8 * self.size

    def totals(self, rank: int) -> int:
        """Where the numbers stand that a rank shows of its calls; see ``COLLECTIVES``."""
        return self.control(rank) + CHANNELS + 16 * self.size

    def stage_offset(self, rank: int, parity: int) -> int:
        """Where a rank's slot begins, from the beginning of all stages."""
        return (2 * rank + parity) * self.stage

    def channel(self, source: int, to: int) -> int:
        """Where the two slots of a pair begin, in the file."""
        return self.stages_end + (source * self.size + to) * 2 * self.parcel


def split_evenly(count: int, size: int) -> list[tuple[int, int]]:
    """Where each rank's share of so many elements begins and ends."""
    return [(count * rank // size, count * (rank + 1) // size) for rank in range(size)]
