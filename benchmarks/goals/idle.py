"""Goal 6: a group that only waits costs its parent nothing."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.figures import spread
from benchmarks.records import Scale, Table, Trial
from benchmarks.report import Line

GOAL = 6
OURS = tuple(f"rankspawn {method}" for method in ("spawn", "fork", "forkserver"))
PEERS = ("multiprocessing spawn", "concurrent.futures spawn", "loky")
SLOW_PEERS = ("torch spawn", "Paddle spawn", "torchrunx")


def trials(scale: Scale) -> list[Trial]:
    """Counts hardly differ between rounds, and each takes its time: a few will do."""
    names = OURS if scale.quick else (*OURS, *PEERS, *SLOW_PEERS)
    found = [Trial("idle", name, 4, seconds=scale.idle_seconds) for name in names]
    return [replace(one, every=scale.slow_every) for one in found]


def lines(table: Table, scale: Scale) -> list[Line]:
    """None is the goal; what peers do is told."""
    found = []
    for name in (*OURS, *PEERS, *SLOW_PEERS):
        trial = Trial("idle", name, 4, seconds=scale.idle_seconds)
        counts = spread(table.rounds(trial, "per_minute").values())
        what = f"idle group of 4, wake-ups of the parent per minute: {name}"
        wanted = 0.0 if name in OURS else None
        found.append(Line(GOAL, what, "", "", counts, unit="", at_most=wanted))
    return [line for line in found if line.has_goal or line.figure is not None]
