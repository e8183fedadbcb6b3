"""Measures rankspawn beside the peers that are installed; prints a table, writes CSV and PNG."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from benchmarks import surroundings
from benchmarks.goals import (
    arguments,
    idle,
    memory,
    results,
    scaling,
    start,
    teardown,
    tests_with_ranks,
    torch_ranks,
)
from benchmarks.measurements_file import MeasurementsFile, read_measurements
from benchmarks.measuring import FAILED, ROOT, frozen_source, name_of, possible, run_rounds
from benchmarks.records import Measurement, Scale, Table, Trial
from benchmarks.report import Line, summary, table


class Goal(Protocol):
    """What the modules of ``goals`` have."""

    GOAL: int

    def trials(self, scale: Scale, /) -> list[Trial]:
        """What to run."""

    def lines(self, table: Table, scale: Scale, /) -> list[Line]:
        """What came of it."""


GOALS: tuple[Goal, ...] = (
    *(start, torch_ranks, arguments, memory),
    *(results, teardown, idle, scaling, tests_with_ranks),
)
FULL = Scale(rounds=7, slow_every=3, quick=False)
QUICK = Scale(rounds=3, slow_every=3, quick=True)


def main() -> None:
    """Measure, or read what was measured; then tell."""
    options = read_command_line()
    goals = [goal for goal in GOALS if not options.only or goal.GOAL in options.only]
    scale: Scale = QUICK if options.quick else FULL
    if options.rounds:
        scale = Scale(options.rounds, scale.slow_every, scale.quick)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.read:
        measured = list(read_measurements(options.read))
    else:
        with frozen_source(options.source) as source:
            measured = measure(goals, scale, source, options.out / "measurements.csv")
    lines = [line for goal in goals for line in goal.lines(Table(measured), scale)]
    text = f"{table(lines)}\n\n{summary(lines)}\n{failures(measured)}"
    (options.out / "table.md").write_text(text)
    print(text)
    draw(measured, options.pictures or options.out)


def measure(goals: Sequence[Goal], scale: Scale, source: Path, path: Path) -> list[Measurement]:
    """Run all trials of these goals, keeping each figure as it comes."""
    wanted: dict[Trial, Trial] = {}
    for goal in goals:
        for trial in goal.trials(scale):
            wanted.setdefault(trial, trial)
    due = possible(list(wanted), is_installed)
    about = surroundings.describe()
    print(", ".join(f"{name} {value}" for name, value in about.items() if value))
    if left := sorted({trial.contender for trial in wanted} - {trial.contender for trial in due}):
        print(f"not installed, so not measured: {', '.join(left)}")
    measured = []
    with MeasurementsFile(path, about) as file:
        for one in run_rounds(due, scale.rounds, source, tell):
            file.add(one, surroundings.moment())
            measured.append(one)
    return measured


def failures(measured: Sequence[Measurement]) -> str:
    """One line for each run that did not come to its end."""
    return "".join(
        f"FAILED in round {one.round + 1}: {name_of(one.trial)}\n"
        for one in measured
        if one.metric == FAILED
    )


def is_installed(module: str) -> bool:
    """Whether this interpreter, which runs the trials too, has the module."""
    return importlib.util.find_spec(module) is not None


def tell(text: str) -> None:
    """Progress, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def draw(measured: Sequence[Measurement], folder: Path) -> None:
    """The pictures, if there is something to draw them with."""
    if not is_installed("matplotlib"):
        print("no pictures: matplotlib is not installed")
        return
    from benchmarks import plots

    folder.mkdir(parents=True, exist_ok=True)
    for path in plots.draw_all(Table(measured), folder):
        print(f"drew {path}")


def read_command_line() -> argparse.Namespace:
    """What to do."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, and only what goals need")
    parser.add_argument("--only", type=numbers, help="these goals, such as 1,3 or goal1,goal3")
    parser.add_argument("--rounds", type=int, help=f"{FULL.rounds}, or {QUICK.rounds} with --quick")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmarks")
    parser.add_argument("--pictures", type=Path, help="another folder for the pictures")
    parser.add_argument(
        "--source", type=Path, default=ROOT / "src", help="where the library is, if not in src"
    )
    parser.add_argument("--read", type=Path, help="a CSV of an earlier run, in place of a new one")
    return parser.parse_args()


def numbers(text: str) -> set[int]:
    """The goals in ``1,3`` or ``goal1,goal3``."""
    return {int(word.strip().removeprefix("goal")) for word in text.split(",")}


if __name__ == "__main__":
    main()
