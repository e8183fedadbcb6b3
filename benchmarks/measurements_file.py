"""Every single measurement in a CSV file, with what it depends on beside it.

The file that is kept in this folder is what pages and pictures are made from. A new run takes the
place of older ones for all that it can show by itself. What it has not measured stays, with all
that this was held against in its own run: a ratio is of one run, or it is none.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from benchmarks.judging import figures_of
from benchmarks.records import FAILED, Goal, Measurement, Table, Trial

KEPT = Path(__file__).with_name("measurements.csv")
_TRIAL = ("script", "contender", "nprocs", "kind", "size", "seconds")
_OWN = tuple(one.name for one in fields(Measurement) if one.name != "trial")


def read_measurements(path: Path = KEPT) -> list[Measurement]:
    """The measurements of a file."""
    with path.open(newline="") as file:
        return [_measurement(row) for row in csv.DictReader(file)]


def write_measurements(path: Path, measured: Iterable[Measurement]) -> None:
    """All of them, in an order that does not depend on when they were measured."""
    rows = [{**asdict(one.trial), **asdict(one), "value": f"{one.value:.6g}"} for one in measured]
    rows.sort(key=lambda row: [row[name] for name in (*_TRIAL, "run", "metric", "round")])
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*_TRIAL, *_OWN), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def merged(
    old: Iterable[Measurement], new: Iterable[Measurement], goals: Iterable[Goal]
) -> list[Measurement]:
    """Of each trial the newest ones, and the older ones that a goal needs; no failures."""
    known = [one for one in (*old, *new) if one.metric != FAILED]
    newest: dict[Trial, str] = {}
    for one in known:
        newest[one.trial] = max(one.run, newest.get(one.trial, ""))
    kept = set(newest.items())
    table = Table(known)
    for goal in goals:
        figures = figures_of(goal)
        run = table.run_of(figures)
        if run is not None:
            kept |= {(figure.trial, run) for figure in figures}
    return [one for one in known if (one.trial, one.run) in kept]


def _measurement(row: dict[str, str]) -> Measurement:
    trial = Trial(
        row["script"],
        row["contender"],
        int(row["nprocs"]),
        row["kind"],
        int(row["size"]),
        float(row["seconds"]),
    )
    return Measurement(
        trial,
        int(row["round"]),
        row["metric"],
        float(row["value"]),
        row["date"],
        float(row["load"]),
        row["machine"],
        row["versions"],
        row.get("run") or "",  # older files have none
    )
