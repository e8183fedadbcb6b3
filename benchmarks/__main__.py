"""Measures rankspawn beside the peers that are installed, and tells what came of each goal.

python -m benchmarks --quick             five minutes, every goal of a quick run
python -m benchmarks                     everything, several rounds; hours
python -m benchmarks --only start,end    these sections
python -m benchmarks --keep ...          and keep the figures beside those of other runs
python -m benchmarks --pages             make all tables and pictures from what is kept
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import page
from benchmarks.goals import GOALS, SECTIONS
from benchmarks.judging import judge
from benchmarks.measurements_file import KEPT, merged, read_measurements, write_measurements
from benchmarks.needs import BEFORE, missing
from benchmarks.planning import Case, cases_of, cheapest_first, trials_of
from benchmarks.records import FAILED, Goal, Measurement, Table
from benchmarks.running import ROOT, Runner, name_of, surroundings_of_a_trial
from benchmarks.sources import earlier_source, frozen_source
from benchmarks.surroundings import machine

QUICK_MINUTES = 5.0
# A slow trial runs in the first round, and in each so many after it.
SLOW_EVERY = 3
ROUNDS = 7
LONGEST = 20


def main() -> None:
    """Measure, or show what is kept."""
    began = time.monotonic()
    options = read_command_line()
    if options.pages:
        page.write_pages(read_measurements(), print)
        return
    goals = chosen(options.only, options.quick)
    if options.quick:
        later = [goal for goal in chosen(options.only, quick=False) if not goal.quick]
        print(f"Left to a longer run:\n{page.left_out(later)}\n")
    measured = read_measurements(options.read) if options.read else measure(goals, options, began)
    table = Table(measured)
    print(page.summary([judge(goal, table) for goal in goals]))
    for one in measured:
        if one.metric == FAILED:
            print(f"FAILED in round {one.round + 1}: {name_of(one.trial)}")
    print(f"took {(time.monotonic() - began) / 60:.1f} minutes")


def chosen(sections: Sequence[str] | None, quick: bool) -> list[Goal]:
    """The goals of these sections, or of all."""
    wanted = sections or SECTIONS
    return [goal for goal in GOALS if goal.section in wanted and (goal.quick or not quick)]


def measure(goals: Sequence[Goal], options: argparse.Namespace, began: float) -> list[Measurement]:
    """Run all that these need and that can run."""
    with frozen_source(options.source) as source, earlier_source(ROOT) as earlier:
        return measure_with(goals, options, began, source, options.before or earlier)


def measure_with(
    goals: Sequence[Goal],
    options: argparse.Namespace,
    began: float,
    source: Path,
    before: Path | None,
) -> list[Measurement]:
    """With this state of the library and an earlier one; an interrupted run keeps what it has."""
    trials = trials_of(goals)
    lacking = missing(trials, lambda need: has(need, before))
    for need, without in lacking.items():
        print(f"!!!!! SKIPPED, no {need}: {', '.join(map(name_of, without))} !!!!!")
    skipped = {trial for without in lacking.values() for trial in without}
    cases = cases_of(goals, [trial for trial in trials if trial not in skipped])
    minutes = options.minutes or (QUICK_MINUTES if options.quick else None)
    print(machine(), flush=True)
    measured: list[Measurement] = []
    runner = Runner(source, tell, options.rounds, SLOW_EVERY, before=before, quick=options.quick)
    if minutes is not None:
        runner.deadline = began + 60 * minutes
        runner.slow_every = options.rounds
        cases = cheapest_first(cases, goals)
    try:
        for one in runner.run(cases):
            measured.append(one)
    finally:
        keep(measured, options)
        tell_longest(cases)
    return measured


def tell_longest(cases: Sequence[Case]) -> None:
    """Where the time went: what ``costs`` should know."""
    known = sorted(((took, name_of(t)) for case in cases for t, took in case.seconds.items()))
    for took, name in known[: -LONGEST - 1 : -1]:
        tell(f"{took:6.1f} s {name}")


def keep(measured: Sequence[Measurement], options: argparse.Namespace) -> None:
    """Write them to a file of this run; and if that is asked for, among those that are kept."""
    options.out.mkdir(parents=True, exist_ok=True)
    write_measurements(options.out / "measurements.csv", measured)
    if options.keep:
        old = read_measurements() if KEPT.exists() else []
        write_measurements(KEPT, merged(old, measured, GOALS))


def has(need: str, before: Path | None) -> bool:
    """Whether this interpreter, which runs the trials too, can have it."""
    kind, _, name = need.rpartition(" ")
    if kind == "program":
        return shutil.which(name, path=surroundings_of_a_trial(ROOT)["PATH"]) is not None
    if kind == "commit":
        return before is not None
    return importlib.util.find_spec(need) is not None


def tell(text: str) -> None:
    """Progress, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def read_command_line() -> argparse.Namespace:
    """What to do."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=raw
    )
    add = parser.add_argument
    add("--quick", action="store_true", help=f"what fits into {QUICK_MINUTES:g} minutes")
    add("--full", action="store_true", help="everything, which is the default")
    add("--only", type=sections, help=f"some of: {', '.join(SECTIONS)}")
    add("--minutes", type=float, help="begin nothing after so long")
    add("--rounds", type=int, default=ROUNDS, help=f"at most ({ROUNDS})")
    add("--keep", action="store_true", help="replace what is kept of all that is measured")
    add(
        "--before",
        type=Path,
        help=f"the src folder of an older state to be held against, if not that of {BEFORE}",
    )
    add("--out", type=Path, default=ROOT / "build" / "benchmarks")
    add("--source", type=Path, default=ROOT / "src", help="where the library is, if not in src")
    add("--read", type=Path, help="a CSV of an earlier run, in place of a new one")
    add("--pages", action="store_true", help="make tables and pictures, and measure nothing")
    options = parser.parse_args()
    if options.quick and options.full:
        parser.error("--quick or --full, not both")
    return options


def sections(text: str) -> list[str]:
    """Names between commas."""
    names = [word.strip() for word in text.split(",")]
    if unknown := [name for name in names if name not in SECTIONS]:
        raise argparse.ArgumentTypeError(f"no section {unknown[0]!r}, but {', '.join(SECTIONS)}")
    return names


if __name__ == "__main__":
    main()
