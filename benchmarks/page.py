"""What pages show of the measurements that are kept: made by command, never by hand.

A page has a pair of comments around each part that is made here. Pure but for ``write_pages``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.goals import GOALS, ending, machines, starting, talking, values, waiting
from benchmarks.imports import import_table
from benchmarks.judging import Line, figure_words, judge
from benchmarks.markdown import loads, markdown, peers, when
from benchmarks.records import Goal, Measurement, Table
from benchmarks.small_tables import small_tables

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "python -m benchmarks --pages"
_TITLES = {
    waiting.SECTION: "Where people wait",
    starting.SECTION: "Starts",
    values.SECTION: "Arguments and results",
    ending.SECTION: "A failure among many, and a group that waits",
    talking.SECTION: "Ranks that talk",
    machines.SECTION: "Beyond one machine",
}
_HEADINGS = ("what", "rankspawn", "other", "figure", "range", "goal", "load", "")


def parts(measured: Sequence[Measurement]) -> dict[str, str]:
    """Every part that is made from these, by its name."""
    table = Table(measured)
    lines = [judge(goal, table) for goal in GOALS if goal.section in _TITLES]
    return {
        "goals": goals_part(lines),
        "left to a longer run": left_out(GOALS),
        "imports": import_table(measured),
        **small_tables(table),
    }


def left_out(goals: Sequence[Goal]) -> str:
    """The goals that a quick run has no time for, each by its name."""
    return "\n".join(f"- {goal.what}" for goal in goals if goal.has_goal and not goal.quick)


def goals_part(lines: Sequence[Line]) -> str:
    """The tables of the page, and how many goals are met."""
    judged = [line for line in lines if line.goal.has_goal]
    met = sum(line.is_met for line in judged)
    unknown = sum(line.figure is None for line in judged)
    missed = len(judged) - met - unknown
    count = f"{met} of {len(judged)} goals are met, {missed} are missed"
    texts = [
        f"{count}, {unknown} were not measured.",
        when(row for line in lines for row in line.rows),
        peers(row for line in lines for row in line.rows),
    ]
    for section, title in _TITLES.items():
        own = [line for line in lines if line.goal.section == section]
        # What has no goal and was not measured says nothing.
        shown = [line for line in own if line.goal.has_goal or line.figure is not None]
        texts += [f"### {title}", markdown(_HEADINGS, map(_cells, shown))]
    return "\n\n".join(texts)


def summary(lines: Sequence[Line]) -> str:
    """For a terminal: each figure, and in plain words which goals are missed."""
    texts = []
    for line in lines:
        goal = line.goal
        if line.figure is not None:
            reach = _reach(line)
            texts.append(
                f"{line.verdict or '-':7} {goal.what}: {_middle(line)} ({reach}){_goal(goal)}"
            )
    unknown = [line for line in lines if line.figure is None and line.goal.has_goal]
    texts += [f"NOT MEASURED: {line.goal.what}" for line in unknown]
    return "\n".join(texts)


def replaced(text: str, made: Mapping[str, str]) -> str:
    """A page with these parts in place of those that it has.

    Raises:
        ValueError: It has a part that is not made.
    """

    def new(match: re.Match[str]) -> str:
        name = match[1]
        if name not in made:
            raise ValueError(f"nothing is made for the part {name!r} of a page")
        return f"<!-- made: {name} -->\n{made[name]}\n<!-- end -->"

    return re.sub(r"<!-- made: (.+?) -->\n.*?<!-- end -->", new, text, flags=re.DOTALL)


def pages() -> list[Path]:
    """All that have such parts."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [path for path in found if "<!-- made: " in path.read_text()]


def write_pages(measured: Sequence[Measurement], tell: Callable[[str], None]) -> None:
    """Put what these say on all pages, and draw what is kept."""
    made = parts(measured)
    for path in pages():
        old = path.read_text()
        new = replaced(old, made)
        path.write_text(new)
        tell(f"{path.relative_to(ROOT)}: {'as it was' if new == old else 'changed'}")
    subprocess.run([sys.executable, str(ROOT / "docs" / "measured_pictures.py")], check=True)


def _cells(line: Line) -> tuple[str, ...]:
    return (
        line.goal.what,
        line.ours,
        line.other,
        _middle(line),
        _reach(line),
        _goal(line.goal).strip(),
        loads(line.rows),
        line.verdict,
    )


def _middle(line: Line) -> str:
    return "-" if line.figure is None else figure_words(line.figure.median, line.goal.unit)


def _reach(line: Line) -> str:
    figure = line.figure
    if figure is None or figure.count < 2:
        return "" if figure is None else "once"
    return f"{figure_words(figure.low, '')} to {figure_words(figure.high, '')}"


def _goal(goal: Goal) -> str:
    if goal.at_least is not None:
        return f" ≥ {figure_words(goal.at_least, goal.unit)}"
    return "" if goal.at_most is None else f" ≤ {figure_words(goal.at_most, goal.unit)}"
