"""Pictures of ranks that talk: how they meet in memory, and what was measured beside gloo.

Drawn here and not by a library, so they are the same to the byte wherever they are made. Each has
a light and a dark look and takes the one that its reader prefers.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

MEASURED = Path(__file__).parent.parent / "benchmarks" / "collectives.csv"
MEMORY, TIMES = NAMES = ("talk-memory.svg", "talk-times.svg")
WIDTH = 760
# Light, then dark: the ground, texts, lines, boxes, rankspawn's colour and its peer's.
_LOOKS = (
    ("#ffffff", "#1f2328", "#59636e", "#eef1f4", "#c0392b", "#9a6200"),
    ("#15191f", "#e6edf3", "#9aa5b1", "#262d36", "#ff7b6b", "#f0b13a"),
)
_STYLE = """
text {{ font-family: sans-serif; font-size: 14px; fill: {1}; }}
.ground {{ fill: {0}; }} .faint {{ fill: {2}; font-size: 13px; }} .title {{ font-weight: bold; }}
.box {{ fill: {3}; stroke: {2}; }} .cell {{ fill: {0}; stroke: {2}; }}
.line {{ stroke: {2}; fill: none; }} .head {{ fill: {2}; }} .grid {{ stroke: {3}; }}
.own {{ fill: {4}; stroke: {4}; }} .shared {{ fill: {0}; stroke: {4}; stroke-width: 2; }}
.peer {{ fill: {5}; stroke: {5}; }} .strong {{ fill: {4}; stroke: none; }}
"""


class Task(NamedTuple):
    """An all-reduce of one size by a number of ranks."""

    size: str
    ranks: int


class Run(NamedTuple):
    """The seconds of all rounds of each way, and how busy the machine was."""

    load: float
    ways: dict[str, list[float]]


SIZES = ("4 KiB", "1 MiB", "64 MiB")
RANKS = (2, 4, 8)
# The way's name in the measurements, its class here, and what it is called.
WAYS = (
    ("torch", "peer", "torch.distributed, gloo"),
    ("rankspawn", "own", "rankspawn, buffer anywhere"),
    ("shared", "shared", "rankspawn, buffer from comm.empty()"),
)


def draw_all(folder: Path) -> None:
    """Write both pictures."""
    for name, text in make_all().items():
        (folder / name).write_text(text)


def make_all() -> dict[str, str]:
    """Both pictures by their names."""
    runs = quietest(MEASURED)
    return {
        MEMORY: _picture(434, "How ranks meet in shared memory", _memory()),
        TIMES: _picture(480, "Times of all-reduce beside gloo", _times(runs)),
    }


def quietest(path: Path) -> dict[Task, Run]:
    """Of each task the run beside torch with the least load."""
    runs: dict[tuple[Task, str], Run] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            task = Task(row["kind"], int(row["nprocs"]))
            key = task, row["date"]
            run = runs.setdefault(key, Run(float(row["load"]), defaultdict(list)))
            run.ways[row["contender"]].append(float(row["value"]))
    found: dict[Task, Run] = {}
    for (task, _), run in sorted(runs.items(), key=lambda item: -item[1].load):
        if task.size in SIZES and all(way in run.ways for way, _, _ in WAYS):
            found[task] = run
    return found


def _picture(height: int, title: str, parts: Iterator[str]) -> str:
    light, dark = (_STYLE.format(*look) for look in _LOOKS)
    style = f"{light}@media (prefers-color-scheme: dark) {{{dark}}}\n"
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style>",
        '<defs><marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        '<path class="head" d="M0,0 L9,4 L0,8 z"/></marker></defs>',
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'


def _box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {place} rx="5"/>'


def _arrow(x: float, y: float, to_x: float, to_y: float, both: bool = False) -> str:
    tips = ' marker-end="url(#tip)"'
    line = f'<path class="line" d="M{x:.1f},{y:.1f} L{to_x:.1f},{to_y:.1f}"{tips}/>'
    return line + (_arrow(to_x, to_y, x, y) if both else "")


def _memory() -> Iterator[str]:
    yield _box(20, 14, 720, 44)
    yield _text(34, 41, "the process that started the ranks", "title")
    yield _text(
        726, 41, "makes a file in memory, without a name that could be left behind", "faint", "end"
    )
    yield _arrow(380, 58, 380, 84)
    yield _box(20, 86, 720, 206)
    yield _text(34, 108, "memory that all ranks have mapped", "title")
    parts = (
        ("board", "how far it is"),
        ("slots", "what it calls, small data"),
        ("stages", "pieces of large data"),
        ("comm.empty()", "its array, where it lies"),
    )
    for row, (name, what) in enumerate(parts):
        y = 118 + 42 * row
        yield _text(34, y + 23, name)
        for rank in range(3):
            x = 150 + 195 * rank
            yield _box(x, y, 185, 36, "cell")
            yield _text(x + 92, y + 23, what, "faint", "middle")
    tells = (
        ("writes what it calls, then", "that it is there, and", "sleeps in the kernel"),
        ("comes last: wakes all with", "one word; nobody holds", "what others need"),
        ("then each compares calls", "and reduces its share, in", "the order of ranks"),
    )
    for rank, lines in enumerate(tells):
        x = 150 + 195 * rank
        yield _arrow(x + 92, 330, x + 92, 294, both=True)
        yield _box(x, 332, 185, 90)
        yield _text(x + 8, 352, f"rank {rank}", "title")
        for place, line in enumerate(lines):
            yield _text(x + 8, 372 + 18 * place, line, "faint")
    yield _text(24, 372, "board, slots and", "faint")
    yield _text(24, 390, "stages have one", "faint")
    yield _text(24, 408, "writer for each", "faint")


def _times(runs: dict[Task, Run]) -> Iterator[str]:
    left, right, top, step = 150.0, 690.0, 96.0, 33.0
    first, last = -3, 3  # powers of ten, in milliseconds

    def across(seconds: float) -> float:
        return left + (math.log10(seconds * 1e3) - first) / (last - first) * (right - left)

    yield _text(20, 28, "All-reduce, milliseconds: the more to the left, the faster", "title")
    for place, (_, kind, name) in enumerate(WAYS):
        x = 26 + (0, 200, 420)[place]
        yield _dot(x, 50, kind)
        yield _text(x + 12, 55, name, "faint")
    tasks = [Task(size, ranks) for size in SIZES for ranks in RANKS]
    bottom = top + step * len(tasks) + 12
    for power in range(first, last + 1):
        x = across(10.0**power / 1e3)
        yield f'<path class="grid" d="M{x:.1f},{top - 14:.1f} L{x:.1f},{bottom - 10:.1f}"/>'
        yield _text(x, bottom + 6, f"{10.0**power:g}", "faint", "middle")
    yield _text(740, top - 18, "times", "faint", "end")
    for row, task in enumerate(tasks):
        y = top + step * row + 6
        if task.ranks == RANKS[0]:
            yield _text(20, y + 5, task.size, "title")
        yield _text(138, y + 5, f"{task.ranks} ranks", "faint", "end")
        ways = runs[task].ways
        for way, kind, _ in WAYS:
            low, high = across(min(ways[way])), across(max(ways[way]))
            yield f'<path class="line {kind}" d="M{low:.1f},{y:.1f} L{high:.1f},{y:.1f}"/>'
        for way, kind, _ in WAYS:
            yield _dot(across(statistics.median(ways[way])), y, kind)
        ratio = statistics.median(ways["torch"]) / statistics.median(ways["rankspawn"])
        yield _text(740, y + 5, f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}", "strong", "end")
    loads = [run.load for run in runs.values()]
    spans = f"loads from {min(loads):.0f} to {max(loads):.0f} on 2 CPUs"
    yield _text(
        20,
        bottom + 36,
        f"Dots: medians of 9 rounds; lines: all rounds. Quietest runs, {spans}.",
        "faint",
    )
    yield _text(20, bottom + 54, "Times: gloo's median over that of a buffer anywhere.", "faint")


def _dot(x: float, y: float, kind: str) -> str:
    if kind == "peer":
        return f'<rect class="{kind}" x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"/>'
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
