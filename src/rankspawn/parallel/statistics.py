"""What a rank's collectives cost: calls, bytes, time, and for whom it waited."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rankspawn.parallel.layout import COLLECTIVES

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from rankspawn.parallel.layout import Layout

_PLACES = {name: place for place, name in enumerate(COLLECTIVES)}


@dataclass(frozen=True, slots=True)
class Statistics:
    """What this rank has exchanged since its communicator was made.

    Attributes:
        calls: By collective, how often it was called.
        bytes: What this rank brought to them in all.
        seconds: Time in them.
        waited: Of that, time asleep until others came.
        waited_for: Rank to the time in which it was the last one that was missing.
    """

    calls: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    waited_for: dict[int, float] = field(default_factory=dict)

    @property
    def straggler(self) -> int | None:
        """The rank for which this one waited longest; None if for nobody."""
        return max(self.waited_for, key=self.waited_for.__getitem__, default=None)


class Talk(NamedTuple):
    """What a rank has exchanged, as others see it: over all of its communicators.

    Attributes:
        calls: By collective, how often it was called.
        seconds: By collective, the time in it.
        bytes: What this rank brought to them in all.
        waited_for: Rank to the time in which it was the last one that was missing.
    """

    calls: dict[str, int]
    seconds: dict[str, float]
    bytes: int
    waited_for: dict[int, float]


class Shown:
    """A rank's numbers where others see them: of a communicator and of all parts of it.

    Args:
        controls: The memory that the ranks share.
        layout: Where everything is in it.
        rank: Whose numbers.
    """

    def __init__(self, controls: memoryview, layout: Layout, rank: int) -> None:
        def numbers(begin: int, kind: Literal["d", "Q"], count: int) -> memoryview[Any]:
            return controls[begin : begin + 8 * count].cast(kind)

        at, kinds = layout.totals(rank), len(COLLECTIVES)
        self._waited: memoryview[float] = numbers(layout.waited(rank), "d", layout.size)
        self._bytes: memoryview[int] = numbers(at, "Q", 1)
        self._calls: memoryview[int] = numbers(at + 8, "Q", kinds)
        self._seconds: memoryview[float] = numbers(at + 8 + 8 * kinds, "d", kinds)

    def called(self, name: str, nbytes: int, seconds: float) -> None:
        """A collective is over."""
        place = _PLACES[name]
        self._calls[place] += 1
        self._seconds[place] += seconds
        self._bytes[0] += nbytes

    def waited(self, rank: int, seconds: float) -> None:
        """This rank slept until the given one came."""
        self._waited[rank] += seconds

    def read(self) -> Talk:
        """The numbers so far."""
        calls = dict(zip(COLLECTIVES, self._calls, strict=True))
        seconds = dict(zip(COLLECTIVES, self._seconds, strict=True))
        return Talk(
            {name: number for name, number in calls.items() if number},
            {name: seconds[name] for name, number in calls.items() if number},
            self._bytes[0],
            {rank: waited for rank, waited in enumerate(self._waited) if waited},
        )

    def close(self) -> None:
        """Let go of the memory; a second call does nothing."""
        for view in (self._waited, self._bytes, self._calls, self._seconds):
            view.release()


class Tally:
    """The numbers of one communicator while they grow.

    Args:
        places: Of each of its ranks, the place in what is shown.
        shown: Where others see them, too.
    """

    def __init__(self, places: Sequence[int], shown: Shown | None = None) -> None:
        self.places: Sequence[int] = places
        self.shown: Shown | None = shown
        self._calls: dict[str, int] = {}
        self._bytes = 0
        self._seconds = 0.0
        self._waited = [0.0] * len(places)

    def called(self, name: str, nbytes: int, seconds: float) -> None:
        """A collective is over."""
        self._calls[name] = self._calls.get(name, 0) + 1
        self._bytes += nbytes
        self._seconds += seconds
        if self.shown is not None:
            self.shown.called(name, nbytes, seconds)

    def waited(self, rank: int, seconds: float) -> None:
        """This rank slept until the given one came."""
        self._waited[rank] += seconds
        if self.shown is not None:
            self.shown.waited(self.places[rank], seconds)

    def read(self) -> Statistics:
        """The numbers so far."""
        waited = {rank: seconds for rank, seconds in enumerate(self._waited) if seconds}
        return Statistics(dict(self._calls), self._bytes, self._seconds, sum(self._waited), waited)
