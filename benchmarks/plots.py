"""The measurements as pictures: cost against the number of workers, and against size.

Lines are medians, the band around each reaches from the least to the greatest value. Both
axes are logarithmic: what is proportional is a straight line, and a distance is a ratio.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.figures import Spread, spread
from benchmarks.goals import arguments, results, scaling, start
from benchmarks.records import MIB, Table, Trial

# A colour for each family, so that it has the same one in every picture.
COLOURS = {
    "rankspawn": "#c0392b",
    "multiprocessing": "#2471a3",
    "concurrent.futures": "#17a589",
    "loky": "#7d3c98",
    "torch": "#d68910",
    "Paddle": "#616a6b",
    "torchrunx": "#a04000",
    "bare": "#000000",
}
STYLES = {"spawn": "-", "fork": ":", "forkserver": "--", "interpreters": "-."}
Point = Callable[[Trial], Spread | None]


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        title: What is shown.
        axis: What the horizontal axis has.
        trials: All that belong to it.
        across: The place of a trial on the horizontal axis.
        height: Its value, in seconds.
    """

    title: str
    axis: str
    trials: Sequence[Trial]
    across: Callable[[Trial], float]
    height: Point


def draw_all(table: Table, folder: Path) -> list[Path]:
    """Draw what there are measurements for; return the files."""
    drawn = [
        _draw(folder / f"performance-{name}.png", panels)
        for name, panels in pictures(table).items()
    ]
    return [path for path in drawn if path is not None]


def pictures(table: Table) -> dict[str, list[Panel]]:
    """What each picture shows; pure."""

    def seconds(trial: Trial) -> Spread | None:
        return spread(table.rounds(trial).values())

    return {
        "start": [
            Panel(
                "Start and end of workers that do nothing", "workers", _starts(), _nprocs, seconds
            )
        ],
        "arguments": [
            Panel("A NumPy array to 8 workers", "MiB", _sent(), _mebibytes, seconds),
            Panel(
                "A NumPy array of 256 MiB, start subtracted",
                "workers",
                [*arguments.SERVED_BY_NPROCS, *arguments.MULTIPROCESSING_BY_NPROCS],
                _nprocs,
                lambda trial: spread(arguments.added(table, trial).values()),
            ),
        ],
        "results": [
            Panel("A NumPy array from each of 4 workers", "MiB", _received(), _mebibytes, seconds)
        ],
        "scaling": [
            Panel("Start and end of many workers", "workers", _many("start"), _nprocs, seconds),
            Panel("One of many fails: all gone", "workers", _many("teardown"), _nprocs, seconds),
        ],
    }


def _starts() -> list[Trial]:
    own = [
        f"{one} {method}" for one in ("rankspawn", "multiprocessing") for method in start.METHODS
    ]
    names = (*own, *start.QUICKER_PEERS, *start.SLOW_PEERS)
    return [Trial("start", name, nprocs) for name in names for nprocs in start.NPROCS]


def _sent() -> list[Trial]:
    contenders = (arguments.OURS, arguments.MULTIPROCESSING, arguments.POOLS[0])
    return [replace(one, size=size) for one in contenders for size in arguments.SIZES]


def _received() -> list[Trial]:
    contenders = (results.OURS, *results.POOLS)
    return [replace(one, size=size) for one in contenders for size in results.SIZES]


def _many(script: str) -> list[Trial]:
    names = [f"rankspawn {method}" for method in scaling.METHODS] + ["multiprocessing fork"]
    return [Trial(script, name, nprocs) for name in names for nprocs in scaling.NPROCS]


def _nprocs(trial: Trial) -> float:
    return trial.nprocs


def _mebibytes(trial: Trial) -> float:
    return trial.size / MIB


def _draw(path: Path, panels: Sequence[Panel]) -> Path | None:
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    # One below the other, as wide as a page shows them: what is made smaller cannot be read.
    figure, grid = pyplot.subplots(
        len(panels), 1, figsize=(7.4, 4.2 * len(panels)), squeeze=False, layout="constrained"
    )
    drawn = [_draw_panel(axes[0], panel) for axes, panel in zip(grid, panels, strict=True)]
    if any(drawn):
        figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path if any(drawn) else None


def _draw_panel(axes: Any, panel: Panel) -> bool:
    curves: dict[str, dict[float, Spread]] = {}
    for trial in panel.trials:
        point = panel.height(trial)
        if point is not None and point.low > 0:
            curves.setdefault(trial.contender, {})[panel.across(trial)] = point
    for name, curve in curves.items():
        family, _, method = name.partition(" ")
        xs = sorted(curve)
        look = {"color": COLOURS[family], "linestyle": STYLES.get(method, "-")}
        width = 2.4 if family == "rankspawn" else 1.3
        middle = [1000 * curve[x].median for x in xs]
        axes.plot(xs, middle, label=name, marker="o", markersize=3, linewidth=width, **look)
        low, high = ([1000 * getattr(curve[x], end) for x in xs] for end in ("low", "high"))
        axes.fill_between(xs, low, high, color=look["color"], alpha=0.12, linewidth=0)
    axes.set(
        title=panel.title, xlabel=panel.axis, ylabel="milliseconds", xscale="log", yscale="log"
    )
    ticks = sorted({x for curve in curves.values() for x in curve})
    axes.set_xticks(ticks, [f"{x:,.0f}" for x in ticks])
    axes.minorticks_off()
    ticker: Any = importlib.import_module("matplotlib.ticker")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=20))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.grid(visible=True, alpha=0.25)
    if curves:
        axes.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
        # Half a decade of room, so that a flat line looks flat.
        low, high = axes.get_ylim()
        axes.set_ylim(low / 2, high * 2)
    return bool(curves)
