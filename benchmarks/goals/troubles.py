"""How soon a job of rankrun on several machines notices trouble: times without goals."""

from __future__ import annotations

from benchmarks.records import Figure, Goal, Trial

SECTION = "trouble"
# Seconds of silence after which a node counts as lost.
NODE_TIMEOUT = 10.0
CASES = (
    "a worker dies: all exit",
    "SIGTERM to a launcher: all exit",
    "a launcher is killed: the others exit",
    "the master's launcher is killed: the others exit",
    "a node falls silent: the others exit",
    "elastic, a node leaves: the next first lines",
    "elastic, a launcher is killed: the next first lines",
    "elastic, a node falls silent: the next first lines",
    "elastic, a node joins: the next first lines",
)


def _case(name: str) -> Goal:
    trial = Trial("troubles", "rankrun", 3, name, seconds=NODE_TIMEOUT, slow=True)
    return Goal(SECTION, name, "value", Figure(trial), unit="s", quick=False)


GOALS = [_case(name) for name in CASES]
