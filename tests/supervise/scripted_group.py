"""Ranks that exist in memory only, and do what a test says when it says so.

A second implementation of ``rankspawn.supervise.group.Group``, under the same contexts as local
processes: no process, no descriptor per rank, no file. What happens is said by any thread and
noted by whoever waits for the group, as with an engine whose ranks are on other machines.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import process as processes

from rankspawn.descriptors import Owned, anonymous_file
from rankspawn.handlers import let_handlers_through
from rankspawn.interrupts import wait_patiently
from rankspawn.supervise.context import MultiprocessContext, RankProcess, start_context
from rankspawn.supervise.group import Measured, RankOutput, Spectator
from rankspawn.supervise.outcome import STATES, End, Outcome
from rankspawn.supervise.supervisor import SupervisionPolicy
from tests.jobs import DEADLOCK

# No process of this machine has such a number.
FIRST_PID = 1 << 30


@dataclass(frozen=True)
class ScriptedReport:
    """What a rank said at its end."""

    text: str = ""
    value: object = None
    error: BaseException | None = None
    crash: str = ""

    def result(self) -> object:
        return self.value

    def exception(self) -> BaseException:
        return self.error or RuntimeError(self.text)


class RemoteProcess:
    """What stands for a rank's process: without a descriptor, as it is not of this machine."""

    sentinel = -1

    def __init__(self, group: ScriptedGroup, index: int) -> None:
        self.pid = FIRST_PID + index
        self._group, self._index = group, index

    def poll(self, flag: int = 0) -> int | None:  # noqa: ARG002 - as multiprocessing has it
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        group, index = self._group, self._index
        deadline = None if timeout is None else time.monotonic() + timeout
        group.wait(lambda: group.has_ended(index), deadline)
        return group.outcomes[index].exit_code if group.has_ended(index) else None

    def terminate(self) -> None:
        self._group.ends(self._index, End.DIED, -signal.SIGTERM)

    def interrupt(self) -> None:
        self._group.ends(self._index, End.DIED, -signal.SIGINT)

    def kill(self) -> None:
        self._group.ends(self._index, End.DIED, -signal.SIGKILL)

    def close(self) -> None:
        pass


