"""Goal 1: the start of workers that do nothing."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.goals.compare import times_faster, times_slower
from benchmarks.records import Scale, Table, Trial
from benchmarks.report import Line

GOAL = 1
METHODS = ("spawn", "fork", "forkserver")
NPROCS = (2, 8, 32)
# Not the frameworks: they take so long that a single moment does not matter.
TRIES = 3
QUICKER_PEERS = ("concurrent.futures spawn", "loky", "bare interpreters")
SLOW_PEERS = ("torch spawn", "torch forkserver", "Paddle spawn", "torchrunx")
MUST_BE_SLOWER = ("torch spawn", "Paddle spawn")


def trials(scale: Scale) -> list[Trial]:
    """Every peer at every size; in a quick run the slow ones only where a goal names them."""
    found = [
        Trial("start", f"{family} {method}", nprocs, tries=TRIES)
        for family in ("rankspawn", "multiprocessing")
        for method in METHODS
        for nprocs in NPROCS
    ]
    found += [
        Trial("start", peer, nprocs, tries=TRIES) for peer in QUICKER_PEERS for nprocs in NPROCS
    ]
    if scale.quick:
        slow = [Trial("start", peer, 8) for peer in MUST_BE_SLOWER]
    else:
        slow = [Trial("start", peer, nprocs) for peer in SLOW_PEERS for nprocs in NPROCS]
    return found + [replace(one, every=scale.slow_every) for one in slow]


def lines(table: Table, scale: Scale) -> list[Line]:
    """Not slower than multiprocessing, many times faster than the frameworks."""
    found = [
        times_faster(
            table,
            GOAL,
            f"start {method}, n={nprocs}: multiprocessing {method}",
            Trial("start", f"rankspawn {method}", nprocs),
            Trial("start", f"multiprocessing {method}", nprocs),
            at_least=1.0,
        )
        for method in METHODS
        for nprocs in NPROCS
    ]
    for peer in (*SLOW_PEERS, *QUICKER_PEERS[:-1]):
        for nprocs in NPROCS if not scale.quick else (8,):
            has_goal = peer in MUST_BE_SLOWER and nprocs == 8
            found.append(
                times_faster(
                    table,
                    GOAL,
                    f"start spawn, n={nprocs}: {peer}",
                    Trial("start", "rankspawn spawn", nprocs),
                    Trial("start", peer, nprocs),
                    at_least=20.0 if has_goal else None,
                )
            )
    found += [
        times_slower(
            table,
            GOAL,
            f"start spawn, n={nprocs}: over bare interpreters",
            Trial("start", "rankspawn spawn", nprocs),
            Trial("start", "bare interpreters", nprocs),
        )
        for nprocs in NPROCS
    ]
    return [line for line in found if line.has_goal or line.figure is not None]
