"""Two checkouts of rankspawn side by side: what a change does to the time of a start.

    python benchmarks/compare_trees.py OLD NEW [--rounds 15]

OLD and NEW are folders with a ``src``. Each round measures every case once with either, in turn, so
that other load on the machine meets both; printed are the medians, the median of the rounds' ratios
and the quartiles of those. A ratio is NEW over OLD: below 1 is faster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

START = """
import sys, time
import rankspawn

def nothing():
    pass

if __name__ == "__main__":
    method, nprocs = sys.argv[1], int(sys.argv[2])
    rankspawn.spawn(nothing, nprocs=1, backend="gloo", start_method=method)
    before = time.perf_counter()
    for _ in range(3):
        rankspawn.spawn(nothing, nprocs=nprocs, backend="gloo", start_method=method)
    print((time.perf_counter() - before) / 3)
"""
FIRST = """
import time
before = time.perf_counter()
import rankspawn

def nothing():
    pass

if __name__ == "__main__":
    rankspawn.spawn(nothing, nprocs=1, backend="gloo")
    print(time.perf_counter() - before)
"""
IMPORT = """
import time
before = time.perf_counter()
import rankspawn
rankspawn.spawn
print(time.perf_counter() - before)
"""


def main() -> None:
    """Measure and print one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    trees = [os.path.abspath(asked.old), os.path.abspath(asked.new)]
    with tempfile.TemporaryDirectory() as folder:
        cases = _cases(folder)
        times = {name: ([], []) for name in cases}  # type: dict[str, tuple[list[float], list[float]]]
        for turn in range(asked.rounds):
            for name, command in cases.items():
                for which in (0, 1) if turn % 2 else (1, 0):
                    times[name][which].append(_measure(command, trees[which], folder))
    print(f"{'case':32} {'old ms':>9} {'new ms':>9} {'ratio':>7}   quartiles")
    for name, (old, new) in times.items():
        ratios = [after / before for before, after in zip(old, new, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        medians = [statistics.median(values) * 1000 for values in (old, new)]
        print(f"{name:32} {medians[0]:9.1f} {medians[1]:9.1f} {middle:7.3f}   {low:.3f}-{high:.3f}")


def _cases(folder: str) -> dict[str, list[str]]:
    """What is measured, as commands of one Python that print seconds, or are timed whole."""
    for name, text in {"start": START, "first": FIRST, "load": IMPORT, "empty": ""}.items():
        with open(os.path.join(folder, f"{name}.py"), "w", encoding="utf-8") as file:
            file.write(text)
    cases = {
        f"start by {method}, {nprocs} ranks": ["start.py", method, str(nprocs)]
        for method in ("spawn", "fork", "forkserver")
        for nprocs in (1, 8)
    }
    cases["import rankspawn, spawn"] = ["load.py"]
    cases["import and first spawn, 1 rank"] = ["first.py"]
    cases["rankrun, 2 empty scripts"] = ["-m", "rankspawn.launch", "--nproc_per_node=2", "empty.py"]
    return cases


def _measure(command: list[str], tree: str, folder: str) -> float:
    # An editable install of another tree is on the path of this Python, so this goes first.
    environment = {**os.environ, "PYTHONPATH": os.path.join(tree, "src")}
    before = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        text=True,
    )
    whole = time.perf_counter() - before
    return whole if "-m" in command else float(done.stdout)


if __name__ == "__main__":
    main()
