"""Goal 2: workers that need torch, from a fork server that has it loaded."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.goals.compare import times_faster
from benchmarks.records import Scale, Table, Trial
from benchmarks.report import Line

GOAL = 2
OURS = Trial("torch_ranks", "rankspawn forkserver", 8)
TORCH = replace(OURS, contender="torch spawn")
# With the same module preloaded: what its fork server alone brings.
OTHERS = [
    replace(OURS, contender=name) for name in ("multiprocessing forkserver", "torch forkserver")
]


def trials(scale: Scale) -> list[Trial]:
    """Ours and torch's in every round: no other pair of this goal is judged."""
    return [OURS, TORCH, *([] if scale.quick else [replace(one, every=2) for one in OTHERS])]


def lines(table: Table, _: Scale) -> list[Line]:
    """The first start of the program, and the second."""
    found = []
    for peer in (TORCH, *OTHERS):
        judged = peer is TORCH
        for metric, moment, wanted in (
            ("seconds", "the first time", 3.5),
            ("seconds_again", "the second time", 30.0),
        ):
            found.append(
                times_faster(
                    table,
                    GOAL,
                    f"forkserver with torch, n=8, {moment}: {peer.contender}",
                    OURS,
                    peer,
                    metric,
                    at_least=wanted if judged else None,
                )
            )
    return [line for line in found if line.has_goal or line.figure is not None]
