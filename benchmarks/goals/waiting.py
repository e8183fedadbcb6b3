"""Where people wait: tests on ranks, the second run, the launcher, regrouping, imports."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.records import Figure, Goal, Trial

SECTION = "waiting"
WARM = Trial("tests_with_ranks", "rankspawn warm", 2)
FRESH = replace(WARM, contender="rankspawn spawn", slow=True)
TESTS_BEFORE = replace(FRESH, contender="before")
TORCH_CASE = replace(WARM, contender="torch MultiProcessTestCase", slow=True)
WITH_TORCH = replace(WARM, kind="torch")
IMPORTS = Trial("import_times", "rankspawn", 1, slow=True)
MAIN = Trial("preload_main", "rankspawn main", 8, kind="torch, pandas", slow=True)
EVERY = replace(MAIN, contender="rankspawn spawn")
COPIES = replace(MAIN, contender="bare fork")
LAUNCH = Trial("launcher", "rankrun", 2)
TORCHRUN = replace(LAUNCH, contender="torchrun", slow=True)
PADDLE = replace(LAUNCH, contender="Paddle launch", slow=True)
BARE = replace(LAUNCH, contender="bare interpreters")
REGROUP = Trial("regrouping", "rankrun", 6, "a worker is killed", slow=True)
LAUNCHER = replace(REGROUP, kind="a launcher is killed")
FIRST = Trial("first_spawn", "rankspawn", 1)
BEFORE = replace(FIRST, contender="before")

TEST = "a test of 2 ranks that does nothing"
SECOND = "second start of 8, torch and pandas in the script"
KILLED = "elastic, 3 nodes of 2: a worker is killed, until all of the next start run"
FIRST_WHAT = "import and first spawn of 1 rank, bare interpreter subtracted"


def _in(what: str, trial: Trial, unit: str, at_most: float, metric: str = "seconds") -> Goal:
    figure = Figure(trial, metric)
    return Goal(SECTION, what, "value", figure, unit=unit, at_most=at_most)


def _seen(what: str, trial: Trial, metric: str) -> Goal:
    return Goal(SECTION, what, "value", Figure(trial, metric), unit="ms")


def _beside(what: str, ours: Trial, other: Trial, metric: str = "seconds", **wanted: float) -> Goal:
    how = "slower" if "at_most" in wanted else "faster"
    return Goal(SECTION, what, how, Figure(ours, metric), Figure(other, metric), **wanted)  # type: ignore[arg-type]


GOALS = [
    _in(f"{TEST}, from the second on", WARM, "ms", 80),
    _beside(f"{TEST}: fresh processes", WARM, FRESH),
    _beside(f"{TEST}: over the state before", WARM, TESTS_BEFORE, at_least=10),
    _beside(f"{TEST}: torch's MultiProcessTestCase", WARM, TORCH_CASE, at_least=10),
    _in(f"{TEST}, the module imports torch", WITH_TORCH, "ms", 150),
    _in(f'{SECOND}, preload="main"', MAIN, "ms", 60),
    replace(_beside(f'{SECOND}, preload="main": spawn', MAIN, EVERY), quick=False),
    Goal(
        *(SECTION, f'{SECOND}, preload="main": over bare copies', "slower"),
        *(Figure(MAIN), Figure(COPIES)),
        quick=False,
    ),
    _in("rankrun, 2 workers, an empty script", LAUNCH, "ms", 55),
    Goal(
        *(SECTION, "the same, over two bare interpreters at the same time", "more"),
        *(Figure(LAUNCH), Figure(BARE)),
        unit="ms",
    ),
    _beside("the same: torchrun", LAUNCH, TORCHRUN, at_least=8),
    _beside("the same: paddle.distributed.launch", LAUNCH, PADDLE, at_least=8),
    _in(KILLED, REGROUP, "s", 0.5),
    _beside(
        "the same restart: torchrun", REGROUP, replace(REGROUP, contender="torchrun"), at_least=5
    ),
    _in("elastic, 3 nodes of 2: a launcher is killed, likewise", LAUNCHER, "s", 2.0),
    _seen(FIRST_WHAT, FIRST, "seconds"),
    _seen("import of rankspawn itself", IMPORTS, "import of rankspawn"),
    _beside(f"{FIRST_WHAT}: over the state before", FIRST, BEFORE, at_most=0.67),
    Goal(
        *(SECTION, f"{FIRST_WHAT}: over multiprocessing spawn", "slower"),
        *(Figure(FIRST), Figure(replace(FIRST, contender="multiprocessing spawn"))),
    ),
]
