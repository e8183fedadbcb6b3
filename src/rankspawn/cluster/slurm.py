"""Agents in a Slurm allocation: one step on each node, started by ``srun``.

Each step has one task, the agent, whose standard input and output srun carries. Elsewhere than in
an allocation, one is asked for and held by ``salloc`` until the group or this process has ended.
"""

from __future__ import annotations

import logging
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import partial

from rankspawn.cluster.engine import TIME_TO_KILL, AgentRequest, Node
from rankspawn.cluster.programs import ProgramChannel, SharedDeadline, close_all, end
from rankspawn.cluster.slurm_words import explain

_log = logging.getLogger(__name__)
# Seconds in a queue after which people want to know what it is that they wait for.
PATIENCE = 5.0
# Says what was granted, and keeps it.
_HOLD = 'echo "$SLURM_JOB_ID"; scontrol show hostnames "$SLURM_JOB_NODELIST"; echo; exec cat'
_STEP = (
    # The agent is small: it shares what the job has with its ranks and with other steps.
    *("--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpu-bind=none"),
    # Only bytes go through, and at once, not when a line has ended.
    *("--unbuffered", "--input=all", "--output=all", "--error=all", "--quiet"),
    *("--mpi=none", "--export=ALL"),
)
# What an outer step or the user's profile says about steps of another shape.
_NOT_FOR_OUR_STEPS = re.compile(
    r"SLURM_(LABELIO|UNBUFFEREDIO|NTASKS\w*|NPROCS|TASKS_PER_NODE|CPU_BIND\w*|DISTRIBUTION|HINT"
    r"|THREADS_PER_CORE|RELATIVE|EXACT|EXCLUSIVE|WHOLE|STEP\w*|PROCID|NODEID|LOCALID|MULTI_PROG)"
)


class Slurm:
    """The nodes of a Slurm job: of the one that this process is in, else of a new one.

    What describes a new job does not count in one: so a call serves login node and batch script.

    Args:
        nodes: How many; None for all of the allocation, or one of a new job.
        partition: Where a new job runs.
        time: Its limit: ``"2:00:00"``.
        account: Who pays for it.
        qos: Its quality of service.
        extra: More words for ``salloc``: ``["--gres=gpu:8", "--exclusive"]``.
        python: The interpreter on the nodes; None for the path of this one.
        detach: A new job outlives its driver, and :func:`rankspawn.cluster.attach` finds it again.
            Its task and its results are in a folder of yours, or where this says.

    Raises:
        ValueError: One of them makes no sense.
    """

    name = "Slurm"
    # Nobody knows how long a node takes to wake up, and srun says when one cannot be had.
    start_timeout: float | None = None
    # Slurm looks for its nodes; one that it suspended is silent.
    lease: float | None = None
    shares_files = True

    def __init__(
        self,
        nodes: int | None = None,
        *,
        partition: str | None = None,
        time: str | int | None = None,
        account: str | None = None,
        qos: str | None = None,
        extra: Sequence[str] = (),
        python: str | os.PathLike[str] | None = None,
        detach: bool | str | os.PathLike[str] = False,
    ) -> None:
        if nodes is not None and (isinstance(nodes, bool) or nodes < 1):
            raise ValueError(f"nodes={nodes!r}: a job has at least one node")
        if isinstance(extra, str) or not all(isinstance(word, str) for word in extra):
            raise ValueError(f"extra={extra!r} must be words for salloc: ['--gres=gpu:8']")
        self._count = nodes
        self.python: str | None = None if python is None else os.fspath(python)
        self.detach = detach
        asked = {"partition": partition, "time": time, "account": account, "qos": qos}
        self._words = [f"--{name}={value}" for name, value in asked.items() if value is not None]
        self._words += extra

    def __repr__(self) -> str:
        return f"Slurm(nodes={self._count})"

    def nodes(self) -> Sequence[Node]:
        """Those of the allocation; without one, as many as a new job will have."""
        for program in ("srun", "sbatch" if self.detaches else "salloc", "scontrol"):
            if shutil.which(program) is None:
                raise RuntimeError(f"Slurm needs the program {program}, which is not on PATH")
        if "SLURM_JOB_ID" not in os.environ:
            return [Node()] * (self._count or 1)
        return [Node(name) for name in self._names_here()]

    def start(self, request: AgentRequest) -> Sequence[ProgramChannel]:
        """Start a step on each node; waits for an allocation if there is none."""
        if job := os.environ.get("SLURM_JOB_ID"):
            return self._start_steps(request, job, self._names_here(), None)
        allocation = Allocation(["salloc", *self.job_words(request.job)])
        try:
            return self._start_steps(request, allocation.job, allocation.hosts, allocation)
        except BaseException:
            allocation.close()
            raise

    @property
    def detaches(self) -> bool:
        """Whether it starts a job of its own; in one, that has begun already."""
        return bool(self.detach) and "SLURM_JOB_ID" not in os.environ

    def batch_words(self, job: str) -> list[str]:
        """What a job is described with."""
        return [f"--nodes={self._count or 1}", f"--job-name={job}", *self._words]

    def job_words(self, job: str) -> list[str]:
        """What the allocation is asked for with."""
        return [*self.batch_words(job), "--no-bell", "sh", "-c", _HOLD]

    def step_command(self, job: str, host: str, words: Sequence[str]) -> list[str]:
        """What runs these words on one node of an allocation."""
        return ["srun", f"--jobid={job}", f"--nodelist={host}", *_STEP, *words]

    def _names_here(self) -> list[str]:
        job, text = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_JOB_NODELIST", "")
        done = subprocess.run(
            ["scontrol", "show", "hostnames", text], capture_output=True, text=True, check=False
        )
        names = done.stdout.split()
        if done.returncode or not names:
            raise RuntimeError(
                f"SLURM_JOB_ID={job} is set, but SLURM_JOB_NODELIST={text!r} names no nodes "
                f"{done.stderr.strip()}"
            )
        if self._count is not None and self._count > len(names):
            have = f"the allocation {job} has {len(names)}: {' '.join(names)}"
            raise ValueError(f"nodes={self._count}, but {have}")
        return names[: self._count]

    def _start_steps(
        self, request: AgentRequest, job: str, hosts: Sequence[str], allocation: Allocation | None
    ) -> Sequence[ProgramChannel]:
        deadline = SharedDeadline(request.grace + TIME_TO_KILL)
        environ = environ_of_steps(os.environ)
        steps: list[_Step] = []
        try:
            for host in hosts:
                command = self.step_command(job, host, request.command(self.python))
                why = partial(explain, host)
                steps.append(_Step(host, command, environ=environ, deadline=deadline, explain=why))
        except BaseException:
            close_all(steps)
            raise
        for step in steps:
            step.allocation = allocation
        return steps


