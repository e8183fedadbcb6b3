"""Lines that most goals need: one contender's cost against another's, round by round."""

from __future__ import annotations

from benchmarks.figures import per_round, spread
from benchmarks.records import Table, Trial
from benchmarks.report import Line, milliseconds


def times_faster(
    table: Table,
    goal: int,
    what: str,
    ours: Trial,
    peer: Trial,
    metric: str = "seconds",
    *,
    at_least: float | None = None,
) -> Line:
    """How many times longer the peer takes."""
    mine, other = table.rounds(ours, metric), table.rounds(peer, metric)
    return Line(
        goal,
        what,
        milliseconds(spread(mine.values())),
        milliseconds(spread(other.values())),
        spread(per_round(other, mine).values()),
        at_least=at_least,
    )


def times_slower(
    table: Table,
    goal: int,
    what: str,
    ours: Trial,
    limit: Trial,
    *,
    at_most: float | None = None,
) -> Line:
    """How many times longer it takes than the limit does."""
    mine, other = table.rounds(ours), table.rounds(limit)
    return Line(
        goal,
        what,
        milliseconds(spread(mine.values())),
        milliseconds(spread(other.values())),
        spread(per_round(mine, other).values()),
        at_most=at_most,
    )
