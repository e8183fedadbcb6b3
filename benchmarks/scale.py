"""What many machines cost, measured on one: the figures of docs/scale.md.

    python -m benchmarks.scale [--rounds 3] [--nodes 1000] [--only rendezvous]
    python -m benchmarks.scale --page

The first one measures into ``scale.csv``, in place of what is kept there of the same programs; the
second one makes the tables of the page from what is kept. Each figure is of a process of its own.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.fan_out import Network, along, cut, one_after_the_other, parents
from benchmarks.trials.frame import PREFIX

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "benchmarks" / "scale.csv"
PAGE = ROOT / "docs" / "scale.md"
DEADLOCK_SECONDS = 900
NODES = {"driver_memory": (312, 625, 1250), "rendezvous": (100, 300, 1000)}
COLUMNS = ("script", "nodes", "round", "metric", "value", "date", "load", "machine")
WIDTH = 4
Row = dict[str, str]


def measure(script: str, nodes: int, number: int) -> list[Row]:
    """One program, and a row for each of its figures."""
    about = {
        "script": script,
        "nodes": str(nodes),
        "round": str(number),
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "load": f"{os.getloadavg()[0]:.1f}",
        "machine": f"{os.cpu_count()} CPUs, CPython {platform.python_version()}",
    }
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "trials" / f"{script}.py", f'{{"nprocs": {nodes}}}'],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=DEADLOCK_SECONDS,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith(PREFIX))
    figures: dict[str, float] = json.loads(line.removeprefix(PREFIX))
    return [about | {"metric": name, "value": f"{value:.6g}"} for name, value in figures.items()]


def read() -> list[Row]:
    """What is kept."""
    if not KEPT.exists():
        return []
    with KEPT.open(newline="") as file:
        return list(csv.DictReader(file))


def write(rows: list[Row]) -> None:
    """Keep these."""
    rows = sorted(rows, key=lambda row: (row["script"], int(row["nodes"]), int(row["round"])))
    with KEPT.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def figure(rows: list[Row], script: str, nodes: int, metric: str) -> float:
    """The median of its rounds."""
    wanted = (script, str(nodes), metric)
    return statistics.median(
        float(row["value"])
        for row in rows
        if (row["script"], row["nodes"], row["metric"]) == wanted
    )


def driver_table(rows: list[Row]) -> str:
    """CPU and memory of the driver."""
    lines = ["| nodes | ranks | CPU, s | bytes per rank |", "|---:|---:|---:|---:|"]
    for nodes in NODES["driver_memory"]:
        of = lambda metric, nodes=nodes: figure(rows, "driver_memory", nodes, metric)  # noqa: E731
        cells = f"{nodes:,} | {8 * nodes:,} | {of('seconds'):.2f} | {of('bytes_per_rank'):.0f}"
        lines.append(f"| {cells} |")
    return "\n".join([*lines, "", _seen(rows, "driver_memory")])


def rendezvous_table(rows: list[Row]) -> str:
    """Wall time, and CPU of the master."""
    lines = [
        "| nodes | first start, s | CPU of the master | of all nodes | one is lost: next start, s "
        "| CPU of the master | while they run, per minute | memory of the master |",
        "|---:|" + 7 * "---:|",
    ]
    for nodes in NODES["rendezvous"]:
        of = lambda metric, nodes=nodes: figure(rows, "rendezvous", nodes, metric)  # noqa: E731
        lines.append(
            f"| {nodes:,} | {of('seconds'):.1f} | {of('master_cpu'):.2f} s "
            f"| {of('nodes_cpu'):.1f} s | {of('regroup_seconds'):.1f} "
            f"| {of('regroup_master_cpu'):.2f} s | {of('idle_cpu_per_minute'):.1f} s "
            f"| {of('master_bytes') / 2**20:.0f} MiB |"
        )
    return "\n".join([*lines, "", _seen(rows, "rendezvous")])


def fan_out_table(_: list[Row]) -> str:
    """By the model: no row, as nothing is measured."""
    network = Network()
    lines = [
        f"| nodes | payload | one after the other | all at once | a tree of {WIDTH} |",
        "|---:|---:|---:|---:|---:|",
    ]
    for nodes in (32, 128, 1250):
        for size in (10 << 10, 1 << 20, 64 << 20, 1 << 30):
            pieces = cut(size, max(1 << 18, size >> 8))
            ways = (
                one_after_the_other(network, nodes, pieces),
                along(network, [-1] * nodes, pieces),
                along(network, parents(nodes, WIDTH), pieces),
            )
            name = f"{size >> 20:,} MiB" if size >> 20 else f"{size >> 10} KiB"
            lines.append(f"| {nodes:,} | {name} | " + " | ".join(map(_time, ways)) + " |")
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1000:,.1f} ms"


def _seen(rows: list[Row], script: str) -> str:
    own = [row for row in rows if row["script"] == script]
    rounds, loads = {row["round"] for row in own}, [float(row["load"]) for row in own]
    return (
        f"Medians of {len(rounds)}, {own[0]['machine']}, at a load of {min(loads):g} to "
        f"{max(loads):g}, {own[0]['date'].partition(' ')[0]}."
    )


TABLES: dict[str, Callable[[list[Row]], str]] = {
    "driver": driver_table,
    "rendezvous": rendezvous_table,
    "fan-out": fan_out_table,
}


def write_page() -> None:
    """Put the tables where the page has a comment with their name."""
    rows, text = read(), PAGE.read_text()
    for name, make in TABLES.items():
        before, mark, rest = text.partition(f"<!-- measured: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        text = f"{before}{mark}{make(rows)}\n{end}{after}"
    PAGE.write_text(text)


def main() -> None:
    """Measure, or make the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=NODES, help="one of the programs")
    parser.add_argument("--nodes", type=int, help="so many, in place of those of the page")
    parser.add_argument("--page", action="store_true", help="make the tables, measure nothing")
    options = parser.parse_args()
    if options.page:
        write_page()
        return
    kept = read()
    for script in [options.only] if options.only else list(NODES):
        for nodes in [options.nodes] if options.nodes else NODES[script]:
            rows = [
                row for number in range(options.rounds) for row in measure(script, nodes, number)
            ]
            kept = [r for r in kept if (r["script"], r["nodes"]) != (script, str(nodes))] + rows
            write(kept)
            for metric in dict.fromkeys(row["metric"] for row in rows):
                print(f"{script}, {nodes}: {metric} {figure(rows, script, nodes, metric):.4g}")


if __name__ == "__main__":
    main()
