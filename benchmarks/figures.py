"""Statistics of repeated measurements. Pure: numbers in, numbers out.

Other work on the machine slows every contender of a round alike, so two contenders are
compared within each round, and the median of these ratios is what counts; a ratio of two
medians would compare moments with different load.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Rounds = Mapping[int, float]


@dataclass(frozen=True)
class Spread:
    """The middle of some values and how far they reach."""

    median: float
    low: float
    high: float
    count: int


def spread(values: Iterable[float]) -> Spread | None:
    """Median, least and greatest; None of no values."""
    known = sorted(values)
    if not known:
        return None
    return Spread(statistics.median(known), known[0], known[-1], len(known))


def per_round(above: Rounds, below: Rounds) -> dict[int, float]:
    """Their ratio in each round that has both; where ``below`` is not positive there is none."""
    return {
        number: above[number] / below[number]
        for number in sorted(above.keys() & below.keys())
        if below[number] > 0
    }


def minus(whole: Rounds, part: Rounds) -> dict[int, float]:
    """Their difference in each round that has both."""
    return {number: whole[number] - part[number] for number in whole.keys() & part.keys()}


def by_round(series: Mapping[int, Rounds]) -> dict[int, dict[int, float]]:
    """From n to rounds to value, to round to n to value; only rounds that have every n."""
    common = set.intersection(*(set(rounds) for rounds in series.values())) if series else set()
    return {number: {n: rounds[number] for n, rounds in series.items()} for number in common}


def judged_by_medians(
    series: Mapping[int, Rounds], judge: Callable[[Mapping[int, float]], float | None]
) -> Spread | None:
    """What ``judge`` makes of the medians; the range is what it makes of single rounds.

    None if a part of the series is missing: the rest would be judged too kindly.
    """
    if not all(series.values()):
        return None
    middle = judge({n: statistics.median(rounds.values()) for n, rounds in series.items()})
    if middle is None:
        return None
    single = [judge(values) for values in by_round(series).values()]
    values = [middle, *(one for one in single if one is not None)]
    return Spread(middle, min(values), max(values), len(single))


def flatness(costs: Mapping[int, float]) -> float | None:
    """The greatest over the least of some costs; None unless all of them are positive."""
    known = costs.values()
    return max(known) / min(known) if known and min(known) > 0 else None


def growth_exponent(costs: Mapping[int, float]) -> float | None:
    """The k of cost ~ n**k by least squares on a double logarithmic scale; 1 is linear."""
    if len(costs) < 2:
        return None
    if min(costs.values()) <= 0:
        return None
    xs = [math.log(n) for n in costs]
    ys = [math.log(cost) for cost in costs.values()]
    return statistics.linear_regression(xs, ys).slope
