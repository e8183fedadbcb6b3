"""Ranks over an engine agree on each call before they make it: engines do not compare calls.

Those of one machine meet in memory that they share, made for nothing else, whoever started them: so
one that is lost, late or calls something else is known there by its number, and a rank that waits
for the others hears signals. Between machines each rank says over the engine what it calls, as a
number; only if these differ, all say it in words.
"""

from __future__ import annotations

import os
import time

from rankspawn.parallel.announcing import Call, mismatch_error
from rankspawn.parallel.region import Region, address_of, open_at
from rankspawn.parallel.shared_memory import SharedMemory
from rankspawn.parallel.splitting import join_region, make_file
from rankspawn.parallel.waiting import Sleeper

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rankspawn.parallel.engines import Engine

# Set to 0 on all ranks, or on some, it keeps ranks of several machines from telling their calls.
CHECK_VARIABLE = "RANKSPAWN_CHECK_CALLS"
# A rank that the engine has lost may not have ended yet.
_ENDING_SECONDS = 0.5
_LOOK_SECONDS = 0.001
_MARK_BYTES = 8
# What a rank says in words: signature and place, as far as they fit.
_WORDS = 704


class Agreement:
    """What comes before each collective over an engine.

    Args:
        engine: Connects all ranks.
        local: Those of this machine; None if there is only this one, or they share no memory.
        members: Their numbers among all ranks.
        asks_all: Ranks tell their calls over the engine as well.

    Attributes:
        local: As given.
        members: As given.
    """

    def __init__(
        self, engine: Engine, local: SharedMemory | None, members: list[int], *, asks_all: bool
    ) -> None:
        self._engine = engine
        self.local: SharedMemory | None = local
        self.members: list[int] = members
        self._asks_all = asks_all

    @property
    def includes_all(self) -> bool:
        """All ranks meet in memory."""
        return self.local is not None and self.local.size == self._engine.size

    def reach(self, call: Call, timeout: float | None) -> None:
        """Make sure that all ranks make this call.

        Raises:
            CollectiveMismatchError: Two make different ones.
            RankLostError: A rank of this machine is gone.
            CollectiveTimeoutError: One has not come in time.
        """
        if self.local is not None:
            self.local.agree(call, timeout)
        if self._asks_all:
            self._ask_all(call, timeout)

    def _ask_all(self, call: Call, timeout: float | None) -> None:
        mark = call.mark.to_bytes(_MARK_BYTES, "little")
        marks = self._gather(mark, timeout)
        other = next((rank for rank, each in enumerate(marks) if each != mark), None)
        # With one among them that calls something else, each rank finds one that differs.
        if other is None:
            return
        words = self._gather(call.describe().encode()[:_WORDS].ljust(_WORDS, b"\0"), timeout)
        calls = [each.rstrip(b"\0").decode("utf-8", "replace") for each in words]
        own = self._engine.rank
        raise mismatch_error((own, other), (calls[own], calls[other]))

    def _gather(self, mine: bytes, timeout: float | None) -> list[bytes]:
        room, width = memoryview(bytearray(len(mine) * self._engine.size)), len(mine)
        rows = [room[begin : begin + width] for begin in range(0, room.nbytes, width)]
        self._engine.all_gather(rows, memoryview(mine), timeout)
        return [bytes(row) for row in rows]

    def find_loss(self, name: str) -> Exception | None:
        """The rank of this machine that is gone, after the engine failed; None if none is."""
        if self.local is None:
            return None
        deadline = time.monotonic() + _ENDING_SECONDS
        while time.monotonic() < deadline:
            error = self.local.find_loss(name)
            if error is not None:
                return error
            time.sleep(_LOOK_SECONDS)
        return None

    def break_off(self, error: BaseException) -> None:
        """This rank cannot go on: tell those of this machine."""
        if self.local is not None:
            self.local.break_off(error)

    def close(self) -> None:
        """Leave."""
        if self.local is not None:
            self.local.close()


def agree_on_calls(engine: Engine, gather: Callable[[Any], list[Any]]) -> Agreement | None:
    """Connect the ranks of each machine in memory; None for a rank alone.

    All ranks call it. Where one of a machine cannot reach that memory, in a container of its own or
    as another user, all of that machine go without.

    Args:
        engine: Connects all ranks.
        gather: Gives all ranks what each of them has, in the order of ranks.
    """
    if engine.size == 1:
        return None
    fd = make_file()
    try:
        wants = os.environ.get(CHECK_VARIABLE) != "0"
        told = gather((_machine(), os.getpid(), address_of(fd), wants))
        machine = told[engine.rank][0]
        members = [rank for rank, each in enumerate(told) if each[0] == machine]
        local = None
        if len(members) > 1:
            local = _join(told[members[0]][2], members, [told[rank][1] for rank in members], engine)
        joined = gather(local is not None)
    finally:
        os.close(fd)
    if local is not None and not all(joined[rank] for rank in members):
        local.close()
        local = None
    is_whole = all(joined) and len({each[0] for each in told}) == 1
    asks_all = not is_whole and all(each[3] for each in told)
    return Agreement(engine, local, members, asks_all=asks_all)


def _join(address: str, members: list[int], pids: list[int], engine: Engine) -> SharedMemory | None:
    try:
        region = Region(open_at(address), len(members))
        if engine.rank == members[0]:
            region.list_processes(pids)
        place = members.index(engine.rank)
        return SharedMemory(join_region(region, place, Sleeper(), members))
    except (RuntimeError, OSError, MemoryError):
        return None


def _machine() -> str:
    """The same for processes that see each other as processes, and for no others."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # then nothing can be shared either
        return f"process {os.getpid()}"