class ScriptedGroup:
    """The ranks of one start.

    Args:
        count: How many.
        first_rank: The rank of the first one.
        stubborn: The indices of those that only :meth:`kill` ends.
    """

    def __init__(self, count: int, first_rank: int = 0, stubborn: tuple[int, ...] = ()) -> None:
        self.owner: weakref.ref[object] | None = None
        self.deadline: float | None = None
        self.queued: float = 0.0
        self.listeners: set[Callable[[], None]] = set()
        self.outcomes: dict[int, Outcome] = {}
        self.sentinels: dict[int, int] = {}
        self.has_failed = False
        self.lost: Outcome | None = None
        self.measured: Measured | None = None
        self.closed = False
        self.is_waited_for = threading.Event()
        self.is_being_stopped = threading.Event()
        self.stops: list[tuple[float, bool]] = []  # grace, interrupted
        self.kills = 0
        self.changed = threading.Condition()
        self.processes = [RankProcess(first_rank + index, daemon=True) for index in range(count)]
        for index, process in enumerate(self.processes):
            process.has_started(RemoteProcess(self, index))
        # Some tests never end their group, and others look at all children of this process.
        processes._children.difference_update(self.processes)  # type: ignore[attr-defined]
        self.files = [Owned(anonymous_file("scripted-output")) for _ in self.processes]
        self._stubborn = stubborn
        self._reports: dict[int, ScriptedReport] = {}
        # What happened and was not noted yet.
        self._inbox: list[tuple[int, Outcome, ScriptedReport]] = []
        self._news = Owned(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    # What scripts call.

    def returns(self, index: int, value: object = None) -> None:
        self.ends(index, End.RETURNED, 0, ScriptedReport(value=value))

    def raises(self, index: int, error: Exception, when_ns: int | None = None) -> None:
        report = ScriptedReport(f"{type(error).__name__}: {error}\n", error=error)
        self.ends(index, End.RAISED, 1, report, when_ns)

    def ends(
        self,
        index: int,
        end: End,
        code: int,
        report: ScriptedReport | None = None,
        when_ns: int | None = None,
        reached_function: bool = True,
    ) -> None:
        """The rank ends; who waits for the group notes it."""
        process = self.processes[index]
        outcome = Outcome(
            process.rank,
            FIRST_PID + index,
            end,
            code,
            time.monotonic_ns() if when_ns is None else when_ns,
            reached_function,
            had_returned=end is End.RETURNED,
        )
        with self.changed:
            self._inbox.append((index, outcome, report or ScriptedReport()))
            if not self._news.closed:
                os.eventfd_write(self._news.fileno(), 1)
            self.changed.notify_all()

    def prints(self, index: int, text: str) -> None:
        os.write(self.files[index].fileno(), text.encode())

    # What a supervisor calls.

    @property
    def all_ended(self) -> bool:
        return len(self._reports) == len(self.processes)

    def wait(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        while True:
            self.collect()
            with self.changed:
                if self.closed or condition():
                    return True
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if not self._inbox:
                    self.is_waited_for.set()
                    wait_patiently(self.changed, DEADLOCK if left is None else left)
            let_handlers_through()

    def collect(self) -> None:
        with self.changed:
            news, self._inbox = self._inbox, []
            if news and not self._news.closed:
                os.eventfd_read(self._news.fileno())
            for index, outcome, report in news:
                if index not in self._reports:  # it ends once
                    self.outcomes[index] = outcome
                    self.has_failed = self.has_failed or outcome.is_failure
                    self._reports[index] = report
            self.changed.notify_all()
        for index, _, _ in news:
            self.processes[index].join()  # off multiprocessing's list of children
        if news:
            self._tell_listeners()

    def fileno(self) -> int:
        return self._news.fileno()

    def stop(self, grace: float, *, interrupted: bool = False) -> None:
        self.collect()
        if self.closed or (self.all_ended and not self.has_failed):
            return
        self.stops.append((grace, interrupted))
        for index in self._running():
            if index not in self._stubborn:
                self.ends(index, End.STOPPED, -signal.SIGTERM)
        self.is_being_stopped.set()
        try:
            self.wait(lambda: self.all_ended, time.monotonic() + grace)
        finally:
            if not self.all_ended:
                self.kill()
            self.wait(lambda: self.all_ended, time.monotonic() + DEADLOCK)

    def kill(self) -> None:
        self.kills += 1
        for index in self._running():
            self.ends(index, End.STOPPED, -signal.SIGKILL)

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self._news.close()
            for file in self.files:
                file.close()
            self.changed.notify_all()
        self._tell_listeners()

    def has_ended(self, index: int) -> bool:
        return index in self._reports

    def report_of(self, index: int) -> ScriptedReport:
        return self._reports[index]

    def last_lines(self, index: int) -> str:  # noqa: ARG002 - nothing is kept
        return ""

    def stacks(self, *, quickly: bool = False) -> dict[int, str]:  # noqa: ARG002 - at once
        where = '  File "train.py", line {} in step\n'
        return {self.processes[index].rank: where.format(index) for index in self._running()}

    def state_of(self, index: int) -> str:
        outcome = self.outcomes.get(index)
        return "running" if outcome is None else STATES.get(outcome.end, "failed")

    def steps_of(self, index: int) -> bytes:  # noqa: ARG002 - nobody says any
        return b""

    def open_output(self, index: int) -> RankOutput | None:
        return RankOutput(Owned(os.dup(self.files[index].fileno())), is_captured=True)

    def _running(self) -> list[int]:
        return [index for index in range(len(self.processes)) if index not in self._reports]

    def _tell_listeners(self) -> None:
        for tell in list(self.listeners):
            tell()


Script = Callable[[ScriptedGroup], None]


class ScriptedEngine:
    """Starts scripted groups, each with a thread that runs its script.

    Args:
        scripts: What happens to the first group, to the one after its restart, and so on.
        count: How many ranks each has.
        first_rank: The rank of the first one.
        stubborn: The indices of those that do not end when they are asked to.
    """

    def __init__(
        self,
        *scripts: Script,
        count: int = 2,
        first_rank: int = 0,
        stubborn: tuple[int, ...] = (),
    ) -> None:
        self.groups: list[ScriptedGroup] = []
        self._scripts = scripts
        self._shape = (count, first_rank, stubborn)
        self._threads: list[threading.Thread] = []

    def start(self, restarts: int) -> ScriptedGroup:
        assert restarts == len(self.groups)
        group = ScriptedGroup(*self._shape)
        self.groups.append(group)
        if restarts < len(self._scripts):
            thread = threading.Thread(target=self._scripts[restarts], args=(group,))
            self._threads.append(thread)
            thread.start()
        return group

    @contextmanager
    def context(
        self,
        policy: SupervisionPolicy | None = None,
        spectators: tuple[Spectator, ...] = (),
    ) -> Iterator[MultiprocessContext]:
        """A context over these groups; all has ended after it."""
        policy = policy or SupervisionPolicy(grace_period=DEADLOCK)
        context = start_context(self.start, policy, join=False, spectators=spectators)
        try:
            yield context
        finally:
            context.terminate(grace_period=0)
            for thread in self._threads:
                thread.join(DEADLOCK)
                assert not thread.is_alive()
