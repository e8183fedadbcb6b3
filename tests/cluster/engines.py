"""Every engine that the common tests run over: two nodes each.

An engine is added as a line: its name, and a function that gives it for so many nodes, or skips
the test with the reason if what it needs is not here.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rankspawn.cluster import Engine, Local

MakeEngine = Callable[[int], Engine]

ENGINES: dict[str, MakeEngine] = {
    "local": lambda nodes: Local(nodes=nodes),
}
# Those that the README's test command runs; the others take longer, and are slow.
FAST = ("local",)


def parameters() -> list[object]:
    """One for each engine, for ``pytest.fixture``."""
    return [
        pytest.param(make, id=name, marks=() if name in FAST else pytest.mark.slow)
        for name, make in ENGINES.items()
    ]
