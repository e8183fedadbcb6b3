"""The end of a group: a failure among many; and a group that only waits."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.records import Figure, Goal, Trial

SECTION = "end"
NPROCS = 32
METHODS = ("spawn", "fork", "forkserver")


def _fails(method: str) -> list[Goal]:
    ours = Trial("teardown", f"rankspawn {method}", NPROCS, tries=2)
    # Who was forked by a server is no child of the one that ends it: so those of a fork do.
    like = "fork" if method == "forkserver" else method
    by_hand = Trial("teardown", f"by hand {like}", NPROCS, tries=2)
    what = f"one of {NPROCS} fails, {method}"
    return [
        Goal(
            *(SECTION, f"{what}: over ending the same workers by hand", "slower"),
            *(Figure(ours), Figure(by_hand)),
            at_most=1.25,
        ),
        Goal(
            *(SECTION, f"{what}: without the stacks of the others, over by hand", "slower"),
            *(Figure(replace(ours, kind="without stacks")), Figure(by_hand)),
        ),
        Goal(
            *(SECTION, f"{what}: workers left at the exception", "value", Figure(ours, "left")),
            unit="",
            at_most=0,
        ),
    ]


def _bare(method: str, bare: str) -> Goal:
    ours = Trial("teardown", f"rankspawn {method}", NPROCS, tries=2)
    other = Trial("teardown", bare, NPROCS, tries=2)
    what = f"one of {NPROCS} fails, {method}: over SIGTERM and reap, {bare}"
    return Goal(SECTION, what, "slower", Figure(ours), Figure(other))


def _idle(method: str) -> Goal:
    figure = Figure(Trial("idle", f"rankspawn {method}", 4, seconds=5.0, slow=True), "per_minute")
    what = f"idle group of 4, {method}: wake-ups of the parent per minute"
    return Goal(SECTION, what, "value", figure, unit="", at_most=0, quick=False)


GOALS = [
    *(goal for method in METHODS for goal in _fails(method)),
    _bare("spawn", "bare interpreters"),
    _bare("fork", "bare fork"),
    *map(_idle, METHODS),
]
