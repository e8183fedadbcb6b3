"""The driver's own CPU for 8 ranks on each of n nodes, from the start to the results.

What agents would do is prepared, or not counted.
"""

if __name__ == "__main__":
    import time
    from collections.abc import Mapping
    from typing import Any

    from tests.cluster.pure.simulated import Cluster, SimulatedAgent, driver_of, outcome

    from benchmarks.trials import frame

    RANKS = 8

    class Mute(SimulatedAgent):
        """Answers as agents do, without reading the list of all nodes, each on its own machine."""

        def hear(self, send, now):  # type: ignore[no-untyped-def]
            """A start is answered at once."""
            if send.header["is"] == "start":
                pids = [1000 * self.number + local for local in range(self.count)]
                return [{"is": "started", "pids": pids, "plan": ""}]
            return super().hear(send, now)

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """In one process."""
        nodes = trial["nprocs"]
        cluster = Cluster(driver_of(nodes), [Mute(number) for number in range(nodes)])
        began = time.process_time()
        cluster.start([RANKS] * nodes)
        for number in range(nodes):
            for local in range(RANKS):
                cluster.says(number, outcome(local, pieces=[4]))
                cluster.says(number, {"is": "data", "index": local, "offset": 0}, b"done")
        seconds = time.process_time() - began
        assert cluster.driver.all_ended
        return {"seconds": seconds}

    frame.run(measure)
