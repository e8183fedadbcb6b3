"""Jobs that go on without their driver: started by one, found again by :func:`attach`.

The job has a keeper, which is its driver (``keeper``). Whoever attaches hears from it what an agent
would say, over a channel that the engine gives, or from the file that it has left at the end; so
the same group and the same context serve.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import util
from typing import Any

import rankspawn
from rankspawn.cluster.agent import clock_name
from rankspawn.cluster.driver import Driver
from rankspawn.cluster.group import ClusterGroup
from rankspawn.cluster.keeper import write_task
from rankspawn.cluster.kept_jobs import ENDED, RESULTS, KeptJob, load, new_folder, read_signed
from rankspawn.cluster.node_state import NodeState, Phase
from rankspawn.cluster.printed import InMemory, Merged
from rankspawn.cluster.starting import ClusterStarter, counts_of
from rankspawn.cluster.terms import Terms
from rankspawn.errors import NodeLostError
from rankspawn.functions import name_of
from rankspawn.options import SpawnOptions
from rankspawn.supervise.context import MultiprocessContext, start_context
from rankspawn.supervise.policy import SupervisionPolicy
from rankspawn.workers.running import running

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.cluster.engine import Channel
    from rankspawn.cluster.slurm import Slurm

# What a shared file system takes to show what another node has written.
_SECONDS_TO_SHOW = 5.0
_PAUSE = 0.1
# Before all that rankspawn does at the exit.
_FIRST_AT_EXIT = 1000
# Options that somebody would have to watch over when the driver is gone.
_NOT_DETACHED = {
    "timeout": "give the job a limit with Slurm(time=...)",
    "stall_timeout": "nobody may be there to see it",
    "keep_alive_on_failure": "nobody may be there to end it",
    "trace": "what happens while nobody is attached would not be in it",
}


def attach(job_id: int | str) -> MultiprocessContext[Any]:
    """The context of a job that was started with ``Slurm(detach=True)``; for any process.

    Waits until the job runs. One that is over has left its results, which are removed once they
    were had. Ranks run on when this process ends; ``terminate()``, and Ctrl-C in ``join()``, end
    them.

    Args:
        job_id: Slurm's number of the job: the context's ``job_id``, or what ``squeue`` says.

    Raises:
        ValueError: This is no number of a job.
        LookupError: Nothing is kept of such a job.
        NodeLostError: It is over, and has left no results.
    """
    number = str(job_id)
    if not (number.isascii() and number.isdecimal()):
        raise ValueError(f"job_id={job_id!r} is no number of a job, such as 4711")
    job = load(number)
    policy = SupervisionPolicy(
        job.asked["grace"], stops_on_failure=job.asked["on_failure"] == "stop"
    )
    return start_context(lambda _: connect(job, Merged()), policy, join=False)


class AttachedGroup(ClusterGroup):
    """The ranks of a detached job, which run on when this process ends."""

    def __init__(self, job: KeptJob, channel: Channel, printed: Merged | InMemory) -> None:
        asked = job.asked
        terms = Terms(
            rankspawn.__version__,
            sys.version.split()[0],
            clock_name(),
            prepare={"is": "prepare", "listens": True},
            start={"is": "start", "payload": {}},
            payload=memoryview(b""),
            shared=0,
        )
        self.node: NodeState = NodeState(0, channel.host, "")
        super().__init__(Driver([self.node], terms), [channel], printed, asked["grace"], False)
        self.outlives_driver = True
        self.job_id: str | None = job.number
        self._job, self._channel = job, channel
        self.what: str = asked["what"]
        self.stops_on_failure: bool = asked["on_failure"] == "stop"

    def start(
        self,
        counts: Any = (0,),
        deadline: float | None = None,
        hello_within: float | None = None,
    ) -> None:
        """Hear what there is."""
        super().start(counts, deadline, hello_within)
        # Nobody waits for it at the exit: it is let go of before those who show it are waited for.
        running.discard(self)
        self._at_exit = util.Finalize(None, self.close, exitpriority=_FIRST_AT_EXIT)

    @property
    def all_ended(self) -> bool:
        """Also the keeper has written what it leaves."""
        return super().all_ended and self.node.phase in (Phase.STOPPED, Phase.LOST)

    def last_lines(self, index: int) -> str:
        """As the keeper has it: they may have been printed before anybody attached."""
        report = self.node.reports.get(index)
        return "" if report is None else report.tail

    def close(self) -> None:
        """Let go of it; what is over is not kept any longer, unless it may begin again."""
        super().close()
        self._at_exit.cancel()
        is_over = not (self._job.folder / ENDED).exists() or isinstance(self._channel, _Left)
        if self.node.phase is Phase.STOPPED and is_over:
            self._job.forget()


class _Left:
    """A channel from which the frames come that a keeper has left."""

    address: str | None = ""

    def __init__(self, host: str, data: bytes) -> None:
        self.host = host
        self._data = data
        self._socket, theirs = socket.socketpair()
        threading.Thread(target=self._write, args=(theirs,), daemon=True).start()

    def _write(self, theirs: socket.socket) -> None:
        with theirs, suppress(OSError):
            theirs.sendall(self._data)
            while theirs.recv(1 << 16):
                pass

    def read_fileno(self) -> int:
        """The socket."""
        return self._socket.fileno()

    def write_fileno(self) -> int:
        """The socket."""
        return self._socket.fileno()

    def why_lost(self) -> str:
        """What the file had not."""
        return "the file with its results ends too early"

    def kill(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()


def connect(job: KeptJob, printed: Merged | InMemory) -> AttachedGroup:
    """The group of a job, running or over; waits in the queue with it.

    Raises:
        NodeLostError: It is over, and has left no results.
    """
    from rankspawn.cluster.slurm_batch import channel_to, wait_until_it_runs

    while True:
        host = None if _has_results(job) else wait_until_it_runs(job.number)
        if host is None:
            return _started(job, _Left(f"job {job.number}", _wait_for_results(job)), printed)
        channel = channel_to(job.number, host, job.asked["python"], job.folder.name)
        try:
            return _started(job, channel, printed)
        except NodeLostError:
            # It may have ended, or gone back to the queue, just now.
            if wait_until_it_runs(job.number) is not None and not _has_results(job):
                raise


def _started(job: KeptJob, channel: Channel, printed: Merged | InMemory) -> AttachedGroup:
    group = AttachedGroup(job, channel, printed)
    group.start()
    return group


def _has_results(job: KeptJob) -> bool:
    return (job.folder / RESULTS).exists()


def _wait_for_results(job: KeptJob) -> bytes:
    """What a job that is over has left."""
    deadline = time.monotonic() + _SECONDS_TO_SHOW
    while True:
        try:
            name = RESULTS if _has_results(job) else ENDED
            return read_signed(job.folder, name, job.key)
        except FileNotFoundError:
            if time.monotonic() > deadline:
                from rankspawn.cluster.slurm_batch import state_of

                state = state_of(job.number)[0] or "nothing any more"
                raise NodeLostError(
                    f"job {job.number} is over and has left no results: its keeper was ended "
                    f"before it could write them, or it was cancelled in the queue; Slurm says "
                    f"{state} of it"
                ) from None
            time.sleep(_PAUSE)


class DetachedStarter(ClusterStarter):
    """Starts a job of its own, and attaches to it."""

    engine: Slurm

    def __post_init__(self) -> None:
        usual = SpawnOptions()
        for name, why in _NOT_DETACHED.items():
            if getattr(self.options, name) != getattr(usual, name):
                raise ValueError(f"{name} and detach cannot be given at once: {why}")
        super().__post_init__()

    @property
    def supervised(self) -> SpawnOptions:
        """Without restarts, which are the keeper's."""
        return dataclasses.replace(self.options, max_restarts=0)

    def start(self, restart_count: int) -> AttachedGroup:
        """Submit the job, and wait until it runs."""
        from rankspawn.cluster.slurm_batch import cancel, submit

        options, engine = self.options, self.engine
        counts = counts_of(self.nprocs, engine.nodes())
        self.check(counts)
        if -1 in counts and (callable(options.env) or self.task.rows()):
            raise ValueError(
                "nprocs=-1 with detach: what is different for each rank (env as a function, "
                "rank_args, rank_kwargs) is written before the job begins; give a number"
            )
        log_dir = None if options.log_dir is None else os.path.abspath(options.log_dir)
        python = engine.python or sys.executable
        asked = {
            "counts": counts,
            "grace": options.grace_period,
            "max_restarts": options.max_restarts,
            "on_failure": options.on_failure,
            "daemon": self.daemon,
            "log_dir": log_dir,
            "python": python,
            "what": name_of(self.task.func),
        }
        folder, key = new_folder(None if isinstance(engine.detach, bool) else engine.detach)
        number = ""
        job = KeptJob(number, folder, key, asked)
        try:
            write_task(folder, key, self._terms(restart_count), asked)
            words = engine.batch_words(f"rankspawn-{folder.name}")
            number = submit(words, python, folder, key)
            job = dataclasses.replace(job, number=number)
            job.save()
            group = connect(job, Merged() if self._is_plain else InMemory())
        except BaseException:
            if number:
                cancel(number)
            job.forget()
            raise
        self._note_nodes([group.node], group.printed)
        return group
