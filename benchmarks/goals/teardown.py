"""Goal 5: one of many sleeping workers fails."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.figures import spread
from benchmarks.goals.compare import times_faster, times_slower
from benchmarks.records import Scale, Table, Trial
from benchmarks.report import Line

GOAL = 5
NPROCS = 32
# What a start method is held against: processes of the same making, only signalled and reaped.
BARE = {"spawn": "bare interpreters", "fork": "bare fork", "forkserver": "bare fork"}
TRIES = 3
SLOW_PEERS = ("torch spawn", "Paddle spawn")


def trials(scale: Scale) -> list[Trial]:
    """The frameworks take a minute to start 32 workers, so a quick run leaves them out."""
    names = [f"rankspawn {method}" for method in BARE] + sorted(set(BARE.values()))
    found = [Trial("teardown", name, NPROCS, tries=TRIES) for name in names]
    slow = [Trial("teardown", peer, NPROCS) for peer in SLOW_PEERS]
    return found + [replace(one, every=scale.slow_every) for one in slow if not scale.quick]


def lines(table: Table, _: Scale) -> list[Line]:
    """Beside what the system needs for SIGTERM and reaping, and beside the frameworks."""
    found = []
    for method, bare in BARE.items():
        ours = Trial("teardown", f"rankspawn {method}", NPROCS)
        what = f"one of 32 fails, {method}: over SIGTERM and reap, {bare}"
        limit = Trial("teardown", bare, NPROCS)
        found.append(times_slower(table, GOAL, what, ours, limit, at_most=1.2))
        found.append(
            Line(
                GOAL,
                f"one of 32 fails, {method}: workers left when the exception is raised",
                "",
                "",
                spread(table.rounds(ours, "left").values()),
                unit="",
                at_most=0.0,
            )
        )
    ours = Trial("teardown", "rankspawn spawn", NPROCS)
    for peer in SLOW_PEERS:
        what = f"one of 32 fails, spawn: {peer}"
        found.append(times_faster(table, GOAL, what, ours, Trial("teardown", peer, NPROCS)))
    return [line for line in found if line.has_goal or line.figure is not None]
