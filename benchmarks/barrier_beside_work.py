"""How long a barrier of ranks takes on one CPU, beside busy loops on the same CPU.

    python -m benchmarks.barrier_beside_work --csv barrier.csv

Whoever waits awake there waits for the others' turns of milliseconds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any

import rankspawn
from benchmarks.measurements_file import MeasurementsFile
from benchmarks.records import Measurement, Trial
from benchmarks.surroundings import describe, moment

ROUNDS, REPEATS = 9, 50


def loop(cpu: int) -> None:
    """Runs in a process of its own, until it is ended."""
    os.sched_setaffinity(0, [cpu])
    while True:
        pass


def compare(barrier: Any, cpu: int) -> dict[str, list[float]]:
    """Runs in each rank."""
    os.sched_setaffinity(0, [cpu])
    comm = rankspawn.init_parallel_env()
    ways = {"rankspawn": comm.barrier, "multiprocessing": barrier.wait}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(ROUNDS + 1):
        for way, call in ways.items():
            comm.barrier()
            began = time.perf_counter()
            for _ in range(REPEATS):
                call()
            if number:  # the first one warms up
                seconds[way].append((time.perf_counter() - began) / REPEATS)
    return seconds


def main() -> None:
    """Print a line for each number of ranks, and keep each measurement if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--loops", type=int, default=3)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    file = None if args.csv is None else MeasurementsFile(args.csv, describe())
    cpu = min(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    loops = [context.Process(target=loop, args=(cpu,), daemon=True) for _ in range(args.loops)]
    for each in loops:
        each.start()
    try:
        for ranks in map(int, args.ranks.split(",")):
            arguments = (context.Barrier(ranks), cpu)
            job = rankspawn.spawn(compare, args=arguments, nprocs=ranks, backend="gloo")
            found: dict[str, list[float]] = job.results()[0]
            for way, rounds in found.items():
                print(f"{ranks} ranks, {way}: {statistics.median(rounds) * 1e3:.3g} ms")
                trial = Trial("barrier_beside_work", way, ranks, "barrier", args.loops)
                for number, seconds in enumerate(rounds):
                    if file is not None:
                        file.add(Measurement(trial, number, "seconds", seconds), moment())
    finally:
        for each in loops:
            each.kill()


if __name__ == "__main__":
    main()
