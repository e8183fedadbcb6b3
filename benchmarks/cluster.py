"""What agents cost: ``Local(nodes=2)`` with two ranks each beside ``spawn(nprocs=4)``.

    python benchmarks/cluster.py [--rounds 20]

Rounds are interleaved, and medians are shown. The bookkeeping of the driver for 10,000 ranks on
1,250 nodes is measured with agents in memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import rankspawn
from rankspawn.cluster import Local

ROOT = Path(__file__).parent.parent


def do_nothing() -> None:
    """What ranks do whose start is measured."""


def fail() -> None:
    """Raise the time."""
    raise ValueError(str(time.monotonic_ns()))


def measure(rounds: int) -> None:
    """The start and end of four ranks that do nothing, both ways."""
    plain, agents, noticed = [], [], []
    for _ in range(rounds):
        began = time.perf_counter()
        rankspawn.spawn(do_nothing, nprocs=4, backend="gloo")
        plain.append(time.perf_counter() - began)
        began = time.perf_counter()
        rankspawn.spawn(do_nothing, nprocs=2, backend="gloo", cluster=Local(nodes=2))
        agents.append(time.perf_counter() - began)
        try:
            rankspawn.spawn(fail, nprocs=1, backend="gloo", cluster=Local(nodes=2))
        except rankspawn.ProcessRaisedException as error:
            noticed.append((time.monotonic_ns() - int(str(error.exception))) / 1e9)
    median, with_agents = statistics.median(plain), statistics.median(agents)
    print(f"spawn(nprocs=4): {median * 1000:.0f} ms")
    print(f"Local(nodes=2) x 2: {with_agents * 1000:.0f} ms, {with_agents / median:.2f} times")
    print(f"overhead: {(with_agents - median) * 1000:.0f} ms")
    print(f"from a failure to the exception: {statistics.median(noticed) * 1000:.0f} ms")
    print(f"load: {os.getloadavg()[0]:.1f}")


def measure_bookkeeping(nodes: int, ranks: int) -> None:
    """The driver's part only: what agents would do is prepared, or not counted."""
    sys.path.insert(0, str(ROOT))
    from tests.cluster.pure.simulated import Cluster, SimulatedAgent, driver_of, outcome

    class Mute(SimulatedAgent):
        """Answers as agents do, without reading the list of all nodes, each on its own machine."""

        def hear(self, send, now):  # type: ignore[no-untyped-def]
            if send.header["is"] == "start":
                pids = [1000 * self.number + local for local in range(self.count)]
                return [{"is": "started", "pids": pids, "plan": ""}]
            return super().hear(send, now)

    cluster = Cluster(driver_of(nodes), [Mute(number) for number in range(nodes)])
    began = time.process_time()
    cluster.start([ranks] * nodes)
    for number in range(nodes):
        for local in range(ranks):
            cluster.says(number, outcome(local, pieces=[4]))
            cluster.says(number, {"is": "data", "index": local, "offset": 0}, b"done")
    took = time.process_time() - began
    assert cluster.driver.all_ended
    print(f"{nodes * ranks} ranks on {nodes} nodes: {took:.2f} s of CPU, from start to results")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    measure(arguments.rounds)
    for nodes in (312, 625, 1250):
        measure_bookkeeping(nodes, 8)


if __name__ == "__main__":
    main()
