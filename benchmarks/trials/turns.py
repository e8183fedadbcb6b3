"""Several ways to do the same, in turns, in ranks that begin each turn together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

Ways = Mapping[str, Callable[[], Any]]


def in_turns(
    meet: Callable[[], Any], ways: Ways, rounds: int, repeats: int = 1, warm_up: int = 1
) -> dict[str, list[float]]:
    """Runs in every rank: the seconds of each way in each round.

    Args:
        meet: Returns in all ranks at the same time.
        ways: What is measured, by name.
        rounds: How often.
        repeats: So often in a row in a round, where once is too short.
        warm_up: So many rounds more, before those that count.
    """
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + warm_up):
        for way, call in ways.items():
            meet()
            began = time.perf_counter()
            for _ in range(repeats):
                call()
            if number >= warm_up:
                seconds[way].append((time.perf_counter() - began) / repeats)
    return seconds
