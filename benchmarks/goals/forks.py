"""Which page of a fork buys what. No goals: it explains one."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.records import Figure, Goal, Trial

SECTION = "forks"
ALL = "all of these"
PARTS = (
    "the mark",
    "the outcome file",
    "the stacks handler",
    "the variables",
    "exit functions",
    ALL,
)
BARE = Trial("pages", "bare fork", 32)
MULTIPROCESSING = replace(BARE, contender="multiprocessing fork")
OURS = replace(BARE, contender="rankspawn fork")
WITHOUT = [replace(OURS, kind=part) for part in PARTS]


def _pages(trial: Trial) -> Goal:
    without = f", without {trial.kind}" if trial.kind else ""
    what = f"pages that a fork touches, {trial.contender}{without}"
    quick = not without
    return Goal(SECTION, what, "value", Figure(trial, "pages"), unit="", quick=quick)


GOALS = [_pages(trial) for trial in (BARE, MULTIPROCESSING, OURS, *WITHOUT)]
