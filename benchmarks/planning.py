"""Which trials belong together, and whose turn it is. Pure: runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks import costs
from benchmarks.judging import figures_of
from benchmarks.records import Goal, Trial


@dataclass
class Case:
    """Trials that are compared with each other, so that they should see the same load.

    Attributes:
        trials: All of them.
        rounds_done: How often they were run.
        spent: Seconds that it took.
        seconds: What each trial took the last time.
    """

    trials: list[Trial]
    rounds_done: int = 0
    spent: float = 0.0
    seconds: dict[Trial, float] = field(default_factory=dict)

    def due(self, number: int, slow_every: int) -> list[Trial]:
        """Those of this round."""
        slow = number % slow_every == 0
        quick = [trial for trial in self.trials if not trial.slow]
        # Where all are slow, each round has all.
        return list(self.trials) if slow or not quick else quick

    def note(self, trial: Trial, seconds: float) -> None:
        """What a trial took."""
        self.seconds[trial] = seconds
        self.spent += seconds

    @property
    def next_seconds(self) -> float:
        """How long another round takes, of those that are not slow if there are any."""
        return sum(self.seconds.get(trial, 0.0) for trial in self.due(1, 2))


def trials_of(goals: Iterable[Goal]) -> list[Trial]:
    """All that has to run, each once."""
    found = {figure.trial: figure.trial for goal in goals for figure in figures_of(goal)}
    return list(found)


def cases_of(goals: Sequence[Goal], possible: Sequence[Trial]) -> list[Case]:
    """Those that a goal holds against each other together, the others by themselves."""
    group = {trial: {trial} for trial in possible}
    for goal in goals:
        if goal.nprocs or goal.other is None:
            continue
        pair = [goal.ours.trial, goal.other.trial]
        if all(trial in group for trial in pair):
            both = group[pair[0]] | group[pair[1]]
            for trial in both:
                group[trial] = both
    found: list[Case] = []
    seen: set[Trial] = set()
    for trial in possible:
        if trial not in seen:
            seen |= group[trial]
            found.append(Case([one for one in possible if one in group[trial]]))
    return found


def cheapest_first(cases: Iterable[Case], goals: Iterable[Goal]) -> list[Case]:
    """In the order in which a run that has to end in time reaches the most goals."""
    wanted = set(trials_of(goal for goal in goals if goal.has_goal))

    def place(case: Case) -> tuple[bool, float]:
        return wanted.isdisjoint(case.trials), sum(map(costs.seconds_of, case.trials))

    return sorted(cases, key=place)
