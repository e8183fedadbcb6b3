"""All goals, as data: what is measured, by which program, and what counts as met."""

from __future__ import annotations

from benchmarks.goals import (
    curves,
    ending,
    forks,
    machines,
    starting,
    talking,
    troubles,
    values,
    waiting,
)
from benchmarks.records import Goal

_MODULES = (waiting, starting, forks, values, ending, talking, machines, troubles, curves)
GOALS: list[Goal] = [goal for module in _MODULES for goal in module.GOALS]
SECTIONS = [module.SECTION for module in _MODULES]
