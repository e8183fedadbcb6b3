"""How long a job of three nodes takes to notice that one of them is in trouble, and to go on.

The nodes are launchers on this machine, over loopback, with one worker each that waits; nothing
but the launchers can notice. From the moment of the trouble it is timed until the other launchers
have exited, or, in an elastic job, until the workers of the next generation run their first line.

    python benchmarks/launch_nodes.py
    python benchmarks/launch_nodes.py --rounds 5 --node-timeout 5
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
from collections.abc import Callable, Iterator
from pathlib import Path

DEADLOCK_SECONDS = 120
SOURCE = Path(__file__).resolve().parent.parent / "src"
NODES = 3
# Says that it runs, as which start of the job; then it fails when it is told to, or waits.
SCRIPT = """
import os, socket, sys, time
line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
told = " ".join(os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "RANK"))
line.sendto(f"{told} {os.getpid()}".encode(), sys.argv[1])
time.sleep(3600)
"""


class Job:
    """Three nodes; the first serves the master."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.line.bind(str(folder / "line"))
        self.line.settimeout(DEADLOCK_SECONDS)
        (folder / "wait.py").write_text(SCRIPT)
        with socket.create_server(("127.0.0.1", 0)) as server:
            master = f"127.0.0.1:{server.getsockname()[1]}"
        self.command = [sys.executable, "-m", "rankspawn.launch", "--master", master]
        self.command += ["--nproc_per_node", "1", "--device_type", "cpu", *flags]
        self.nodes = [self.start(rank) for rank in range(NODES)]

    def start(self, rank: int) -> subprocess.Popen[bytes]:
        """One more node."""
        words = ["--rank", str(rank), "--log_dir", str(self.folder / f"log{rank}")]
        return subprocess.Popen(
            [*self.command, *words, str(self.folder / "wait.py"), str(self.folder / "line")],
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

    def wait_for_workers(self, restarts: int, size: int) -> int:
        """Until all of this start run; returns the process id of the last rank."""
        pids = {}
        while len(pids) < size:
            count, world_size, rank, pid = map(int, self.line.recv(100).split())
            if (count, world_size) == (restarts, size):
                pids[rank] = pid
        return pids[size - 1]

    def wait_for_exits(self, nodes: list[int]) -> None:
        """Until these launchers are gone."""
        for index in nodes:
            self.nodes[index].wait(DEADLOCK_SECONDS)

    def close(self) -> None:
        """End what is left."""
        for node in self.nodes:
            for number in (signal.SIGCONT, signal.SIGTERM):
                with contextlib.suppress(ProcessLookupError):
                    node.send_signal(number)
        for node in self.nodes:
            node.wait(DEADLOCK_SECONDS)
        self.line.close()


@contextlib.contextmanager
def running(size: str, timeout: str) -> Iterator[tuple[Job, int]]:
    """A job whose workers run, and the process id of its last worker."""
    flags = ("--nnodes", size, "--node_timeout", timeout, "--grace_period", "2")
    with tempfile.TemporaryDirectory() as name:
        job = Job(Path(name), *flags, "--max_restart", "100", "--elastic_timeout", "2")
        try:
            yield job, job.wait_for_workers(0, NODES)
        finally:
            job.close()


def until_exit(trouble: Callable[[Job, int], None], gone: int, timeout: str) -> float:
    """Seconds from trouble in a job of fixed size to the exit of all nodes but one."""
    with running(str(NODES), timeout) as (job, worker):
        before = time.perf_counter()
        trouble(job, worker)
        job.wait_for_exits([index for index in range(NODES) if index != gone])
        return time.perf_counter() - before


def until_step(trouble: Callable[[Job, int], None], timeout: str) -> float:
    """Seconds from trouble in an elastic job to the first line of the next workers."""
    with running(f"2:{NODES}", timeout) as (job, worker):
        before = time.perf_counter()
        trouble(job, worker)
        job.wait_for_workers(1, NODES - 1)
        return time.perf_counter() - before


def until_joined(timeout: str) -> float:
    """Seconds from the start of a launcher to the first line of the workers with it."""
    with running(f"2:{NODES}", timeout) as (job, _):
        job.nodes[2].send_signal(signal.SIGTERM)
        job.wait_for_workers(1, NODES - 1)
        job.nodes[2].wait(DEADLOCK_SECONDS)
        before = time.perf_counter()
        job.nodes[2] = job.start(2)
        job.wait_for_workers(2, NODES)
        return time.perf_counter() - before


def send(number: int, index: int) -> Callable[[Job, int], None]:
    """A signal to one launcher."""
    return lambda job, _worker: job.nodes[index].send_signal(number)


def kill_worker(_job: Job, worker: int) -> None:
    """The last rank dies."""
    os.kill(worker, signal.SIGKILL)


def trials(timeout: str) -> dict[str, Callable[[], float]]:
    """What is measured, by name."""
    kill, stop, term = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
    return {
        "a worker dies: all exit": lambda: until_exit(kill_worker, -1, timeout),
        "SIGTERM to a launcher: all exit": lambda: until_exit(send(term, 2), -1, timeout),
        "a launcher is killed: the others exit": lambda: until_exit(send(kill, 2), 2, timeout),
        "the master's launcher is killed: the others exit": lambda: until_exit(
            send(kill, 0), 0, timeout
        ),
        "a node falls silent: the others exit": lambda: until_exit(send(stop, 2), 2, timeout),
        "elastic, a node leaves: the next first step": lambda: until_step(send(term, 2), timeout),
        "elastic, a launcher is killed: the next first step": lambda: until_step(
            send(kill, 2), timeout
        ),
        "elastic, a node falls silent: the next first step": lambda: until_step(
            send(stop, 2), timeout
        ),
        "elastic, a node joins: the next first step": lambda: until_joined(timeout),
    }


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--node-timeout", default="10")
    options = parser.parse_args()
    print(
        f"CPython {platform.python_version()}, {NODES} nodes, --node_timeout "
        f"{options.node_timeout}, medians of {options.rounds} rounds"
    )
    for name, measure in trials(options.node_timeout).items():
        times = [measure() for _ in range(options.rounds)]
        median = statistics.median(times)
        print(f"{name:52}{median:7.2f} s  ({min(times):.2f}-{max(times):.2f})", flush=True)


if __name__ == "__main__":
    main()
