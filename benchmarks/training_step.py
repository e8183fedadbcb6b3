"""A training step on all ranks: ``rankspawn.DataParallel`` beside torch's DistributedDataParallel.

``python -m benchmarks.training_step`` in an environment with torch. One model of 10 million
parameters for each way, in the same ranks; steps take turns, and so do options of torch's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import rankspawn
from benchmarks.measurements_file import MeasurementsFile
from benchmarks.records import Measurement, Trial
from benchmarks.surroundings import describe, moment

ROUNDS = 15
OWN, BARE = "rankspawn", "no exchange"
OPTIONS: dict[str, dict[str, bool]] = {
    "DDP": {},
    "DDP, bucket view": {"gradient_as_bucket_view": True},
    "DDP, static graph": {"gradient_as_bucket_view": True, "static_graph": True},
}


def compare(width: int, batch: int) -> dict[str, list[float]]:
    """Runs in every rank: the seconds of each step of each way."""
    torch: Any = import_module("torch")
    dist: Any = import_module("torch.distributed")
    parallel: Any = import_module("torch.nn.parallel")
    torch.set_num_threads(1)
    comm = rankspawn.init_parallel_env()
    dist.init_process_group("gloo")

    def model() -> Any:
        torch.manual_seed(1)
        first, second, third = (torch.nn.Linear(width, width) for _ in range(3))
        return torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), third)

    steps = {BARE: _step(torch, model(), batch, width)}
    steps[OWN] = _step(torch, rankspawn.DataParallel(model()), batch, width)
    for name, options in OPTIONS.items():
        wrapped = parallel.DistributedDataParallel(model(), **options)
        steps[name] = _step(torch, wrapped, batch, width)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(ROUNDS + 3):
        for name, step in steps.items():
            comm.barrier()
            began = time.perf_counter()
            step()
            if number >= 3:  # torch's finds its buckets in the first ones
                seconds[name].append(time.perf_counter() - began)
    dist.destroy_process_group()
    return seconds


def _step(torch: Any, model: Any, batch: int, width: int) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(batch, width), torch.randn(batch, width)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()

    return step


def main() -> None:
    """Print a table of medians, and how many times as long the best of torch's takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--width", type=int, default=1826, help="of the three layers")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--csv", type=Path, help="keep every single measurement in this file")
    args = parser.parse_args()
    names = [BARE, OWN, *OPTIONS]
    print(f"load {os.getloadavg()[0]:.1f}, medians in ms, in brackets half of the rounds\n")
    print(f"| ranks | {' | '.join(names)} | ratio |")
    print("|---:|" + "---:|" * (len(names) + 1))
    file = None if args.csv is None else MeasurementsFile(args.csv, describe())
    for ranks in map(int, args.ranks.split(",")):
        done = rankspawn.spawn(compare, args=(args.width, args.batch), nprocs=ranks, backend="gloo")
        found: dict[str, list[float]] = done.results()[0]
        best = min(statistics.median(found[name]) for name in OPTIONS)
        cells = " | ".join(_time(found[name]) for name in names)
        print(f"| {ranks} | {cells} | {best / statistics.median(found[OWN]):.2f} |", flush=True)
        for name, rounds in found.items() if file is not None else ():
            trial = Trial("training_step", name, ranks, f"batch {args.batch}")
            for number, seconds in enumerate(rounds):
                assert file is not None
                file.add(Measurement(trial, number, "seconds", seconds), moment())


def _time(rounds: list[float]) -> str:
    low, middle, high = (each * 1e3 for each in statistics.quantiles(rounds, n=4))
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


if __name__ == "__main__":
    main()
