"""Goal 3: a large argument for many workers, in time."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.figures import flatness, judged_by_medians, minus, spread
from benchmarks.goals.compare import times_faster, times_slower
from benchmarks.records import MIB, Scale, Table, Trial
from benchmarks.report import Line, milliseconds
from benchmarks.trials.objects import KINDS

GOAL = 3
SIZE = 256 * MIB
OURS = Trial("arguments", "rankspawn spawn", 8, "NumPy", SIZE)
MULTIPROCESSING = replace(OURS, contender="multiprocessing spawn")
# What no launcher of fresh interpreters can be faster than.
LIMIT = Trial("start", "bare interpreters with NumPy", 8, "NumPy")
SLOW_PEERS = [replace(OURS, contender=name) for name in ("torch spawn", "Paddle spawn")]
POOLS = [replace(OURS, contender=name) for name in ("loky", "concurrent.futures spawn")]
# Started from a server that has NumPy loaded, so that the start, which is subtracted, is short
# beside what is left. By the other method the difference of two long times is mostly noise.
SERVED = replace(OURS, contender="rankspawn forkserver")
NPROCS = (1, 2, 4, 8, 16, 32)
SERVED_BY_NPROCS = [replace(SERVED, nprocs=n) for n in NPROCS]
# Each of its workers is sent a copy; more of them would say the same, and take a minute.
MULTIPROCESSING_BY_NPROCS = [replace(MULTIPROCESSING, nprocs=n) for n in (1, 2, 4, 8)]
SIZES = (1 * MIB, 16 * MIB, 64 * MIB, SIZE)


def trials(scale: Scale) -> list[Trial]:
    """Against all peers, by number of workers, by size, and by type."""
    found = [OURS, MULTIPROCESSING, LIMIT]
    # They take a tenth of a second, and are compared with each other alone.
    found += [replace(one, tries=5) for one in SERVED_BY_NPROCS]
    slow = list(POOLS)
    if not scale.quick:
        found += [replace(OURS, nprocs=n) for n in NPROCS]
        slow += [*SLOW_PEERS, *MULTIPROCESSING_BY_NPROCS]
        slow += [
            replace(one, size=size) for one in (OURS, MULTIPROCESSING, POOLS[0]) for size in SIZES
        ]
        slow += [replace(one, kind=kind) for one in (OURS, MULTIPROCESSING) for kind in KINDS[1:]]
    return [*found, *(replace(one, every=scale.slow_every) for one in slow)]


def lines(table: Table, _: Scale) -> list[Line]:
    """Against bare multiprocessing; flat in the number of workers."""
    found = []
    for peer in (MULTIPROCESSING, *SLOW_PEERS, *POOLS):
        wanted = 15.0 if peer is MULTIPROCESSING else None
        what = f"256 MiB NumPy array to 8: {peer.contender}"
        found.append(times_faster(table, GOAL, what, OURS, peer, at_least=wanted))
    what = "the same, over bare interpreters that only import NumPy"
    found.append(times_slower(table, GOAL, what, OURS, LIMIT))
    what = "the same, forkserver with NumPy preloaded: multiprocessing spawn"
    found.append(times_faster(table, GOAL, what, SERVED, MULTIPROCESSING, at_least=15.0))
    what = "the limit of spawn, bare interpreters that import NumPy: multiprocessing spawn"
    found.append(times_faster(table, GOAL, what, LIMIT, MULTIPROCESSING))
    what = "the same, spawn, and each worker reads all of it: multiprocessing spawn"
    found.append(times_faster(table, GOAL, what, OURS, MULTIPROCESSING, "seconds_read"))
    found += [_flat(table, SERVED, "forkserver", 1.5), _flat(table, OURS, "spawn", None)]
    for kind in KINDS[1:]:
        ours, peer = (replace(one, kind=kind) for one in (OURS, MULTIPROCESSING))
        what = f"256 MiB as {kind} to 8: multiprocessing spawn"
        found.append(times_faster(table, GOAL, what, ours, peer))
    return [line for line in found if line.has_goal or line.figure is not None]


def added(table: Table, trial: Trial) -> dict[int, float]:
    """What the argument adds, in each round, to the start of workers that get a tiny one."""
    return minus(table.rounds(trial), table.rounds(trial, "seconds_tiny"))


def _flat(table: Table, trial: Trial, method: str, wanted: float | None) -> Line:
    costs = {n: added(table, replace(trial, nprocs=n)) for n in NPROCS}
    texts = [f"n={n} {milliseconds(spread(costs[n].values()))}" for n in (1, 8, 32)]
    return Line(
        GOAL,
        f"256 MiB NumPy array, {method}: most over least cost for n=1 to 32, start subtracted",
        ", ".join(texts),
        "",
        judged_by_medians(costs, flatness),
        at_most=wanted,
    )
