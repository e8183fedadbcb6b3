"""Pictures of growth: time against the number of ranks and against size, beside peers.

Both axes are logarithmic: what is proportional is a straight line, and a distance is a ratio.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from drawing import picture, text

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.goals import curves
from benchmarks.markdown import when
from benchmarks.measurements_file import read_measurements
from benchmarks.records import GIB, KIB, MIB, Figure, Measurement, Table, Trial

RANKS, SIZES = NAMES = ("scaling-ranks.svg", "scaling-sizes.svg")
# A colour for each family, so that it has the same one in every picture.
COLOURS = {
    "rankspawn": "own",
    "multiprocessing": "blue",
    "loky": "violet",
    "torch": "peer",
    "concurrent.futures": "green",
    "Paddle": "grey",
}
DASHES = {"fork": "2 3", "forkserver": "8 4", "comm.empty()": "8 4"}
LEFT, RIGHT, HEIGHT = 74.0, 530.0, 300.0
Points = Mapping[float, float]


class Panel(NamedTuple):
    """One set of axes, and the milliseconds of each line by its name."""

    title: str
    axis: str
    ticks: Sequence[float]
    lines: Mapping[str, Points]


def make_all() -> dict[str, str]:
    """Both pictures by their names; empty axes where nothing was measured."""
    measured = read_measurements()
    table = Table(measured)
    starts = [
        Panel("Start and end of ranks that do nothing", "ranks", curves.NPROCS, _starts(table))
    ]
    sizes = [
        Panel("An array to 2 workers that have NumPy or import it", "", curves.SIZES, _sent(table)),
        Panel("An array from each of 2 workers", "", curves.SIZES, _returned(table)),
        Panel("All-reduce of an array by 2 ranks", "bytes", curves.SIZES, _reduced(table)),
    ]
    own = [row for row in measured if row.trial in _SHOWN]
    return {
        RANKS: _panels("Time against the number of ranks", starts, own),
        SIZES: _panels("Time against size", sizes, own),
    }


_SHOWN = {*curves.STARTS, *curves.ARGUMENTS, *curves.RESULTS, curves.REDUCED}


def _panels(title: str, panels: Sequence[Panel], rows: Sequence[Measurement]) -> str:
    parts: list[str] = []
    for place, panel in enumerate(panels):
        parts += _draw(panel, 20 + place * (HEIGHT + 70))
    bottom = 20 + len(panels) * (HEIGHT + 70)
    parts.append(text(20, bottom, "Milliseconds: medians of all rounds that are kept.", "faint"))
    machine, _, rest = when(rows).partition("), ")
    parts.append(text(20, bottom + 18, f"{machine}), {rest}" if rest else machine, "faint"))
    return picture(bottom + 32, title, parts, several=True)


def _draw(panel: Panel, top: float) -> Iterator[str]:
    yield text(20, top + 8, f"{panel.title}, milliseconds", "title")
    top += 24
    bottom = top + HEIGHT
    values = [value for points in panel.lines.values() for value in points.values()]
    first = math.floor(math.log10(min(values, default=1)))
    last = max(first + 1, math.ceil(math.log10(max(values, default=10))))
    widest = math.log(panel.ticks[-1] / panel.ticks[0])

    def across(x: float) -> float:
        return LEFT + math.log(x / panel.ticks[0]) / widest * (RIGHT - LEFT)

    def down(value: float) -> float:
        return bottom - (math.log10(value) - first) / (last - first) * HEIGHT

    for power in range(first, last + 1):
        y = down(10.0**power)
        yield f'<path class="grid" d="M{LEFT:.1f},{y:.1f} L{RIGHT:.1f},{y:.1f}"/>'
        yield text(LEFT - 8, y + 4, f"{10.0**power:,g}", "faint", "end")
    for tick in panel.ticks:
        x = across(tick)
        yield f'<path class="grid" d="M{x:.1f},{top:.1f} L{x:.1f},{bottom:.1f}"/>'
        yield text(x, bottom + 18, _tick(tick, panel.axis == "ranks"), "faint", "middle")
    for row, (name, points) in enumerate(panel.lines.items()):
        family, _, method = name.partition(" ")
        kind = COLOURS[family]
        look = f'class="{kind} curve{" thick" if kind == "own" else ""}"'
        if method in DASHES:
            look += f' stroke-dasharray="{DASHES[method]}"'
        place = " L".join(f"{across(x):.1f},{down(y):.1f}" for x, y in sorted(points.items()))
        yield f'<path {look} d="M{place}"/>'
        for x, y in points.items():
            yield f'<circle class="{kind}" cx="{across(x):.1f}" cy="{down(y):.1f}" r="2.5"/>'
        y = top + 10 + 22 * row
        yield f'<path {look} d="M{RIGHT + 14:.1f},{y:.1f} L{RIGHT + 42:.1f},{y:.1f}"/>'
        yield text(RIGHT + 48, y + 4, name, "faint")


def _tick(value: float, is_count: bool) -> str:
    if is_count:
        return f"{value:,.0f}"
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if value >= unit:
            return f"{value / unit:g} {name}"
    return f"{value:g}"


def _starts(table: Table) -> dict[str, Points]:
    return _by(table, {(trial.contender, trial.nprocs): trial for trial in curves.STARTS})


def _sent(table: Table) -> dict[str, Points]:
    return _by(table, {(trial.contender, trial.size): trial for trial in curves.ARGUMENTS})


def _returned(table: Table) -> dict[str, Points]:
    return _by(table, {(trial.contender, trial.size): trial for trial in curves.RESULTS})


def _by(table: Table, trials: Mapping[tuple[str, int], Trial]) -> dict[str, Points]:
    found: dict[str, dict[float, float]] = {}
    for (name, x), trial in trials.items():
        if rounds := table.rounds(trial):
            found.setdefault(name, {})[x] = 1e3 * statistics.median(rounds.values())
    return dict(sorted(found.items(), key=lambda item: item[0].partition(" ")[0] != "rankspawn"))


def _reduced(table: Table) -> dict[str, Points]:
    ways = {"rankspawn": "rankspawn", "rankspawn comm.empty()": "shared", "torch gloo": "peer"}
    found: dict[str, dict[float, float]] = {}
    for name, way in ways.items():
        for size in curves.SIZES:
            figure = Figure(curves.REDUCED, f"all-reduce {_tick(size, False)}: {way}")
            if rounds := table.rounds(figure.trial, figure.metric):
                own = found.setdefault(name, {})
                own[size] = 1e3 * statistics.median(rounds.values())
    return found
