"""The driver's part in a start and an end of many nodes, with agents in memory: CPU and memory.

What agents would do is prepared before, or not counted. Each rank returns a few bytes.
"""

if __name__ == "__main__":
    import gc
    import time
    import tracemalloc
    from collections.abc import Mapping
    from importlib import import_module
    from typing import Any

    from benchmarks.trials import frame

    RANKS = 8
    simulated = import_module("tests.cluster.pure.simulated")

    class Mute(simulated.SimulatedAgent):  # type: ignore[name-defined,misc]
        """Answers as agents do, without reading the list of all nodes, each on its own machine."""

        def hear(self, send: Any, now: int) -> Any:
            """As far as it counts."""
            if send.header["is"] == "start":
                pids = [1000 * self.number + local for local in range(self.count)]
                return [{"is": "started", "pids": pids, "plan": ""}]
            return super().hear(send, now)

    def run_once(nodes: int) -> Any:
        """From the first question to the last result."""
        agents = [Mute(number) for number in range(nodes)]
        cluster = simulated.Cluster(simulated.driver_of(nodes), agents)
        cluster.start([RANKS] * nodes)
        for number in range(nodes):
            for local in range(RANKS):
                cluster.says(number, simulated.outcome(local, pieces=[4]))
                data = {"is": "data", "index": local, "offset": 0}
                cluster.says(number, data, b"done")
        assert cluster.driver.all_ended
        return cluster

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """Once for the CPU, and once more for the memory, which is slow to count."""
        nodes: int = trial["nprocs"]
        run_once(2)
        began = time.process_time()
        run_once(nodes)
        seconds = time.process_time() - began
        gc.collect()
        tracemalloc.start()
        cluster = run_once(nodes)
        cluster.agents = []
        gc.collect()
        held, most = tracemalloc.get_traced_memory()
        ranks = nodes * RANKS
        return {
            "seconds": seconds,
            "bytes_per_rank": held / ranks,
            "most_bytes_per_rank": most / ranks,
        }

    frame.run(measure)
