"""Pictures of ranks that talk: how they meet in memory, and what was measured beside gloo.

Drawn by ``drawing``, so they are the same to the byte wherever they are made.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from drawing import arrow, box, picture, text

MEASURED = Path(__file__).parent.parent / "benchmarks" / "measurements.csv"
_TRIAL = ("collectives", "torch")
MEMORY, TIMES = NAMES = ("talk-memory.svg", "talk-times.svg")


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
    ("peer", "peer", "torch.distributed, gloo"),
    ("rankspawn", "own", "rankspawn, buffer anywhere"),
    ("shared", "shared", "rankspawn, buffer from comm.empty()"),
)


def make_all() -> dict[str, str]:
    """Both pictures by their names."""
    runs = runs_beside_torch(MEASURED)
    return {
        MEMORY: picture(434, "How ranks meet in shared memory", _memory()),
        TIMES: picture(480, "Times of all-reduce beside gloo", _times(runs)),
    }


def runs_beside_torch(path: Path) -> dict[Task, Run]:
    """Of each task all that is kept."""
    runs: dict[Task, Run] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["script"], row["contender"], row["kind"]) != (*_TRIAL, "collectives"):
                continue
            task, _, way = row["metric"].partition(": ")
            key = Task(task.removeprefix("all-reduce "), int(row["nprocs"]))
            run = runs.setdefault(key, Run(float(row["load"]), defaultdict(list)))
            run.ways[way].append(float(row["value"]))
    wanted = [Task(size, ranks) for size in SIZES for ranks in RANKS]
    return {task: runs[task] for task in wanted if task in runs}


def _memory() -> Iterator[str]:
    yield box(20, 14, 720, 44)
    yield text(34, 41, "the process that started the ranks", "title")
    yield text(
        726, 41, "makes a file in memory, without a name that could be left behind", "faint", "end"
    )
    yield arrow(380, 58, 380, 84)
    yield box(20, 86, 720, 206)
    yield text(34, 108, "memory that all ranks have mapped", "title")
    parts = (
        ("board", "how far it is"),
        ("slots", "what it calls, small data"),
        ("stages", "pieces of large data"),
        ("comm.empty()", "its array, where it lies"),
    )
    for row, (name, what) in enumerate(parts):
        y = 118 + 42 * row
        yield text(34, y + 23, name)
        for rank in range(3):
            x = 150 + 195 * rank
            yield box(x, y, 185, 36, "cell")
            yield text(x + 92, y + 23, what, "faint", "middle")
    tells = (
        ("writes what it calls, then", "that it is there, and", "sleeps in the kernel"),
        ("comes last: wakes all with", "one word; nobody holds", "what others need"),
        ("then each compares calls", "and reduces its share, in", "the order of ranks"),
    )
    for rank, lines in enumerate(tells):
        x = 150 + 195 * rank
        yield arrow(x + 92, 330, x + 92, 294, both=True)
        yield box(x, 332, 185, 90)
        yield text(x + 8, 352, f"rank {rank}", "title")
        for place, line in enumerate(lines):
            yield text(x + 8, 372 + 18 * place, line, "faint")
    yield text(24, 372, "board, slots and", "faint")
    yield text(24, 390, "stages have one", "faint")
    yield text(24, 408, "writer for each", "faint")


def _times(runs: dict[Task, Run]) -> Iterator[str]:
    left, right, top, step = 150.0, 690.0, 96.0, 33.0
    first, last = -3, 3  # powers of ten, in milliseconds

    def across(seconds: float) -> float:
        return left + (math.log10(seconds * 1e3) - first) / (last - first) * (right - left)

    yield text(20, 28, "All-reduce, milliseconds: the more to the left, the faster", "title")
    for place, (_, kind, name) in enumerate(WAYS):
        x = 26 + (0, 200, 420)[place]
        yield _dot(x, 50, kind)
        yield text(x + 12, 55, name, "faint")
    tasks = list(runs)
    bottom = top + step * len(tasks) + 12
    for power in range(first, last + 1):
        x = across(10.0**power / 1e3)
        yield f'<path class="grid" d="M{x:.1f},{top - 14:.1f} L{x:.1f},{bottom - 10:.1f}"/>'
        yield text(x, bottom + 6, f"{10.0**power:g}", "faint", "middle")
    yield text(740, top - 18, "times", "faint", "end")
    for row, task in enumerate(tasks):
        y = top + step * row + 6
        if task.ranks == RANKS[0]:
            yield text(20, y + 5, task.size, "title")
        yield text(138, y + 5, f"{task.ranks} ranks", "faint", "end")
        ways = runs[task].ways
        for way, kind, _ in WAYS:
            low, high = across(min(ways[way])), across(max(ways[way]))
            yield f'<path class="line {kind}" d="M{low:.1f},{y:.1f} L{high:.1f},{y:.1f}"/>'
        for way, kind, _ in WAYS:
            yield _dot(across(statistics.median(ways[way])), y, kind)
        ratio = statistics.median(ways["peer"]) / statistics.median(ways["rankspawn"])
        yield text(740, y + 5, f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}", "strong", "end")
    loads = [run.load for run in runs.values()]
    span = f"Loads from {min(loads):.0f} to {max(loads):.0f}, on 2 CPUs."
    yield text(
        20,
        bottom + 36,
        f"Dots: medians; lines: from the least to the most of all rounds. {span}",
        "faint",
    )
    yield text(20, bottom + 54, "Times: gloo's median over that of a buffer anywhere.", "faint")


def _dot(x: float, y: float, kind: str) -> str:
    if kind == "peer":
        return f'<rect class="{kind}" x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"/>'
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
