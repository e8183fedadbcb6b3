"""Goal 8: tests on ranks, and the second start of a script that imports torch."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.figures import spread
from benchmarks.goals.compare import times_faster, times_slower
from benchmarks.records import Scale, Table, Trial
from benchmarks.report import Line

GOAL = 8
WARM = Trial("tests_with_ranks", "rankspawn warm", 2)
FRESH = replace(WARM, contender="rankspawn spawn")
TORCH = replace(WARM, contender="torch MultiProcessTestCase")
WITH_TORCH = replace(WARM, kind="torch")
MAIN = Trial("preload_main", "rankspawn main", 8, kind="torch")
EVERY = replace(MAIN, contender="rankspawn spawn")
COPIES = replace(MAIN, contender="bare fork")


def trials(scale: Scale) -> list[Trial]:
    """The fresh ones take long, and are measured less often."""
    slow = [replace(one, every=scale.slow_every) for one in (TORCH, EVERY)]
    return [WARM, FRESH, WITH_TORCH, MAIN, COPIES, *slow]


def lines(table: Table, _: Scale) -> list[Line]:
    """Each test but the first of its file; the second start of a script."""
    test, start = "test of 2 ranks that does nothing", "second start of 8, torch in the script"
    return [
        _in_milliseconds(table, test, WARM, 80),
        times_faster(table, GOAL, f"{test}: fresh processes", WARM, FRESH, at_least=10),
        times_faster(
            table, GOAL, f"{test}: torch's MultiProcessTestCase", WARM, TORCH, at_least=10
        ),
        _in_milliseconds(table, f"{test}, torch imported", WITH_TORCH, 150),
        _in_milliseconds(table, f'{start}, preload="main"', MAIN, 60),
        times_faster(table, GOAL, f'{start}, preload="main": spawn', MAIN, EVERY),
        times_slower(table, GOAL, f'{start}, preload="main": over bare copies', MAIN, COPIES),
    ]


def _in_milliseconds(table: Table, what: str, trial: Trial, at_most: float) -> Line:
    values = [1000 * seconds for seconds in table.rounds(trial).values()]
    return Line(GOAL, what, "", "", spread(values), unit=" ms", at_most=at_most)
