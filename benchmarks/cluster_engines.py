"""What each engine adds to what it is made of, beside real servers that are started for it.

    python benchmarks/cluster_engines.py [--rounds 10] [ssh slurm ray]

Rounds are interleaved, and medians are shown: two agents with one rank each that does nothing,
beside the engine's own way to run nothing twice.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.cluster.sshd import HOSTS, running_sshd  # noqa: E402
from tests.launch.slurm_cluster import running_slurm  # noqa: E402

import rankspawn  # noqa: E402
from rankspawn.cluster import Engine, Ray, Slurm, Ssh  # noqa: E402


def do_nothing() -> None:
    """What ranks do whose start is measured."""


def fail() -> None:
    """Raise the time; one machine has one clock."""
    if rankspawn.get_rank() == 1:
        raise ValueError(str(time.monotonic_ns()))
    time.sleep(1000)


def measure(name: str, engine: Engine, bare: Callable[[], object], rounds: int) -> None:
    """One row: the bare way, ours, and from a failure to the exception."""
    alone, ours, noticed = [], [], []
    for _ in range(rounds):
        began = time.perf_counter()
        bare()
        alone.append(time.perf_counter() - began)
        began = time.perf_counter()
        rankspawn.spawn(do_nothing, nprocs=1, backend="gloo", cluster=engine)
        ours.append(time.perf_counter() - began)
        try:
            rankspawn.spawn(fail, nprocs=1, backend="gloo", cluster=engine, grace_period=1.0)
        except rankspawn.ProcessRaisedException as error:
            noticed.append((time.monotonic_ns() - int(str(error.exception))) / 1e9)
    first, second = statistics.median(alone), statistics.median(ours)
    print(
        f"| {name} | {first:.2f} | {second:.2f} | {second - first:.2f} | "
        f"{statistics.median(noticed):.2f} |",
        flush=True,
    )


def measure_ssh(rounds: int) -> None:
    """Beside ``ssh host true`` on both hosts, one after the other."""
    with running_sshd() as server:
        engine = Ssh(HOSTS, port=server.port, identity=server.identity, options=server.options)
        commands = [engine.command(host, ["true"]) for host in HOSTS]
        measure(
            "ssh, `ssh host true` twice",
            engine,
            lambda: [subprocess.run(c, check=True) for c in commands],
            rounds,
        )


def measure_slurm(rounds: int) -> None:
    """Beside ``srun -N2 true``."""
    with running_slurm() as cluster:
        os.environ["SLURM_CONF"] = str(cluster.configuration)
        command = [*cluster.srun(), "--quiet", "true"]
        measure(
            "Slurm, `srun -N2 true`",
            Slurm(nodes=2),
            lambda: subprocess.run(command, check=True),
            rounds,
        )


def measure_ray(rounds: int) -> None:
    """Beside two empty actors that Ray places on two nodes."""
    import ray
    from ray.cluster_utils import Cluster
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as InGroup

    head: dict[str, Any] = {"node_ip_address": "127.0.0.2", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, **head})
    cluster.add_node(node_ip_address="127.0.0.3", num_cpus=4)
    ray.init(address=cluster.address, _node_ip_address="127.0.0.2", log_to_driver=False)

    @ray.remote(num_cpus=1)
    class Empty:
        def answer(self) -> int:
            return 1

    def bare() -> None:
        group = ray.util.placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
        actors = [
            Empty.options(scheduling_strategy=InGroup(group, number)).remote() for number in (0, 1)
        ]
        ray.get([actor.answer.remote() for actor in actors])
        for actor in actors:
            ray.kill(actor)
        ray.util.remove_placement_group(group)

    try:
        measure("Ray, two empty actors", Ray(nodes=2), bare, rounds)
    finally:
        ray.shutdown()
        cluster.shutdown()


MEASURES = {"ssh": measure_ssh, "slurm": measure_slurm, "ray": measure_ray}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", nargs="*", help="of " + ", ".join(MEASURES))
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    print("| engine, bare | bare, s | spawn, s | more, s | failure to exception, s |")
    print("|---|---:|---:|---:|---:|")
    for name in given.engine or MEASURES:
        MEASURES[name](given.rounds)
    print(f"\nload: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
