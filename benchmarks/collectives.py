"""Collectives of ranks that talk, beside those of frameworks and multiprocessing's barrier.

``python -m benchmarks.collectives --peer torch`` in an environment with NumPy and that peer, or
with mpi4py and an ``mpirun`` for ``--peer mpi``. Rounds of both are interleaved in the same ranks,
so both meet the same load of the machine, and what counts is the ratio of their medians. Ranks of
MPI have to be started by it: there whole programs take turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rankspawn
from benchmarks import peers_of_collectives as peers
from benchmarks.measurements_file import MeasurementsFile
from benchmarks.records import Measurement, Trial
from benchmarks.surroundings import describe, moment

SIZES = {"4 KiB": 4 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20, "256 MiB": 256 << 20}
BROADCAST = "broadcast 1 GiB"
ROUNDS = 9
PROGRAMS = 3
# How often a thing is done in a round, so that each round takes some milliseconds.
REPEATS = {"barrier": 200, "4 KiB": 100, "1 MiB": 10}

Ways = dict[str, Callable[[], Any]]
Found = dict[str, dict[str, list[float]]]


def compare(barrier: Any, peer_name: str, sizes: list[str], with_broadcast: bool) -> Found:
    """Runs in every rank: the seconds of each round of each way of each task."""
    comm = rankspawn.init_parallel_env()
    ways: Ways = {"rankspawn": comm.barrier, "peer": barrier.wait}
    found = {"barrier": _interleave(comm.barrier, "barrier", ways)}
    peer = peers.open_peer(peer_name)
    for name in sizes:
        found[name] = _compare_sums(comm, peer, name, SIZES[name])
    if with_broadcast:
        array = np.ones(1 << 28, "float32")
        ways = {"rankspawn": lambda: comm.broadcast(array)}
        if peer is not None:
            ways["peer"] = peer.broadcast(array)
        found[BROADCAST] = _interleave(comm.barrier, BROADCAST, ways)
    if peer is not None:
        peer.close()
    return found


def _compare_sums(comm: Any, peer: Any, name: str, nbytes: int) -> dict[str, list[float]]:
    array = np.ones(nbytes // 4, "float32")
    copy = np.empty_like(array)
    shared = comm.empty(nbytes // 4, "float32")
    shared.fill(1)
    ways: Ways = {
        "rankspawn": lambda: comm.all_reduce(array, "max"),
        "shared": lambda: comm.all_reduce(shared, "max"),
        # As much as all ranks have to read and to write, if nothing is moved twice.
        "copy": lambda: np.copyto(copy, array),
    }
    if peer is not None:
        ways["peer"] = peer.all_reduce(np.ones(nbytes // 4, "float32"))
    return _interleave(comm.barrier, name, ways)


def _interleave(barrier: Callable[[], Any], task: str, ways: Ways) -> dict[str, list[float]]:
    repeats = REPEATS.get(task, 1)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(ROUNDS + 1):
        for way, call in ways.items():
            barrier()
            began = time.perf_counter()
            for _ in range(repeats):
                call()
            if number:  # the first one warms up
                seconds[way].append((time.perf_counter() - began) / repeats)
    return seconds


def measure_mpi(sizes: list[str]) -> None:
    """Runs in every rank of MPI; the first one prints what it found."""
    peer = peers.Mpi()
    found = {"barrier": _interleave(peer.barrier, "barrier", {"peer": peer.barrier})}
    for name in sizes:
        array = np.ones(SIZES[name] // 4, "float32")
        found[name] = _interleave(peer.barrier, name, {"peer": peer.all_reduce(array)})
    if peer.rank == 0:
        print(json.dumps(found))


def _beside_mpi(ranks: int, sizes: list[str]) -> Found:
    found: Found = {}
    # Without a CPU for each rank, MPI has to be told to let others run.
    mpirun = ["mpirun", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    options = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    this = [sys.executable, "-m", "benchmarks.collectives", "--in-mpi", "--sizes", ",".join(sizes)]
    for _ in range(PROGRAMS):
        own = rankspawn.spawn(
            compare, args=(_Nothing(), "none", sizes, False), nprocs=ranks, backend="gloo"
        ).results()[0]
        line = [*mpirun, *options, "-n", str(ranks), *this]
        done = subprocess.run(line, check=True, capture_output=True, text=True)
        theirs = json.loads(done.stdout)
        for task, each in own.items():
            for way, rounds in (*each.items(), ("peer", theirs[task]["peer"])):
                if (task, way) != ("barrier", "peer") or rounds is theirs[task]["peer"]:
                    found.setdefault(task, {}).setdefault(way, []).extend(rounds)
    return found


class _Nothing:
    """In place of multiprocessing's barrier."""

    def wait(self) -> None:
        pass


def main() -> None:
    """Print a table of medians and ratios for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument(
        "--peer", default="torch", choices=("none", "torch", "paddle", "jax", "mpi")
    )
    parser.add_argument("--broadcast", action="store_true", help="1 GiB from rank 0, too")
    parser.add_argument("--csv", type=Path, help="keep every single measurement in this file")
    parser.add_argument("--in-mpi", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = args.sizes.split(",")
    if args.in_mpi:
        measure_mpi(sizes)
        return
    print(f"load {os.getloadavg()[0]:.1f}, medians, in brackets half of the rounds are between\n")
    print(f"| ranks | task | rankspawn | shared | copy | {args.peer} | ratio | shared |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|")
    file = None if args.csv is None else MeasurementsFile(args.csv, describe())
    for ranks in map(int, args.ranks.split(",")):
        found = _measure(ranks, args.peer, sizes, args.broadcast)
        for task, each in found.items():
            print(f"| {ranks} | {task} | {_row(each)} |", flush=True)
            if file is not None:
                _keep(file, ranks, task, each, args.peer)


def _measure(ranks: int, peer: str, sizes: list[str], with_broadcast: bool) -> Found:
    if peer == "mpi":
        return _beside_mpi(ranks, sizes)
    barrier = multiprocessing.get_context("spawn").Barrier(ranks)
    arguments = (barrier, peer, sizes, with_broadcast)
    done = rankspawn.spawn(compare, args=arguments, nprocs=ranks, backend="gloo")
    found: Found = done.results()[0]
    return found


def _keep(
    file: MeasurementsFile, ranks: int, task: str, each: dict[str, list[float]], peer: str
) -> None:
    for way, rounds in each.items():
        own = "multiprocessing" if task == "barrier" and peer != "mpi" else peer
        trial = Trial("collectives", own if way == "peer" else way, ranks, task, SIZES.get(task, 0))
        for number, seconds in enumerate(rounds):
            file.add(Measurement(trial, number, "seconds", seconds), moment())


def _row(each: dict[str, list[float]]) -> str:
    cells = [_time(each.get(way)) for way in ("rankspawn", "shared", "copy", "peer")]
    cells += [_ratio(each, way) for way in ("rankspawn", "shared")]
    return " | ".join(cells)


def _time(rounds: list[float] | None) -> str:
    if not rounds:
        return ""
    low, middle, high = (each * 1e3 for each in statistics.quantiles(rounds, n=4))
    return f"{middle:.3g} ms ({low:.3g} to {high:.3g})"


def _ratio(each: dict[str, list[float]], way: str) -> str:
    if not each.get("peer") or not each.get(way):
        return ""
    return f"{statistics.median(each['peer']) / statistics.median(each[way]):.1f}"


if __name__ == "__main__":
    main()
