"""The measurements as a table: each figure, the goal beside it, and whether it is met.

Pure: lines in, text out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figures import Spread


@dataclass(frozen=True)
class Line:
    """One row: what was compared, the figure, and what it should be.

    Attributes:
        goal: Its number.
        what: What was measured, and against whom.
        ours: rankspawn's own figure, for people.
        other: That of the peer.
        figure: What is judged.
        unit: What stands behind it, such as ``x``.
        at_least: The goal, if it is one from below.
        at_most: The goal, if it is one from above.
    """

    goal: int
    what: str
    ours: str
    other: str
    figure: Spread | None
    unit: str = "x"
    at_least: float | None = None
    at_most: float | None = None

    @property
    def has_goal(self) -> bool:
        """False for what is told for information only."""
        return self.at_least is not None or self.at_most is not None

    @property
    def is_met(self) -> bool:
        """The median is where it should be; what was not measured is not met."""
        if self.figure is None:
            return False
        low = self.at_least is None or self.figure.median >= self.at_least
        return low and (self.at_most is None or self.figure.median <= self.at_most)

    @property
    def verdict(self) -> str:
        """One word for the last column."""
        if self.figure is None:
            return "not measured"
        if not self.has_goal:
            return ""
        return "met" if self.is_met else "MISSED"


HEADINGS = ("goal", "what", "rankspawn", "other", "figure", "range", "wanted", "")


def table(lines: Sequence[Line]) -> str:
    """All lines below each other, as a Markdown table with aligned columns."""
    rows = [HEADINGS, *(_cells(line) for line in lines)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADINGS))]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    )


def summary(lines: Sequence[Line]) -> str:
    """How many goals are met, and in plain words which are not."""
    judged = [line for line in lines if line.has_goal and line.figure is not None]
    missed = [line for line in judged if not line.is_met]
    unknown = [line for line in lines if line.has_goal and line.figure is None]
    text = [f"{len(judged) - len(missed)} of {len(judged)} measured goals are met."]
    text += [f"MISSED goal {line.goal}: {line.what}: {_shortfall(line)}" for line in missed]
    text += [f"not measured, goal {line.goal}: {line.what}" for line in unknown]
    return "\n".join(text)


def milliseconds(seconds: Spread | None) -> str:
    """A time for people: ``12.3 ms``, ``1,234 ms``."""
    if seconds is None:
        return "-"
    value = seconds.median * 1000
    return f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"


def _shortfall(line: Line) -> str:
    assert line.figure is not None, "a line without a figure is not judged"
    return f"{_number(line.figure.median)}{line.unit}, wanted {_wanted(line)}"


def _cells(line: Line) -> tuple[str, ...]:
    figure = line.figure
    middle = "-" if figure is None else f"{_number(figure.median)}{line.unit}"
    reach = "-" if figure is None else f"{_number(figure.low)} to {_number(figure.high)}"
    wanted = _wanted(line)
    return (str(line.goal), line.what, line.ours, line.other, middle, reach, wanted, line.verdict)


def _wanted(line: Line) -> str:
    if line.at_least is not None:
        return f"≥ {line.at_least:g}{line.unit}"
    return "" if line.at_most is None else f"≤ {line.at_most:g}{line.unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if value else "0"
