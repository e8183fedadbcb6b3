"""Goal 4: large results from several workers."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.figures import spread
from benchmarks.goals.compare import times_faster
from benchmarks.records import MIB, Scale, Table, Trial
from benchmarks.report import Line, milliseconds

GOAL = 4
SIZE = 256 * MIB
OURS = Trial("results", "rankspawn spawn", 4, "NumPy", SIZE)
POOLS = [replace(OURS, contender=name) for name in ("concurrent.futures spawn", "loky")]
SLOW_PEER = replace(OURS, contender="torchrunx")
SIZES = (1 * MIB, 16 * MIB, 64 * MIB, SIZE)


def trials(scale: Scale) -> list[Trial]:
    """Not torch and Paddle: one has no results, the other's hang when they are large."""
    if scale.quick:
        return [OURS, *POOLS]
    found = [replace(one, size=size) for one in (OURS, *POOLS) for size in SIZES]
    return [*found, replace(SLOW_PEER, every=scale.slow_every)]


def lines(table: Table, _: Scale) -> list[Line]:
    """As a rate, and against the pools."""
    seconds = table.rounds(OURS)
    rates = [OURS.nprocs * SIZE / 1e9 / one for one in seconds.values()]
    writable = spread(table.rounds(OURS, "writable").values())
    mine = milliseconds(spread(seconds.values()))
    rate = Line(
        GOAL,
        "256 MiB from each of 4, until results() has them",
        mine,
        "",
        spread(rates),
        unit=" GB/s",
        at_least=1.0,
    )
    share = Line(
        GOAL, "results that the parent may write to", "", "", writable, unit="", at_least=1.0
    )
    found = [rate, share]
    for peer in (*POOLS, SLOW_PEER):
        wanted = 3.0 if peer in POOLS else None
        what = f"256 MiB from each of 4: {peer.contender}"
        found.append(times_faster(table, GOAL, what, OURS, peer, at_least=wanted))
        what = f"the same, and the parent reads all of it: {peer.contender}"
        found.append(times_faster(table, GOAL, what, OURS, peer, "seconds_read"))
    return [line for line in found if line.has_goal or line.figure is not None]
