"""How long a job of three nodes with a worker each takes to notice that one is in trouble.

Until the other launchers have exited, or, in an elastic job, until the workers of the next
generation run their first line.
"""

if __name__ == "__main__":
    import os
    import signal
    import time
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from benchmarks.trials import frame, nodes

    NODES = 3
    ELASTIC = f"2:{NODES}"
    KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
    # The launcher that gets a signal, or None for the last worker; the signal; who cannot exit.
    ENDS = {
        "a worker dies: all exit": (None, KILL, -1),
        "SIGTERM to a launcher: all exit": (2, TERM, -1),
        "a launcher is killed: the others exit": (2, KILL, 2),
        "the master's launcher is killed: the others exit": (0, KILL, 0),
        "a node falls silent: the others exit": (2, STOP, 2),
    }
    STEPS = {
        "elastic, a node leaves: the next first lines": TERM,
        "elastic, a launcher is killed: the next first lines": KILL,
        "elastic, a node falls silent: the next first lines": STOP,
    }

    def running(size: str, timeout: float) -> AbstractContextManager[Any]:
        """A job of this size."""
        launch = nodes.rankrun(1, "--nnodes", size, "--node_timeout", f"{timeout:g}")
        return nodes.running(NODES, 1, lambda n, at: [*launch(n, at), "--rank", str(n)])

    def until_exit(case: str, timeout: float) -> float:
        """In a job of fixed size."""
        index, number, gone = ENDS[case]
        with running(str(NODES), timeout) as (job, workers):
            before = time.perf_counter()
            os.kill(workers[NODES - 1] if index is None else job.nodes[index].pid, number)
            job.wait_for_exits([other for other in range(NODES) if other != gone])
            return time.perf_counter() - before

    def until_step(number: int, timeout: float) -> float:
        """In an elastic job."""
        with running(ELASTIC, timeout) as (job, _):
            before = time.perf_counter()
            job.nodes[2].send_signal(number)
            job.wait_for_workers(NODES - 1, 1)
            return time.perf_counter() - before

    def until_joined(timeout: float) -> float:
        """From the start of a launcher to the first line of the workers with it."""
        with running(ELASTIC, timeout) as (job, _):
            job.nodes[2].send_signal(TERM)
            job.wait_for_workers(NODES - 1, 1)
            job.nodes[2].wait(nodes.DEADLOCK_SECONDS)
            before = time.perf_counter()
            job.nodes[2] = job.start(2)
            job.wait_for_workers(NODES, 2)
            return time.perf_counter() - before

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """One case."""
        case, timeout = trial["kind"], trial["seconds"]
        if case in ENDS:
            return {"seconds": until_exit(case, timeout)}
        if case in STEPS:
            return {"seconds": until_step(STEPS[case], timeout)}
        return {"seconds": until_joined(timeout)}

    frame.run(measure)
