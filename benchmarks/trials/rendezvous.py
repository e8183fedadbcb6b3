"""A rendezvous of many nodes: real sessions with real sockets, all in this process.

The master has a process of its own, so that its CPU can be told from that of the nodes, which in
a real job have a machine each. What is left out of a node is its workers, and the process that
would kill them should the lease run out.
"""

MASTER = """
import sys
from rankspawn.launch.rendezvous.master import ConnectionLimits, Master
many = int(sys.argv[1])
master = Master("127.0.0.1", 0, b"of this benchmark, 32 bytes long",
                connection_limits=ConnectionLimits(strangers=2 * many + 256,
                                                    proof_seconds=60.0))
print(master.port, flush=True)
sys.stdin.read()
master.close()
"""

if __name__ == "__main__":
    import contextlib
    import logging
    import os
    import subprocess
    import sys
    import threading
    import time
    from collections.abc import Iterator, Mapping
    from typing import Any

    import psutil

    from benchmarks.trials import frame
    from rankspawn.launch.rendezvous import fence
    from rankspawn.launch.rendezvous import session as sessions
    from rankspawn.launch.rendezvous.client import MasterStore
    from rankspawn.launch.rendezvous.job_state import JobTerms
    from rankspawn.launch.rendezvous.stores import OpenStore
    from rankspawn.launch.session import StartWorkers, StopWorkers

    KEY = b"of this benchmark, 32 bytes long"
    PORTS_PER_NODE = 8
    # Long, as all nodes share the cores of one machine: nobody is lost who is only slow.
    LEASE = 120.0
    DEADLOCK = 500.0
    IDLE = 10.0

    class NoFence:
        """In place of a process per node that would kill workers: there are none."""

        def extend(self, until: float) -> None:
            """Nobody to tell it."""

        guard = release = give_back = extend

        def close(self) -> None:
            """Nothing is held."""

    class Nodes:
        """All of them, and which have been told to start, in which generation."""

        def __init__(self, port: int, count: int) -> None:
            self.started: dict[int, dict[int, StartWorkers]] = {}
            self.changed = threading.Condition()
            self.sessions: list[Any] = []
            terms = JobTerms(
                count - 1, count, max_restart=10, elastic_timeout=60.0, lease_seconds=LEASE
            )
            for number in range(count):
                store = MasterStore("127.0.0.1", port, KEY, answer_within=60.0)
                first = 10_000 + number
                session = sessions.SharedSession(
                    OpenStore(store, f"127.0.0.1:{port}", "127.0.0.1"),
                    job_id="job",
                    terms=terms,
                    ports=range(first, first + PORTS_PER_NODE),
                )
                self.sessions.append(session)
                hear = self.listener(number, session)
                session._outbox.put = hear

        def listener(self, number: int, session: Any) -> Any:
            """What stands for the launcher of this node, which would read the outbox."""

            def hear(instruction: object) -> None:
                if isinstance(instruction, StopWorkers):
                    session.stopped(instruction.generation)
                elif isinstance(instruction, StartWorkers):
                    with self.changed:
                        self.started.setdefault(instruction.generation, {})[number] = instruction
                        self.changed.notify()

            return hear

        def wait_for(self, generation: int, count: int) -> None:
            """Until so many were told to start it."""
            with self.changed:
                came = self.changed.wait_for(
                    lambda: len(self.started.get(generation, ())) >= count, DEADLOCK
                )
            if not came:
                raise RuntimeError(f"{len(self.started.get(generation, ()))} of {count} started")

        def lose(self, number: int) -> None:
            """One launcher is dead, and its fence says so: its lease is given back."""
            session = self.sessions[number]
            lease = session._membership._lease.id
            place = session._opened.store.place
            session._opened.store.close()
            teller = MasterStore(*place, answer_within=60.0)
            teller.revoke(lease)
            teller.close()

    @contextlib.contextmanager
    def master(count: int) -> Iterator[tuple[psutil.Process, int]]:
        """Its process, and where it listens."""
        with subprocess.Popen(
            [sys.executable, "-c", MASTER, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            yield psutil.Process(process.pid), int(process.stdout.readline())
            process.kill()

    def cpu(process: psutil.Process) -> float:
        """Seconds of CPU that it has used."""
        times = process.cpu_times()
        return float(times.user + times.system)

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """From the first node to the first start, then from one that is lost to the next."""
        count: int = trial["nprocs"]
        logging.disable(logging.WARNING)
        sessions.Fence = NoFence  # type: ignore[misc,assignment]
        # Nor does one look for another master that has only had to wait for its turn here.
        fence._IDLE_SECONDS = LEASE
        threading.stack_size(256 * 1024)
        # Thousands of threads that wait for the interpreter's lock would else ask for it 200 times
        # a second each. Ours give it back by themselves: they wait for sockets.
        sys.setswitchinterval(1.0)
        with master(count) as (process, port):
            own = psutil.Process()
            spent, all_spent, began = cpu(process), cpu(own), time.monotonic()
            nodes = Nodes(port, count)
            nodes.wait_for(1, count)
            figures = {
                "seconds": time.monotonic() - began,
                "master_cpu": cpu(process) - spent,
                "nodes_cpu": cpu(own) - all_spent,
                "master_bytes": float(process.memory_info().rss),
            }
            spent = cpu(process)
            time.sleep(IDLE)
            figures["idle_cpu_per_minute"] = (cpu(process) - spent) * 60 / IDLE
            spent, all_spent, began = cpu(process), cpu(own), time.monotonic()
            nodes.lose(count // 2)
            nodes.wait_for(2, count - 1)
            figures["regroup_seconds"] = time.monotonic() - began
            figures["regroup_master_cpu"] = cpu(process) - spent
            figures["regroup_nodes_cpu"] = cpu(own) - all_spent
        return figures

    frame.run(measure)
    # All at once and without a word: it is the end of the benchmark, not of a job.
    os._exit(0)
