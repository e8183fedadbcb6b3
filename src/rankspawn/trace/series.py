"""Curves that never take more than so many points, however long they get. Pure."""

from __future__ import annotations


class Series:
    """Times and values, thinned as they grow.

    Args:
        most: How many points are kept.
    """

    __slots__ = ("_most", "_spacing", "times", "values")

    def __init__(self, most: int) -> None:
        self.times: list[float] = []
        self.values: list[float] = []
        self._most = max(4, most)
        # Points that are nearer to each other than this are one; grows as the curve does.
        self._spacing = 0.0

    def add(self, at: float, value: float) -> None:
        """Add a point, later than all others; the last one is always kept as it is."""
        times, values = self.times, self.values
        is_flat = len(values) > 1 and values[-2] == values[-1] == value
        is_near = len(times) > 1 and at - times[-2] < self._spacing
        if is_flat or is_near:
            times[-1], values[-1] = at, value
            return
        times.append(at)
        values.append(value)
        if len(times) > self._most:
            last = times[-1], values[-1]
            times[:], values[:] = times[:-1:2], values[:-1:2]
            times.append(last[0])
            values.append(last[1])
            self._spacing = 2 * (times[-1] - times[0]) / self._most

    def as_data(self, until: float) -> list[list[float]]:
        """Times and values, rounded to what can be seen; nothing is later than a time."""
        return [
            [round(min(time, until), 3) for time in self.times],
            [float(f"{value:.5g}") for value in self.values],
        ]
