"""Ranks of several machines: those of one reduce in its memory, one of each talks to others.

So what goes over the network is one rank's data per machine, however many ranks it has.
"""

from __future__ import annotations

import os
import socket
from typing import TypeVar

from rankspawn.caller import at_users_line
from rankspawn.parallel.buffers import DeviceFlat, Flat
from rankspawn.parallel.over_engine import OverEngine, agree
from rankspawn.parallel.reducing import scale
from rankspawn.parallel.statistics import Statistics
from rankspawn.parallel_env import get_local_rank
from rankspawn.workers.meeting import MEETING_VARIABLE

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rankspawn.parallel.agreeing import Agreement
    from rankspawn.parallel.engines import Engine
    from rankspawn.parallel.shared_memory import SharedMemory

    Join = Callable[[int, int], SharedMemory]

T = TypeVar("T")


class Hierarchy(OverEngine):
    """Ranks over an engine, whose sums and broadcasts go through each machine's memory.

    Args:
        engine: Connects all ranks.
        leaders: Connects the first ranks of all machines; None for the others.
        local: The ranks of this machine.
        members: Their numbers among all ranks.
        machines: For each rank, the place of its machine's first rank among those.
    """

    def __init__(
        self,
        engine: Engine,
        leaders: Engine | None,
        local: SharedMemory,
        members: list[int],
        machines: list[int],
        timeout: float | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        super().__init__(engine, timeout, agreement)
        self._leaders = leaders
        self._local = local
        self._members = members
        self._machines = machines

    @at_users_line
    def empty(self, shape: Any, dtype: Any = "float32", *, timeout: float | None = None) -> Any:
        """A NumPy array that the ranks of this machine map."""
        return self._through_memory(
            "empty", 0, timeout, lambda wait: self._empty(shape, dtype, wait)
        )

    def _empty(self, shape: Any, dtype: Any, wait: float | None) -> Any:
        return self._local.empty(shape, dtype, timeout=wait)

    def _reduce(self, flat: Flat, op: str, wait: float | None) -> None:
        if isinstance(flat, DeviceFlat):
            super()._reduce(flat, op, wait)
        elif flat.nbytes:
            self._or_leave(lambda: self._reduce_through_memory(flat, op, wait))

    def _reduce_through_memory(self, flat: Flat, op: str, wait: float | None) -> None:
        plain = "sum" if op == "avg" else op
        self._local.reduce(flat, 0, plain, timeout=wait)
        if self._leaders is not None:
            OverEngine(self._leaders)._reduce(flat, plain, wait)
            if op == "avg":
                scale(flat.data, flat.dtype, 1 / self.size)
        self._local.broadcast(flat, 0, timeout=wait)

    def _give(self, flat: Flat, src: int, wait: float | None) -> None:
        if isinstance(flat, DeviceFlat):
            super()._give(flat, src, wait)
        elif flat.nbytes:
            self._or_leave(lambda: self._give_through_memory(flat, src, wait))

    def _give_through_memory(self, flat: Flat, src: int, wait: float | None) -> None:
        is_here = src in self._members
        if is_here:
            self._local.broadcast(flat, self._members.index(src), timeout=wait)
        if self._leaders is not None:
            self._leaders.broadcast(flat.data, self._machines[src], wait)
        if not is_here:
            self._local.broadcast(flat, 0, timeout=wait)

    def _through_memory(
        self, name: str, nbytes: int, timeout: float | None, body: Callable[[float | None], T]
    ) -> T:
        def run(wait: float | None) -> T:
            return self._or_leave(lambda: body(wait))

        return self._run(name, "", nbytes, timeout, run)

    def _or_leave(self, body: Callable[[], T]) -> T:
        """Do something; if it fails, those of this machine must not wait for this rank."""
        try:
            return body()
        except BaseException:
            self._local.close()
            raise

    def statistics(self) -> Statistics:
        """What this rank has exchanged so far, and for whom of its machine it waited."""
        own, local = super().statistics(), self._local.statistics()
        waited = dict(own.waited_for)
        for rank, seconds in local.waited_for.items():
            member = self._members[rank]
            waited[member] = waited.get(member, 0.0) + seconds
        total = own.waited + local.waited
        return Statistics(own.calls, own.bytes, own.seconds, total, waited)

    def close(self) -> None:
        """Leave. A second call does nothing."""
        if not self._closed and os.getpid() == self._pid:
            self._local.close()
            if self._leaders is not None:
                self._leaders.close()
        super().close()


def through_memory(engine: Engine, timeout: float | None, join: Join) -> OverEngine:
    """The ranks of an engine, through each machine's memory where that can be.

    All ranks call it, and all get the same kind of communicator.

    Args:
        engine: Connects all ranks.
        timeout: Seconds to wait for others in each call.
        join: Makes the communicator of this machine's ranks, from this one's number and how many
            there are.
    """
    agreement = agree(engine)
    flat = OverEngine(engine, timeout, agreement)
    told = flat.all_gather_object((_machine(), get_local_rank(), _local_size()))
    own = told[engine.rank]
    members = _members_of(told, own[0])
    by_machine = {machine: _members_of(told, machine) for machine, _, _ in told}
    is_known = all(_is_whole(told, found) for found in by_machine.values())
    # On one machine the engine was asked for by name; with one rank on each there is no more to do.
    if not is_known or len(by_machine) in (1, engine.size):
        return flat
    first = [found[0] for found in by_machine.values()]
    leaders = engine.split([tuple(first)], first if engine.rank in first else [engine.rank])
    local = join(own[1], len(members))
    machines = [first.index(by_machine[machine][0]) for machine, _, _ in told]
    return Hierarchy(engine, leaders, local, members, machines, timeout, agreement)


def _members_of(told: list[tuple[str, int, int]], machine: str) -> list[int]:
    """The ranks of a machine, by their numbers on it."""
    found = [rank for rank, each in enumerate(told) if each[0] == machine]
    return sorted(found, key=lambda rank: told[rank][1])


def _is_whole(told: list[tuple[str, int, int]], members: list[int]) -> bool:
    """Whether these are all ranks of one group that rankspawn has started."""
    numbers = [told[rank][1] for rank in members]
    return bool(told[members[0]][0]) and numbers == list(range(told[members[0]][2]))


def _machine() -> str:
    """What all ranks of this machine's group have in common, and no others; empty if nothing."""
    place = os.environ.get(MEETING_VARIABLE)
    return "" if place is None else f"{socket.gethostname()} {place}"


def _local_size() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
