"""Goal 3: a large argument for many workers, in memory."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.figures import per_round, spread
from benchmarks.records import MIB, Scale, Table, Trial
from benchmarks.report import Line
from benchmarks.trials.objects import KINDS

GOAL = 3
SIZE = 256 * MIB
OURS = Trial("memory", "rankspawn spawn", 8, "NumPy", SIZE)
PEER = replace(OURS, contender="multiprocessing spawn")
# Python has no way to build these on memory that is there already, so each worker copies them.
COPIED = ("bytes", "bytearray")


def trials(scale: Scale) -> list[Trial]:
    """Each type once in a while: pages are counted, not timed, and hardly differ."""
    kinds = [replace(OURS, kind=kind) for kind in KINDS]
    return [replace(one, every=scale.slow_every) for one in (*kinds, PEER)]


def lines(table: Table, _: Scale) -> list[Line]:
    """The workers' memory over the payload and as many bare workers."""
    found = [
        _line(table, replace(OURS, kind=kind), None if kind in COPIED else 1.2) for kind in KINDS
    ]
    found.append(_line(table, PEER, None))
    return [line for line in found if line.has_goal or line.figure is not None]


def _line(table: Table, trial: Trial, wanted: float | None) -> Line:
    large = table.rounds(trial, "workers_large")
    limit = {
        number: trial.size + bare for number, bare in table.rounds(trial, "workers_tiny").items()
    }
    who = "" if trial.contender == OURS.contender else f" ({trial.contender})"
    return Line(
        GOAL,
        f"PSS of 8 workers that read 256 MiB as {trial.kind}, over payload + bare workers{who}",
        _mebibytes(large),
        _mebibytes(limit),
        spread(per_round(large, limit).values()),
        at_most=wanted,
    )


def _mebibytes(rounds: dict[int, float]) -> str:
    known = spread(rounds.values())
    return "-" if known is None else f"{known.median / MIB:,.0f} MiB"
