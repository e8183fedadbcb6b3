"""The values that pass between planning, measuring and reporting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# In place of a figure, of a run that did not come to its end.
FAILED = "failed"


@dataclass(frozen=True)
class Trial:
    """One program to run: which script, with what.

    Attributes:
        script: A file of ``trials``, without its ending.
        contender: What starts the workers.
        nprocs: How many of them.
        kind: What else it depends on, such as the type of an argument.
        size: The bytes of an argument or a result.
        seconds: How long to watch, where time is what is given and not what is measured.
        tries: Measure so often in one program, and take the best: a short time is easily spoilt
            by other work on the machine. All that are compared with each other have as many.
        slow: So slow, or so steady, that it is not measured in every round.
    """

    script: str
    contender: str
    nprocs: int
    kind: str = ""
    size: int = 0
    seconds: float = 0.0
    tries: int = field(default=1, compare=False)
    slow: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Measurement:
    """One figure of one run of a trial; seconds, bytes or a count, as the metric says.

    Attributes:
        trial: What ran.
        round: Figures of one number were measured right after each other.
        metric: What was measured.
        value: What came of it.
        date: When.
        load: How many processes ran or wanted to, in the minute before.
        machine: On what, in words.
        versions: Of the peer, in words.
        run: When the run of the benchmarks began that it is from: figures are held against each
            other within one run only.
    """

    trial: Trial
    round: int
    metric: str
    value: float
    date: str = ""
    load: float = 0.0
    machine: str = ""
    versions: str = ""
    run: str = ""


@dataclass(frozen=True)
class Figure:
    """Where a number comes from."""

    trial: Trial
    metric: str = "seconds"


# What is judged: how many times faster or slower than the other one, how many seconds more, the
# value itself, bytes per second, the exponent of growth with the number of workers, the most
# over the least cost for any number of them, or the memory beside payload and bare workers.
How = Literal["faster", "slower", "more", "value", "rate", "exponent", "flat", "memory"]


@dataclass(frozen=True)
class Goal:
    """What is measured, and what it should be.

    Attributes:
        section: Which part of the page it belongs to.
        what: What people read.
        how: What is made of the figures.
        ours: rankspawn's figure.
        other: What it is held against.
        unit: Behind the result: ``x``, ``ms``, ``s``, ``kB``, ``GB/s`` or nothing.
        at_least: The goal, if it is one from below.
        at_most: The goal, if it is one from above.
        nprocs: All numbers of workers, where it is about more than one.
        quick: Measured in a quick run, too.
    """

    section: str
    what: str
    how: How
    ours: Figure
    other: Figure | None = None
    unit: str = "x"
    at_least: float | None = None
    at_most: float | None = None
    nprocs: tuple[int, ...] = ()
    quick: bool = True

    @property
    def has_goal(self) -> bool:
        """False for what is told for information only."""
        return self.at_least is not None or self.at_most is not None


class Table:
    """All measurements, looked up by trial and metric; each answer is of one run."""

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        self._runs: dict[Figure, dict[str, dict[int, Measurement]]] = {}
        for one in measurements:
            runs = self._runs.setdefault(Figure(one.trial, one.metric), {})
            runs.setdefault(one.run, {})[one.round] = one

    def run_of(self, figures: Sequence[Figure]) -> str | None:
        """The newest run that has all of these; None if there is none."""
        runs = [set(self._runs.get(figure, {})) for figure in figures]
        return max(set.intersection(*runs), default=None)

    def rounds(
        self, trial: Trial, metric: str = "seconds", run: str | None = None
    ) -> dict[int, float]:
        """The value of each round, of the newest run if none is named; empty if there is none."""
        rows = self.rows(Figure(trial, metric), run)
        return {one.round: one.value for one in rows}

    def rows(self, figure: Figure, run: str | None = None) -> list[Measurement]:
        """What is known of a figure, from the newest run if none is named."""
        newest = self.run_of([figure]) if run is None else run
        return list(self._runs.get(figure, {}).get(newest or "", {}).values())
