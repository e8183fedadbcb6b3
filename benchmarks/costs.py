"""About how long each trial takes on two calm CPUs: only for the order of a run that must end.

Pure. What is not named takes a second or two.
"""

from __future__ import annotations

from benchmarks.records import Trial

_OF_SCRIPTS = {
    "arguments": 3.0,
    "bookkeeping": 3.0,
    "collectives": 8.0,
    "engines": 6.0,
    "idle": 12.0,
    "memory": 4.0,
    "preload_main": 8.0,
    "regrouping": 5.0,
    "results": 2.0,
    "teardown": 2.0,
    "tests_with_ranks": 4.0,
    "torch_ranks": 12.0,
    "training_step": 12.0,
    "troubles": 15.0,
}
_OF_CONTENDERS = {
    ("arguments", "multiprocessing spawn"): 10.0,
    ("collectives", "multiprocessing"): 2.0,
    ("engines", "Slurm"): 9.0,
    ("engines", "Ray"): 25.0,
    ("engines", "Ray Train"): 40.0,
    ("engines", "torchrunx"): 30.0,
    ("launcher", "torchrun"): 5.0,
    ("launcher", "Paddle launch"): 6.0,
    ("regrouping", "torchrun"): 20.0,
    ("start", "Paddle spawn"): 9.0,
    ("start", "torch spawn"): 9.0,
    ("tests_with_ranks", "torch MultiProcessTestCase"): 25.0,
}


# Where there are up to thousands.
_OF_EACH_RANK = {"many": 0.003, "teardown": 0.006}


def seconds_of(trial: Trial) -> float:
    """Of one run of it."""
    known = _OF_CONTENDERS.get((trial.script, trial.contender))
    seconds = known if known is not None else _OF_SCRIPTS.get(trial.script, 1.0)
    return seconds + trial.nprocs * _OF_EACH_RANK.get(trial.script, 0.0)
