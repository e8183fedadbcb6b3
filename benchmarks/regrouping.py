"""How long a job of three nodes with two workers each takes to start again, beside torchrun.

The nodes are launchers on this machine, over loopback; the workers import nothing and wait. From
the moment of the trouble it is timed until all workers of the next start run their first line:

- a worker is killed by SIGKILL: rankrun and torchrun take turns in each round;
- a launcher is killed by SIGKILL: rankrun alone, since torchrun's other nodes run on without a
  word while their workers wait for nobody.

    python benchmarks/regrouping.py --torchrun PATH/bin/torchrun --rounds 5
"""

import argparse
import contextlib
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

DEADLOCK_SECONDS = 120
SOURCE = Path(__file__).resolve().parent.parent / "src"
NODES, WORKERS = 3, 2
# At least so many times faster than torchrun, and at most so many seconds.
WANTED_RATIO, WANTED_SECONDS = 5.0, 0.5
WANTED_AFTER_LAUNCHER = 2.0
SCRIPT = """
import os, socket, sys, time
line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
told = " ".join(os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "RANK"))
line.sendto(f"{told} {os.getpid()}".encode(), sys.argv[1])
time.sleep(3600)
"""
TORCHRUN = "torchrun"


class Job:
    """Three launchers of one kind, and what their workers report."""

    def __init__(self, folder: Path, torchrun: str | None, nodes: str) -> None:
        self.line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.line.bind(str(folder / "line"))
        self.line.settimeout(DEADLOCK_SECONDS)
        (folder / "wait.py").write_text(SCRIPT)
        with socket.create_server(("127.0.0.1", 0)) as server:
            place = f"127.0.0.1:{server.getsockname()[1]}"
        many = ["--nproc_per_node", str(WORKERS), "--nnodes", nodes, "--max_restarts", "100"]
        if torchrun is not None:
            command = [torchrun, *many, "--rdzv_backend", "c10d", "--rdzv_endpoint", place]
        else:
            command = [sys.executable, "-m", "rankspawn.launch", "--master", place]
            command += [*many[:4], "--max_restart", "100", "--elastic_level", "1"]
            command += ["--device_type", "cpu", "--grace_period", "2", "--elastic_timeout", "2"]
        self.nodes = [
            subprocess.Popen(
                [*command, "--log_dir", str(folder / f"log{node}"), "wait.py", "line"],
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(SOURCE),
                    "RANKSPAWN_JOB_TOKEN": "of this benchmark",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for node in range(NODES)
        ]

    def wait_for_workers(self, size: int) -> dict[int, int]:
        """Until so many that were not there before run; their process ids by rank.

        How often torchrun restarted differs from node to node, so it tells nothing.
        """
        found: dict[int, int] = {}
        while len(found) < size:
            _, world_size, rank, pid = map(int, self.line.recv(100).split())
            if world_size == size:
                found[rank] = pid
        return found

    def close(self) -> None:
        """End what is left."""
        for node in self.nodes:
            with contextlib.suppress(ProcessLookupError):
                node.send_signal(signal.SIGTERM)
        for node in self.nodes:
            node.wait(DEADLOCK_SECONDS)
        self.line.close()


@contextlib.contextmanager
def running(torchrun: str | None, nodes: str) -> Iterator[tuple[Job, dict[int, int]]]:
    """A job whose workers run."""
    with tempfile.TemporaryDirectory() as name:
        job = Job(Path(name), torchrun, nodes)
        try:
            yield job, job.wait_for_workers(NODES * WORKERS)
        finally:
            job.close()


def after_worker(torchrun: str | None) -> float:
    """Seconds from the death of a worker to the first lines of all of the next start."""
    with running(torchrun, str(NODES)) as (job, pids):
        before = time.perf_counter()
        os.kill(pids[NODES * WORKERS - 1], signal.SIGKILL)
        job.wait_for_workers(NODES * WORKERS)
        return time.perf_counter() - before


def after_launcher() -> float:
    """Seconds from the death of a launcher, not the master's, to those of the other nodes."""
    with running(None, f"{NODES - 1}:{NODES}") as (job, _):
        # The one that serves the master was given no rank either: the last to come never is.
        place = next(index for index in (2, 1) if not serves(job.nodes[index].pid))
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


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torchrun", help="its path, where it is measured beside")
    options = parser.parse_args()

    times: dict[str, list[float]] = {"rankrun": [], "after a launcher": []}
    for _ in range(options.rounds):
        times["rankrun"].append(after_worker(None))
        if options.torchrun:
            times.setdefault(TORCHRUN, []).append(after_worker(options.torchrun))
        times["after a launcher"].append(after_launcher())
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    print(
        f"CPython {platform.python_version()}, {NODES} nodes of {WORKERS} workers, medians of "
        f"{options.rounds} rounds, load {os.getloadavg()[0]:.1f}"
    )
    for name, taken in times.items():
        print(f"{name:20}{medians[name]:7.2f} s  ({min(taken):.2f}-{max(taken):.2f})")
    print(f"a worker dies: wanted at most {WANTED_SECONDS:g} s and the grace period", end="")
    if TORCHRUN in medians:
        ratio = medians[TORCHRUN] / medians["rankrun"]
        print(f"; {ratio:.1f} times faster than torchrun, wanted at least {WANTED_RATIO:g}", end="")
    print(f"\na launcher dies: wanted at most {WANTED_AFTER_LAUNCHER:g} s")


if __name__ == "__main__":
    main()
