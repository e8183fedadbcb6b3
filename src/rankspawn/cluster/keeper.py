"""The driver of a detached job, in the job: ``python -m rankspawn.cluster.keeper FOLDER``.

It is what spawn is in a batch script, with a task that comes from a file and that it never looks
into. It supervises the ranks, whoever looks, and leaves their results in a file. Whoever attaches
is told what an agent would tell: the keeper stands for one node with all ranks.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankspawn.cluster.agents import start_agents
from rankspawn.cluster.attended import Attendance
from rankspawn.cluster.frames import FrameReader, encode
from rankspawn.cluster.kept_jobs import (
    ENDED,
    KEY_VARIABLE,
    RESULTS,
    TASK,
    read_signed,
    write_signed,
)
from rankspawn.cluster.printed import Logs, Merged
from rankspawn.cluster.terms import Terms
from rankspawn.descriptors import Owned
from rankspawn.errors import ProcessException
from rankspawn.supervise.policy import SupervisionPolicy
from rankspawn.supervise.supervisor import Supervisor

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankspawn.cluster.frames import Header
    from rankspawn.cluster.group import ClusterGroup
    from rankspawn.cluster.printed import Printed
    from rankspawn.supervise.group import Group, RankOutput


def write_task(folder: Path, key: bytes, terms: Terms, asked: Header) -> None:
    """Leave what the keeper needs: the terms, and how to start and supervise.

    Args:
        folder: Of the job.
        key: To sign with.
        terms: What nodes are told; their ``env`` is asked now, for as many ranks as there are.
        asked: The rest, as plain values.
    """
    env, world_size = terms.env, sum(asked["counts"])
    header = {
        "is": "task",
        "asked": asked,
        "prepare": terms.prepare,
        "start": terms.start,
        "shared": terms.shared,
        "own": terms.own,
        "env": None if env is None else [env(rank) for rank in range(world_size)],
        "versions": [terms.version, terms.python],
    }
    write_signed(folder, TASK, key, [encode(header, terms.payload), bytes(terms.payload)])


class Keeper:
    """One job."""

    def __init__(self, folder: Path, key: bytes) -> None:
        ((self._task, self._payload),) = FrameReader(is_greeted=True).feed(
            read_signed(folder, TASK, key)
        )
        self._folder, self._key = folder, key
        self._asked: dict[str, Any] = self._task["asked"]
        # Slurm starts a job again that it has put back into the queue.
        self._before = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        policy = SupervisionPolicy(
            self._asked["grace"],
            max_restarts=self._asked["max_restarts"],
            stops_on_failure=self._asked["on_failure"] == "stop",
        )
        self._supervisor = _BlindSupervisor(self._start, policy)
        self._attendance = Attendance(folder.name, self._supervisor)

    def run(self) -> int:
        """Until all ranks have ended, and whoever attends has been told; the exit code."""
        supervisor, attendance = self._supervisor, self._attendance
        # What an earlier start of this job has left.
        (self._folder / ENDED).unlink(missing_ok=True)
        signal.signal(signal.SIGTERM, self._note_sigterm)
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # the ranks' matter
            signal.signal(number, lambda *_: None)
        attendance.start()
        try:
            supervisor.begin()
            supervisor.wait(lambda: supervisor.finished, None, supervisor.policy.grace_period)
        except Exception as error:
            attendance.refusal = error
        with suppress(FileNotFoundError):  # whoever attended did not want them
            name = ENDED if supervisor.is_last else RESULTS
            write_signed(self._folder, name, self._key, [attendance.all_frames()])
        attendance.finish()
        return int(attendance.refusal is not None or supervisor.error is not None)

    def _note_sigterm(self, *_: object) -> None:
        """The time is over, or somebody ends the job: ranks have their grace period."""
        if not self._supervisor.is_last:
            self._supervisor.is_last = True
            threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        # While ranks are being started, their agents are told as well, and the start fails.
        group: ClusterGroup | None = getattr(self._supervisor, "group", None)
        if group is not None and not group.closed:
            group.end_because("Slurm has told the job to end (SIGTERM)")

    def _start(self, restart_count: int) -> ClusterGroup:
        from rankspawn.cluster.slurm import Slurm

        asked, engine = self._asked, Slurm(python=self._asked["python"])
        group, _ = start_agents(
            engine,
            asked["counts"],
            self._terms(self._before + restart_count),
            _Passed(self._printed(keep=self._before + restart_count > 0), self._attendance.pass_on),
            job=self._folder.name,
            grace=asked["grace"],
            daemon=asked["daemon"],
        )
        group.stops_on_failure = asked["on_failure"] == "stop"
        group.start(asked["counts"], None, None)
        group.listeners.add(self._attendance.wake)
        self._attendance.wake()
        return group

    def _printed(self, *, keep: bool) -> Printed:
        folder = self._asked["log_dir"]
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
            return Logs(folder, keep=keep)
        return Merged((Owned(os.dup(1)), Owned(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))))

    def _terms(self, restart_count: int) -> Terms:
        from rankspawn.cluster.agent import clock_name

        task = self._task
        version, python = task["versions"]
        env = task["env"]
        return Terms(
            version=version,
            python=python,
            clock=clock_name(),
            prepare=task["prepare"],
            # Nobody would pass on what ranks take.
            start={
                **task["start"],
                "restart_count": restart_count,
                "measured": False,
                "traced": False,
            },
            payload=memoryview(self._payload),
            shared=task["shared"],
            own=[(table, end) for table, end in task["own"]],
            env=None if env is None else env.__getitem__,
        )


class _BlindSupervisor(Supervisor):
    """Makes no errors of what ranks raised: classes of users are for whoever attaches.

    Attributes:
        is_last: The job is being ended: nothing is started again.
    """

    is_last = False

    def _may_restart(self, group: Group) -> bool:
        return not self.is_last and super()._may_restart(group)

    def _make_error(self, group: Group, index: int) -> ProcessException:
        outcome = group.outcomes[index]
        return ProcessException(f"rank {outcome.rank} failed", outcome.rank, outcome.pid)

    def _one_error(self, errors: list[ProcessException]) -> BaseException:
        return errors[0]


class _Passed:
    """Output that is kept in the job, and passed on to whoever attends."""

    def __init__(
        self, kept: Printed, pass_on: Callable[[Sequence[tuple[int, bytes]]], None]
    ) -> None:
        self._kept, self._pass_on = kept, pass_on
        self.open: Callable[[int], RankOutput | None] = kept.open
        self.finish: Callable[[], None] = kept.finish
        self.close: Callable[[], None] = kept.close

    def add(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Keep, and pass on."""
        self._kept.add(pieces)
        self._pass_on(pieces)

    def last_lines(self, index: int, told: str) -> str:
        """Also where they were printed: whoever attaches later has not seen them."""
        return self._kept.last_lines(index, told) or told


def main() -> None:
    """Keep the job in that folder."""
    key = bytes.fromhex(os.environ.pop(KEY_VARIABLE))
    sys.exit(Keeper(Path(sys.argv[1]), key).run())


if __name__ == "__main__":
    main()
