"""What the measurements say of each goal. Pure: a table in, lines out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.figures import (
    Rounds,
    Spread,
    flatness,
    growth_exponent,
    judged_by_medians,
    minus,
    per_round,
    spread,
)
from benchmarks.records import MIB, Figure, Goal, How, Measurement, Table

# What a value of seconds or bytes is multiplied with, to be in a unit.
_FACTORS = {"ms": 1e3, "us": 1e6, "kB": 1e-3, "MiB": 1 / MIB}
_BYTES = ("workers_large", "bytes_per_rank")


@dataclass(frozen=True)
class Line:
    """One row of a page: what was compared, and what came of it.

    Attributes:
        goal: What was wanted.
        ours: rankspawn's own figure, for people.
        other: That of the peer.
        figure: What is judged; None if it was not measured.
        rows: The measurements behind it.
    """

    goal: Goal
    ours: str
    other: str
    figure: Spread | None
    rows: tuple[Measurement, ...]

    @property
    def is_met(self) -> bool:
        """The median is where it should be; what was not measured is not met."""
        if self.figure is None:
            return False
        goal, median = self.goal, self.figure.median
        low = goal.at_least is None or median >= goal.at_least
        return low and (goal.at_most is None or median <= goal.at_most)

    @property
    def verdict(self) -> str:
        """One word for the last column."""
        if self.figure is None:
            return "not measured"
        if not self.goal.has_goal:
            return ""
        return "met" if self.is_met else "MISSED"


def judge(goal: Goal, table: Table) -> Line:
    """What came of one goal."""
    figures = figures_of(goal)
    # Where no run has all of them, what there is is shown, and nothing is judged by it.
    run = table.run_of(figures)
    rows = tuple(row for figure in figures for row in table.rows(figure, run))
    if goal.nprocs:
        ours, figure = _judge_series(goal, table, run)
        return Line(goal, ours, "", figure, rows)
    mine = table.rounds(goal.ours.trial, goal.ours.metric, run)
    other = {} if goal.other is None else table.rounds(goal.other.trial, goal.other.metric, run)
    limit = other
    if goal.how == "memory":
        limit = {number: goal.ours.trial.size + value for number, value in other.items()}
    values = [] if run is None else _JUDGES[goal.how](goal, mine, limit)
    shown = goal.how != "value" and goal.ours.metric != "writable"
    return Line(
        goal,
        _words(goal.ours, mine) if shown else "",
        _words(goal.ours, limit) if goal.other is not None else "",
        spread(values),
        rows,
    )


def figures_of(goal: Goal) -> list[Figure]:
    """All figures that a goal is judged by."""
    found = [goal.ours, *([goal.other] if goal.other else [])]
    if goal.how == "flat":
        found.append(replace(goal.ours, metric="seconds_tiny"))
    if not goal.nprocs:
        return found
    return [
        replace(one, trial=replace(one.trial, nprocs=nprocs))
        for one in found
        for nprocs in goal.nprocs
    ]


def added(table: Table, figure: Figure, run: str | None) -> dict[int, float]:
    """What an argument adds, in each round, to the start of workers that get a tiny one."""
    whole = table.rounds(figure.trial, figure.metric, run)
    return minus(whole, table.rounds(figure.trial, "seconds_tiny", run))


def figure_words(value: float, unit: str) -> str:
    """A number with its unit, in as many digits as mean something."""
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if value else "0"
    return number + (unit if unit in ("", "x") else f" {unit}")


def _judge_series(goal: Goal, table: Table, run: str | None) -> tuple[str, Spread | None]:
    series: dict[int, Rounds] = {}
    for nprocs in goal.nprocs:
        figure = replace(goal.ours, trial=replace(goal.ours.trial, nprocs=nprocs))
        rounds = table.rounds(figure.trial, figure.metric, run)
        series[nprocs] = added(table, figure, run) if goal.how == "flat" else rounds
    ends = (goal.nprocs[0], goal.nprocs[-1])
    texts = [f"n={nprocs:,} {_words(goal.ours, series[nprocs])}" for nprocs in ends]
    how = flatness if goal.how == "flat" else growth_exponent
    return ", ".join(texts), None if run is None else judged_by_medians(series, how)


def _words(figure: Figure, rounds: Rounds) -> str:
    """The median for people: ``12.3 ms``, ``1,234 ms``, ``3 MiB``."""
    known = spread(rounds.values())
    if known is None:
        return "-"
    if figure.metric in _BYTES:
        return f"{known.median / MIB:,.0f} MiB"
    value = known.median * 1000
    if value >= 10_000:
        return f"{value / 1000:.3g} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _in_unit(goal: Goal, rounds: Rounds) -> list[float]:
    return [value * _FACTORS.get(goal.unit, 1.0) for value in rounds.values()]


def _rates(goal: Goal, mine: Rounds) -> list[float]:
    trial = goal.ours.trial
    return [trial.nprocs * trial.size / 1e9 / seconds for seconds in mine.values()]


Judge = Callable[[Goal, Rounds, Rounds], "list[float]"]
_JUDGES: dict[How, Judge] = {
    "faster": lambda _, mine, other: list(per_round(other, mine).values()),
    "slower": lambda _, mine, other: list(per_round(mine, other).values()),
    "memory": lambda _, mine, other: list(per_round(mine, other).values()),
    "more": lambda goal, mine, other: _in_unit(goal, minus(mine, other)),
    "value": lambda goal, mine, _: _in_unit(goal, mine),
    "rate": lambda goal, mine, _: _rates(goal, mine),
}
