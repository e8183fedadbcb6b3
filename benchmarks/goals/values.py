"""Large arguments and results: their time, and the memory that they take."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.records import MIB, Figure, Goal, Trial
from benchmarks.trials.objects import KINDS

SECTION = "values"
SIZE = 256 * MIB
# Their start, which is subtracted, is short beside what is left: the server has NumPy loaded. By
# the other method the difference of two long times is mostly noise.
SERVED = Trial("arguments", "rankspawn forkserver", 8, "NumPy", SIZE, tries=3)
OURS = Trial("arguments", "rankspawn spawn", 8, "NumPy", SIZE, slow=True)
PEER = replace(OURS, contender="multiprocessing spawn")
# What no launcher of fresh interpreters can be faster than.
LIMIT = Trial("start", "bare interpreters with NumPy", 8, "NumPy")
RESULTS = Trial("results", "rankspawn spawn", 4, "NumPy", SIZE)
MEMORY = Trial("memory", "rankspawn spawn", 8, "NumPy", SIZE, slow=True)
# Python has no way to build these on memory that is there already, so each worker copies them.
COPIED = ("bytes", "bytearray")
ARRAY = "256 MiB NumPy array to 8"


def _sent(peer: str, wanted: float | None = None) -> Goal:
    other = replace(OURS, contender=peer)
    what = f"{ARRAY}: {peer}"
    quick = peer == PEER.contender
    return Goal(SECTION, what, "faster", Figure(OURS), Figure(other), quick=quick, at_least=wanted)


def _as(kind: str) -> Goal:
    ours, peer = (Figure(replace(one, kind=kind)) for one in (OURS, PEER))
    what = f"256 MiB as {kind} to 8: multiprocessing spawn"
    return Goal(SECTION, what, "faster", ours, peer, quick=False)


def _returned(peer: str, wanted: float | None = None) -> Goal:
    other = replace(RESULTS, contender=peer, slow=True)
    what = f"256 MiB from each of 4: {peer}"
    quick = peer == "concurrent.futures spawn"
    return Goal(
        SECTION, what, "faster", Figure(RESULTS), Figure(other), quick=quick, at_least=wanted
    )


def _memory(trial: Trial) -> Goal:
    who = "" if trial.contender == MEMORY.contender else f" ({trial.contender})"
    return Goal(
        SECTION,
        f"PSS of 8 workers that read 256 MiB as {trial.kind}, over payload + bare workers{who}",
        "memory",
        Figure(trial, "workers_large"),
        Figure(trial, "workers_tiny"),
        at_most=None if who or trial.kind in COPIED else 1.2,
        quick=False,
    )


GOALS = [
    _sent("multiprocessing spawn", 15),
    *map(_sent, ("torch spawn", "Paddle spawn", "loky", "concurrent.futures spawn")),
    Goal(
        *(SECTION, "the same, forkserver with NumPy preloaded: multiprocessing spawn", "faster"),
        *(Figure(SERVED), Figure(PEER)),
        at_least=15,
    ),
    Goal(
        *(SECTION, "the same by spawn, over bare interpreters that only import NumPy", "slower"),
        *(Figure(OURS), Figure(LIMIT)),
    ),
    Goal(
        SECTION,
        "the same, forkserver: most over least cost for n=1 to 32, start subtracted",
        "flat",
        Figure(SERVED),
        at_most=1.5,
        nprocs=(1, 2, 4, 8, 16, 32),
        quick=False,
    ),
    *(_as(kind) for kind in KINDS[1:]),
    *(_memory(replace(MEMORY, kind=kind)) for kind in KINDS),
    _memory(replace(MEMORY, contender="multiprocessing spawn")),
    Goal(
        *(SECTION, "256 MiB from each of 4, until results() has them", "rate", Figure(RESULTS)),
        unit="GB/s",
        at_least=1,
    ),
    Goal(
        *(SECTION, "results that the parent may write to", "value", Figure(RESULTS, "writable")),
        unit="",
        at_least=1,
    ),
    _returned("concurrent.futures spawn", 3),
    _returned("loky", 3),
    _returned("torchrunx"),
]
