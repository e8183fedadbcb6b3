"""Curves of bounded length."""

from __future__ import annotations

import itertools
import math

from rankspawn.trace.series import Series


def test_a_short_curve_is_kept_whole() -> None:
    series = Series(10)
    for at in range(5):
        series.add(at, at * at)
    assert series.as_data(math.inf) == [[0, 1, 2, 3, 4], [0, 1, 4, 9, 16]]
    assert series.as_data(2.5) == [[0, 1, 2, 2.5, 2.5], [0, 1, 4, 9, 16]]


def test_a_long_one_keeps_its_ends_and_its_shape() -> None:
    series = Series(50)
    for at in range(100_000):
        series.add(at, math.sin(at / 10_000))
        assert len(series.times) <= 50
    times, values = series.as_data(math.inf)
    assert times[0] == 0
    assert times[-1] == 99_999
    assert times == sorted(times)
    assert len(times) > 20
    assert all(
        abs(value - math.sin(time / 10_000)) < 1e-4
        for time, value in zip(times, values, strict=True)
    )
    assert max(after - before for before, after in itertools.pairwise(times)) < 15_000


def test_what_does_not_change_takes_no_room() -> None:
    series = Series(50)
    for at in range(1000):
        series.add(at, 7)
    series.add(1000, 8)
    assert series.as_data(math.inf) == [[0, 999, 1000], [7, 7, 8]]
