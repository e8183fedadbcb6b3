"""The values that pass between planning, measuring and reporting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass(frozen=True)
class Trial:
    """One program to run: which script, with what.

    Attributes:
        script: A file of ``trials``, without its ending.
        contender: What starts the workers.
        nprocs: How many of them.
        kind: The type of the argument or result, where there is one.
        size: Its bytes.
        seconds: How long to watch, where time is what is given and not what is measured.
        tries: Measure so often in one program, and take the best: a short time is easily spoilt
            by other work on the machine. All that are compared with each other have as many.
        every: Run it in each round that this divides; slow peers need not be in all of them.
    """

    script: str
    contender: str
    nprocs: int
    kind: str = ""
    size: int = 0
    seconds: float = 0.0
    tries: int = field(default=1, compare=False)
    every: int = field(default=1, compare=False)


@dataclass(frozen=True)
class Measurement:
    """One figure of one run of a trial; seconds, bytes or a count, as the metric says."""

    trial: Trial
    round: int
    metric: str
    value: float


class Table:
    """All measurements, looked up by trial and metric."""

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        self._values: dict[tuple[Trial, str], dict[int, float]] = {}
        for one in measurements:
            self._values.setdefault((one.trial, one.metric), {})[one.round] = one.value

    def rounds(self, trial: Trial, metric: str = "seconds") -> dict[int, float]:
        """The value of each round; empty if it was not measured."""
        return self._values.get((trial, metric), {})


@dataclass(frozen=True)
class Scale:
    """How thorough a run is.

    Attributes:
        rounds: How often everything is measured.
        slow_every: Peers that take many seconds are measured in every so many rounds.
        quick: Leave out what no goal needs.
    """

    rounds: int
    slow_every: int
    quick: bool

    @property
    def idle_seconds(self) -> float:
        """How long an idle group is watched."""
        return 5.0 if self.quick else 20.0
