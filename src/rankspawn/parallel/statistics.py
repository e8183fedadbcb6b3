"""What a rank's collectives cost: calls, bytes, time, and for whom it waited."""

from __future__ import annotations

from dataclasses import dataclass, field


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


class Tally:
    """The numbers while they grow.

    Args:
        waited: By rank, how long this one has waited for it; in shared memory others can see it.
    """

    def __init__(self, waited: list[float] | memoryview[float]) -> None:
        self._calls: dict[str, int] = {}
        self._bytes = 0
        self._seconds = 0.0
        self._waited: list[float] | memoryview[float] = waited

    def keep(self) -> None:
        """Have the numbers here from now on: the shared memory is about to go."""
        shared = self._waited
        if isinstance(shared, memoryview):
            self._waited = [float(seconds) for seconds in shared]
            shared.release()

    def called(self, name: str, nbytes: int, seconds: float) -> None:
        """A collective is over."""
        self._calls[name] = self._calls.get(name, 0) + 1
        self._bytes += nbytes
        self._seconds += seconds

    def waited(self, rank: int, seconds: float) -> None:
        """This rank slept until the given one came."""
        self._waited[rank] += seconds

    def read(self) -> Statistics:
        """The numbers so far."""
        waited = {rank: seconds for rank, seconds in enumerate(self._waited) if seconds}
        return Statistics(dict(self._calls), self._bytes, self._seconds, sum(self._waited), waited)
