"""Every single measurement in a CSV file, with what it depends on beside it.

The file that is kept in this folder is what pages and pictures are made from. A new run takes the
place of the rows of all that it has measured, and leaves the others as they are.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from benchmarks.records import FAILED, Measurement, Trial

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
    rows.sort(key=lambda row: [row[name] for name in (*_TRIAL, "metric", "round")])
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*_TRIAL, *_OWN), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def merged(old: Iterable[Measurement], new: Iterable[Measurement]) -> list[Measurement]:
    """The new ones, and the old ones of trials that have no new ones; failures are not kept."""
    good = [one for one in new if one.metric != FAILED]
    measured = {one.trial for one in good}
    return [*(one for one in old if one.trial not in measured), *good]


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
    )
