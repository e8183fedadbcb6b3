"""Every single measurement in a CSV file, with what it depends on beside it.

A file can be read again, so that a table or a picture needs no second run.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TextIO

from benchmarks.records import Measurement, Trial

_TRIAL = ("script", "contender", "nprocs", "kind", "size", "seconds")


class MeasurementsFile:
    """A file that is written as the figures come: an interrupted run keeps what it has."""

    def __init__(self, path: Path, surroundings: Mapping[str, str]) -> None:
        self._surroundings = surroundings
        self._file: TextIO = path.open("w", newline="")
        columns = (*_TRIAL, "round", "metric", "value", "date", "load", *surroundings)
        self._writer = csv.DictWriter(self._file, columns)
        self._writer.writeheader()

    def __enter__(self) -> MeasurementsFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, one: Measurement, moment: Mapping[str, str]) -> None:
        """Write one line."""
        trial = {name: value for name, value in asdict(one.trial).items() if name in _TRIAL}
        figures = {"round": one.round, "metric": one.metric, "value": repr(one.value)}
        self._writer.writerow({**trial, **figures, **moment, **self._surroundings})
        self._file.flush()


def read_measurements(path: Path) -> Iterator[Measurement]:
    """The measurements of a file."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            trial = Trial(
                row["script"],
                row["contender"],
                int(row["nprocs"]),
                row["kind"],
                int(row["size"]),
                float(row["seconds"]),
            )
            yield Measurement(trial, int(row["round"]), row["metric"], float(row["value"]))
