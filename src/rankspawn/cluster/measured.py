"""What ranks take and exchange, measured by their agent and kept by the driver.

The numbers of a rank go in its "steps" frames: CPU in percent, memory and memory of its GPU in
bytes, and what it called of each collective, for how long, and for whom it waited there. The
agent loads this module only if somebody looks.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from rankspawn.cluster.frames import GarbledError
from rankspawn.view.ranks import Usage

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from rankspawn.cluster.driver import Driver
    from rankspawn.cluster.frames import Header
    from rankspawn.parallel.looking import Talks
    from rankspawn.parallel.statistics import Talk
    from rankspawn.view.measure import Meters

# Seconds between two looks: at first, of a long run, and of a large one. So many ranks have
# frames of theirs in a second, which take the driver some hundredths of a core.
_SHORTEST, _LONG, _LONGEST = 0.2, 1.0, 5.0
_FRAMES_PER_SECOND = 1000
# Looks take this part of a core at most, and are so many times closer than the run is long.
_PART, _GROWTH = 0.004, 100.0
# No rank takes more, whatever its machine says: percent of one CPU, bytes, seconds.
_MOST_PERCENT, _MOST_BYTES, _MOST_SECONDS = 1e9, 1 << 63, 1e10
_MOST_CALLS = 1 << 63


class Measures:
    """What the ranks of this node take and exchange. Runs in the agent.

    Args:
        pids: The process of each.
        gpus: The id of each one's GPU; None for one that has none.
        world_size: How many ranks all nodes have.
        talks: Whether what they exchange is wanted, too.
        complain: Told why there are no more numbers, which is no reason for ranks to fail.
    """

    def __init__(
        self,
        pids: Sequence[int],
        gpus: Sequence[str | None],
        world_size: int,
        complain: Callable[[str], object],
        *,
        talks: bool,
    ) -> None:
        self._pids, self._gpus = pids, gpus
        self._wants_talks = talks
        self._complain = complain
        self._meters: Meters | None = None
        self._talks: Talks | None = None
        self._pause = min(_LONGEST, max(_SHORTEST, world_size / _FRAMES_PER_SECOND))
        self._began = self._due = time.monotonic()
        self._usages: dict[int, list[float | None]] = {}
        self._told: dict[int, Header] = {}
        self._is_over = False

    def look(self, running: Sequence[int]) -> None:
        """Measure those that run, if it is time to, or if none does any more."""
        now = time.monotonic()
        if self._is_over or (running and now < self._due):
            return
        began = time.thread_time()
        try:
            if self._meters is None:
                self._open()
            else:
                self._measure(self._meters, running)
            self._listen()
        except Exception as error:
            self._is_over = True
            self._complain(f"what ranks take is not measured any more: {error!r}")
        pause = max(self._pause, min(_LONG, (now - self._began) / _GROWTH))
        self._due = now + max(pause, (time.thread_time() - began) / _PART)

    def _open(self) -> None:
        """Begin to measure: CPU is what a rank takes from here on."""
        from rankspawn.view.measure import Meters  # imports psutil: 20 ms

        self._meters = Meters(self._pids, self._gpus)
        if self._wants_talks:
            from rankspawn.parallel.looking import Talks

            self._talks = Talks(dict(enumerate(self._pids)), os.getpid())
        self._began = time.monotonic()

    def _measure(self, meters: Meters, running: Sequence[int]) -> None:
        for index in running:
            usage = meters.look(index)
            cpu = None if usage.cpu_percent is None else max(0.0, usage.cpu_percent)
            self._usages[index] = [cpu, usage.memory, usage.gpu_memory]

    def _listen(self) -> None:
        """Take note of what they have exchanged, also those that are gone."""
        talks = {} if self._talks is None else self._talks.look()
        for index in self._usages.keys() | talks.keys():
            told: Header = {"usage": self._usages.get(index, [None] * 3)}
            if index in talks:
                said = _describe(talks[index])
                # Ranks write there themselves: what cannot be is no reason to lose their node.
                with suppress(GarbledError):
                    read_talk(said, len(self._pids), 0)
                    told["talk"] = said
            self._told[index] = told

    def fields_of(self, index: int) -> Header:
        """What its frame has of them; nothing before the first look."""
        return {"measured": self._told[index]} if index in self._told else {}

    def close(self) -> None:
        """Let go of what was looked at."""
        for opened in (self._meters, self._talks):
            if opened is not None:
                opened.close()


def _describe(talk: Talk) -> Header:
    return {
        "calls": {name: [number, talk.seconds[name]] for name, number in talk.calls.items()},
        "bytes": talk.bytes,
        "for": [list(pair) for pair in talk.waited_for.items()],
    }


class Measured:
    """What was heard of all of them; see ``supervise.group.Measured``."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def usage_of(self, index: int) -> Usage:
        """What a rank took when it was looked at last."""
        node = self._driver.node_of(index)
        return node.usages.get(index - node.first, Usage())

    def talks(self) -> dict[int, Talk]:
        """Rank to what it has exchanged with others of its node."""
        found = {}
        for node in self._driver.nodes:
            # A copy, as another thread hears more.
            for local, talk in node.talks.copy().items():
                found[node.first + local] = talk
        return found


def read_usage(told: Any) -> Usage:
    """CPU and memory, as an agent has said it.

    Raises:
        GarbledError: This cannot be.
    """
    cpu, memory, gpu_memory = _list_of(told, 3)
    return Usage(
        None if cpu is None else float(_number(cpu, _MOST_PERCENT)),
        None if memory is None else _whole(memory, _MOST_BYTES),
        None if gpu_memory is None else _whole(gpu_memory, _MOST_BYTES),
    )


def read_talk(told: Any, count: int, first: int) -> Talk:
    """What a rank has exchanged, as its agent has said it.

    Args:
        told: What came.
        count: How many ranks its node has.
        first: The rank of the first one.

    Raises:
        GarbledError: This cannot be.
    """
    from rankspawn.parallel.layout import COLLECTIVES
    from rankspawn.parallel.statistics import Talk

    if not isinstance(told, dict) or not isinstance(told.get("calls"), dict):
        raise GarbledError("what a rank exchanged has no calls")
    calls, seconds = {}, {}
    for name, each in told["calls"].items():
        if name not in COLLECTIVES:
            raise GarbledError("there is no such collective")
        number, spent = _list_of(each, 2)
        calls[name] = _whole(number, _MOST_CALLS)
        seconds[name] = float(_number(spent, _MOST_SECONDS))
    waited = {}
    pairs = told.get("for")
    if not isinstance(pairs, list) or len(pairs) > count:
        raise GarbledError("a rank waited for more others than there are")
    for pair in pairs:
        local, slept = _list_of(pair, 2)
        waited[first + _whole(local, count)] = float(_number(slept, _MOST_SECONDS))
    return Talk(calls, seconds, _whole(told.get("bytes"), _MOST_BYTES), waited)


def _list_of(value: Any, size: int) -> list[Any]:
    if not isinstance(value, list) or len(value) != size:
        raise GarbledError(f"these are no {size} values")
    return value


def _whole(value: Any, limit: int) -> int:
    if not isinstance(value, int):
        raise GarbledError(f"a {type(value).__name__} is no whole number")
    return int(_number(value, limit))


def _number(value: Any, limit: float) -> float:
    # No bool, and no NaN, which is not below anything.
    if type(value) not in (int, float) or not 0 <= value < limit:
        raise GarbledError("a number that cannot be")
    return value  # type: ignore[no-any-return]  # looked at above
