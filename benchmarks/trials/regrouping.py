"""How long a job of three nodes with two workers each takes to start again.

From the moment of the trouble until all workers of the next start run their first line. Of a
launcher that is killed rankrun alone is measured: torchrun's other nodes run on without a word
while their workers wait for nobody.
"""

if __name__ == "__main__":
    import contextlib
    import os
    import signal
    import time
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from benchmarks.trials import frame, nodes

    NODES, WORKERS = 3, 2
    TRIES = 3

    def after_worker(name: str) -> float:
        """A worker is killed by SIGKILL."""
        command = nodes.torchrun(WORKERS, NODES)
        if name == "rankrun":
            command = nodes.rankrun(WORKERS, "--nnodes", str(NODES), "--elastic_level", "1")
        with nodes.running(NODES, WORKERS, command) as (job, pids):
            before = time.perf_counter()
            os.kill(pids[NODES * WORKERS - 1], signal.SIGKILL)
            job.wait_for_workers(NODES * WORKERS)
            return time.perf_counter() - before

    def after_launcher() -> float:
        """A launcher is killed, but not the master's."""
        size = f"{NODES - 1}:{NODES}"
        command = nodes.rankrun(WORKERS, "--nnodes", size, "--elastic_level", "1")
        with nodes.running(NODES, WORKERS, command) as (job, _):
            # The one that serves the master was given no rank either: the last to come never is.
            place = next(number for number in (2, 1) if not serves(job.nodes[number].pid))
            before = time.perf_counter()
            job.nodes[place].kill()
            job.wait_for_workers((NODES - 1) * WORKERS)
            return time.perf_counter() - before

    def serves(pid: int) -> bool:
        """Whether a launcher has a socket that listens."""
        listening = {
            line.split()[9]
            for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
            if line.split()[3] == "0A"
        }
        links = []
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        return any(link == f"socket:[{inode}]" for link in links for inode in listening)

    def measure(trial: Mapping[str, Any]) -> dict[str, list[float]]:
        """Several jobs; torchrun's take ten seconds each, so there is one."""
        name, killed = trial["contender"], trial["kind"]
        tries = 1 if trial["quick"] or name != "rankrun" else TRIES
        again = after_launcher if killed == "a launcher is killed" else lambda: after_worker(name)
        return {"seconds": [again() for _ in range(tries)]}

    frame.run(measure)
