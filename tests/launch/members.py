"""Nodes of a job, each a real ``rankrun`` process, and their workers on a line to the test.

The line is a Unix socket: a worker reports who it is, and then waits for a word. It reaches across
network namespaces, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.jobs import DEADLOCK
from tests.launch.running import COMMAND, environment

SCRIPT = str(Path(__file__).with_name("reporting_script.py"))
TOKEN = "a token of the tests"
# Where a node has to be given up; else it may be silent for as long as a busy machine makes it.
SHORT = ("--node_timeout", "4")


class Worker:
    """A process of a job, as it told of itself."""

    def __init__(self, line: socket.socket) -> None:
        line.settimeout(DEADLOCK)
        self._line = line
        with line.makefile("rb") as words:
            report: dict[str, Any] = json.loads(words.readline())
        self.pid: int = report["pid"]
        self.args: list[str] = report["args"]
        self.env: dict[str, str] = report["env"]

    def __getitem__(self, name: str) -> str:
        return self.env[name]

    @property
    def restarts(self) -> int:
        return int(self.env["TORCHELASTIC_RESTART_COUNT"])

    def say(self, word: str) -> None:
        self._line.sendall(f"{word}\n".encode())

    def wait_gone(self) -> None:
        """Wait for its end, by whatever."""
        with contextlib.suppress(ConnectionResetError):
            assert self._line.recv(1) == b""

    def is_gone(self) -> bool:
        return not is_alive(self.pid)

    def close(self) -> None:
        self._line.close()


class Member:
    """One node: a launcher whose output is read as it comes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.said = ""
        self._found = 0

    def wait_for(self, text: str) -> None:
        """Wait until it says this, after what was waited for before."""
        deadline = time.monotonic() + DEADLOCK
        while text not in self.said[self._found :]:
            assert self._read(deadline), f"no {text!r} in {self.said}"
        self._found = self.said.index(text, self._found) + len(text)

    def wait(self) -> int:
        """The exit code, with everything read that it said."""
        deadline = time.monotonic() + DEADLOCK
        while self._read(deadline):
            pass
        return self.process.wait(max(0.0, deadline - time.monotonic()))

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        self.process.wait()

    def read_rest(self) -> str:
        """All that it said; only once it ended."""
        while self._read(time.monotonic() + 1.0):
            pass
        return self.said

    def close(self) -> None:
        self.end()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self, deadline: float) -> bool:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        left = max(0.0, deadline - time.monotonic())
        data = os.read(fd, 65536) if select.select([fd], [], [], left)[0] else b""
        self.said += data.decode()
        return bool(data)


class Job:
    """Starts nodes and hears of their workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members: list[Member] = []
        self._workers: list[Worker] = []
        # Its folder's descriptor stands for a path of any length: a Unix socket's has 107 bytes at
        # most, and a folder of pytest's may be deeper. (An abstract name has no path, but ends at
        # the border of a network namespace.)
        self._place = os.open(folder, os.O_PATH)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"/proc/self/fd/{self._place}/line")
        self._listener.listen(64)
        self._listener.settimeout(DEADLOCK)

    def start(
        self,
        *flags: str,
        inside: Sequence[str] = (),
        script: Sequence[str] = (SCRIPT,),
        **variables: str,
    ) -> Member:
        """Start a node with one worker, unless the flags say otherwise."""
        number = len(self.members)
        given = {
            "RANKSPAWN_JOB_TOKEN": TOKEN,
            "REPORT_TO": str(self.folder),
            # What a killed launcher leaves there goes with the test.
            "TMPDIR": str(self.folder),
            **variables,
        }
        words = ["--device_type", "cpu", "--log_dir", str(self.folder / f"log{number}"), *flags]
        if not {"--nproc_per_node", "--servers", "--server_num"} & set(flags):
            words += ["--nproc_per_node", "1"]
        process = subprocess.Popen(
            [*inside, *COMMAND, *words, *script],
            cwd=self.folder,
            env={name: value for name, value in environment(**given).items() if value},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # The tests may run in the background of a shell, where Ctrl-C is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        self.members.append(Member(process))
        return self.members[-1]

    def workers(self, count: int) -> list[Worker]:
        """The next so many workers that report, by rank."""
        found = []
        for _ in range(count):
            found.append(self._next_worker())
            self._workers.append(found[-1])
        return sorted(found, key=lambda worker: int(worker.env.get("RANK", "0")))

    def _next_worker(self) -> Worker:
        try:
            return Worker(self._listener.accept()[0])
        except TimeoutError:
            for member in self.members:
                member.end()
            said = "\n--- and\n".join(member.read_rest() for member in self.members)
            raise AssertionError(f"no worker reports; the nodes said\n{said}") from None

    def next_generation(self, old: Sequence[Worker], size: int) -> list[Worker]:
        """The workers of a later start with so many nodes, by rank, when all older ones are gone.

        A busy machine may lose a node for a moment, so there may be other starts in between.
        """
        seen = list(old)
        before = newest = max(worker.restarts for worker in old)
        group: list[Worker] = []
        while newest == before or {len(group)} != {size, int(group[0]["WORLD_SIZE"])}:
            seen += self.workers(1)
            newest = max(worker.restarts for worker in seen)
            group = [worker for worker in seen if worker.restarts == newest]
        assert all(worker.is_gone() for worker in seen if worker not in group), (
            "two generations at once"
        )
        group.sort(key=lambda worker: int(worker["RANK"]))
        assert [worker["RANK"] for worker in group] == [str(rank) for rank in range(size)]
        assert {worker["PADDLE_TRAINERS_NUM"] for worker in group} == {str(size)}
        return group

    def codes(self) -> list[int]:
        return [member.wait() for member in self.members]

    def close(self) -> None:
        for member in self.members:
            member.close()
        for worker in self._workers:
            worker.close()
        self._listener.close()
        os.close(self._place)


@contextlib.contextmanager
def running_job(folder: Path) -> Iterator[Job]:
    job = Job(folder)
    try:
        yield job
    finally:
        job.close()


def wait_gone(pid: int, seconds: float = DEADLOCK) -> bool:
    """Whether a process, not necessarily ours, is gone after this time at most."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


def is_alive(pid: int) -> bool:
    return not wait_gone(pid, 0)
