"""A job of several launchers on this machine, whose workers say that they run, and wait.

No trial itself: nothing but the launchers can notice what happens to one of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

DEADLOCK_SECONDS = 120
_SCRIPT = """
import os, socket, sys, time
line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
told = " ".join(os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "RANK"))
line.sendto(f"{told} {os.getpid()}".encode(), sys.argv[1])
time.sleep(3600)
"""
# From the number of the node and where the master is to the command, without the script.
Command = Callable[[int, str], list[str]]


class Job:
    """Nodes that were started; the first serves the master."""

    def __init__(self, folder: Path, count: int, command: Command) -> None:
        self._folder, self._command = folder, command
        self.line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.line.bind(str(folder / "line"))
        self.line.settimeout(DEADLOCK_SECONDS)
        (folder / "wait.py").write_text(_SCRIPT)
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._master = f"127.0.0.1:{server.getsockname()[1]}"
        self.nodes = [self.start(number) for number in range(count)]

    def start(self, number: int) -> subprocess.Popen[bytes]:
        """One more node, or one that was there before."""
        words = ["--log_dir", f"log{number}", "wait.py", "line"]
        return subprocess.Popen(
            [*self._command(number, self._master), *words],
            cwd=self._folder,
            env={**os.environ, "RANKSPAWN_JOB_TOKEN": "of this benchmark"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_for_workers(self, size: int, restarts: int | None = None) -> dict[int, int]:
        """Until so many that were not there before run; their process ids by rank.

        Args:
            size: Of the job, as they know it.
            restarts: How often the job was started again before, where all nodes count alike.
        """
        found: dict[int, int] = {}
        while len(found) < size:
            count, world_size, rank, pid = map(int, self.line.recv(100).split())
            if world_size == size and restarts in (None, count):
                found[rank] = pid
        return found

    def wait_for_exits(self, nodes: list[int]) -> None:
        """Until these launchers are gone."""
        for number in nodes:
            self.nodes[number].wait(DEADLOCK_SECONDS)

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
def running(count: int, workers: int, command: Command) -> Iterator[tuple[Job, dict[int, int]]]:
    """A job whose workers run, and their process ids."""
    with tempfile.TemporaryDirectory() as name:
        job = Job(Path(name), count, command)
        try:
            yield job, job.wait_for_workers(count * workers)
        finally:
            job.close()


def rankrun(workers: int, *flags: str) -> Command:
    """Run rankrun on the CPU, with so many workers on each node."""
    command = [sys.executable, "-m", "rankspawn.launch", "--nproc_per_node", str(workers)]
    command += ["--device_type", "cpu", "--grace_period", "2", "--elastic_timeout", "2"]
    command += ["--max_restart", "100", *flags]
    return lambda _, master: [*command, "--master", master]


def torchrun(workers: int, nodes: int) -> Command:
    """Run torchrun with its usual store."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(workers)]
    command += ["--nnodes", str(nodes), "--max_restarts", "100", "--rdzv_backend", "c10d"]
    return lambda _, master: [*command, "--rdzv_endpoint", master]
