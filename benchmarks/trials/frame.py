"""What every trial has in common: its parameters, and how it tells what it measured."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Any

# What a line of the output begins with that holds the figures; peers print other things.
PREFIX = "FIGURES "


def run(measure: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Call ``measure`` with the trial as a mapping, and print what it returns.

    Figures that were measured in turns are a list, in which neighbours belong together.
    """
    allow_many_descriptors()
    figures = measure(json.loads(sys.argv[1]))
    print("\n" + PREFIX + json.dumps(figures), flush=True)


def allow_many_descriptors() -> None:
    """A thousand workers need more than the usual 1,024; the same room for all contenders."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
