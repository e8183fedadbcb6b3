"""How long a call takes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def timed(call: Callable[[], object]) -> float:
    """Seconds of wall time; garbage of what came before is collected first."""
    gc.collect()
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def best_of(tries: int, measure: Callable[[], float]) -> dict[str, float]:
    """The least of some values as ``seconds``, and if there are several, each of them."""
    values = [measure() for _ in range(tries)]
    single = {f"seconds_try_{number}": value for number, value in enumerate(values, 1)}
    return {"seconds": min(values), **(single if tries > 1 else {})}