class Allocation:
    """The number of a job and the names of its nodes, held by a program until this process ends."""

    def __init__(self, command: Sequence[str]) -> None:
        """Ask for them and wait; raises RuntimeError with Slurm's words if they are refused."""
        self.job: str = ""
        self.hosts: list[str] = []
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as said, theirs:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=said,
                env=environ_of_steps(os.environ),
                start_new_session=True,
            )
            theirs.close()
            try:
                granted = self._granted()
            except BaseException:
                self.close()
                raise
            if not granted:
                self.close()
                said.seek(0)
                told = said.read().decode(errors="replace").strip()
                raise RuntimeError(f"Slurm gave no nodes: {told}")
        self.job, self.hosts = granted[0], granted[1:]
        self._users = len(self.hosts)

    def leave(self) -> None:
        """Called once for each step that has ended; the last one gives the nodes back."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self.close()

    def close(self) -> None:
        """Give the nodes back; one that still waits in the queue leaves it."""
        if not self.job:
            self._process.terminate()
        self._socket.close()
        end(self._process, TIME_TO_KILL)

    def _granted(self) -> list[str]:
        """The number and the names; nothing if it ended without."""
        if not select.select([self._socket], [], [], PATIENCE)[0]:
            _log.warning("waiting for the nodes that Slurm was asked for; `squeue --me` says why")
        words: list[str] = []
        with self._socket.makefile() as lines:
            for line in lines:
                if not line.strip():
                    return words
                words.append(line.strip())
        return []


class _Step(ProgramChannel):
    """A step, and its share in the allocation."""

    allocation: Allocation | None = None

    def close(self) -> None:
        super().close()
        with self._lock:
            allocation, self.allocation = self.allocation, None
        if allocation is not None:
            allocation.leave()


def environ_of_steps(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would give our steps another shape."""
    return {name: text for name, text in environ.items() if not _NOT_FOR_OUR_STEPS.fullmatch(name)}
