"""Processes that somebody else started, as a group: ``ProcessContext(processes, error_files)``."""

from __future__ import annotations

import contextlib
import pickle
import selectors
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

from rankspawn.descriptors import Waker, close_in_forks
from rankspawn.handlers import handlers_held, handlers_let_through
from rankspawn.interrupts import woken_by_signals
from rankspawn.supervise.outcome import STATES, STATUS_LOST, End, Outcome
from rankspawn.supervise.supervisor import Supervisor

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

# Between SIGKILL and the end of a process that can be reaped.
_GONE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class TextReport:
    """All that is known of a failure: its traceback."""

    text: str = ""
    crash: str = ""

    def result(self) -> None:
        """Nothing comes back from such processes."""

    def exception(self) -> None:
        """Nor does the exception itself."""


def adopt(processes: Sequence[BaseProcess], error_files: Sequence[str]) -> Supervisor:
    """What supervises processes that run already.

    Args:
        processes: Children of this process.
        error_files: For each of them where it pickles its traceback, as text, if it fails.
    """
    from rankspawn.compat.starting import make_policy

    # Their group has the members that a context asks for.
    group: Any = AdoptedGroup(processes, error_files)
    supervisor = Supervisor(lambda _: group, make_policy())
    supervisor.begin()
    return supervisor


class AdoptedGroup:
    """A :class:`rankspawn.supervise.group.Group` of multiprocessing's processes.

    Their end is their exit code, and what they wrote in their error file.
    """

    def __init__(self, processes: Sequence[BaseProcess], error_files: Sequence[str]) -> None:
        self.owner: weakref.ref[object] | None = None
        self.deadline: float | None = None
        self.queued: float = 0.0
        self.listeners: set[Callable[[], None]] = set()
        self.processes: list[BaseProcess] = list(processes)
        self.outcomes: dict[int, Outcome] = {}
        self.has_failed: bool = False
        self.lost: None = None
        self.measured: None = None
        self.closed: bool = False
        self._error_files = list(error_files)
        self._reports: dict[int, TextReport] = {}
        self._is_stopped = False
        self._noting = threading.RLock()
        self._closing = Waker()
        self._selector = selectors.DefaultSelector()
        close_in_forks(self._selector)
        self.sentinels: dict[int, int] = {}
        for index, process in enumerate(self.processes):
            self.sentinels[process.sentinel] = index
            self._selector.register(process.sentinel, selectors.EVENT_READ)

    @property
    def all_ended(self) -> bool:
        """No process runs any more."""
        return not self.sentinels

    def fileno(self) -> int:
        """Readable when :meth:`collect` has something to do."""
        return self._selector.fileno()

    def wait(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        """Block until the condition holds or the (monotonic) deadline passes; say which."""
        with handlers_held():
            while True:
                self.collect()
                if self.closed or condition():
                    return True
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._wait_for_news(left)

    def _wait_for_news(self, seconds: float | None) -> None:
        # One of its own: threads that wait at the same time do not change each other's.
        with selectors.DefaultSelector() as selector:
            for source in (*self.sentinels, self._closing.fileno()):
                selector.register(source, selectors.EVENT_READ)
            with woken_by_signals(selector), handlers_let_through():
                selector.select(seconds)

    def collect(self) -> None:
        """Take note of who ended."""
        with handlers_held(), self._noting:
            ready: list[Any] = connection.wait(list(self.sentinels), 0)
            for sentinel in ready:
                self._note(self.sentinels[sentinel])
                del self.sentinels[sentinel]
                if not self.closed:
                    self._selector.unregister(sentinel)
        for tell in list(self.listeners) if ready else ():
            tell()

    def _note(self, index: int) -> None:
        process = self.processes[index]
        process.join()
        code = STATUS_LOST if process.exitcode is None else process.exitcode
        text = None if code == 0 or self._is_stopped else _read(self._error_files[index])
        end = End.DIED if text is None else End.RAISED
        if code == 0:
            end = End.RETURNED
        elif self._is_stopped:
            end = End.STOPPED
        now, pid = time.monotonic_ns(), process.pid or 0
        outcome = Outcome(index, pid, end, code, now, True, had_returned=end is End.RETURNED)
        self._reports[index] = TextReport(text or "")
        self.outcomes[index] = outcome
        self.has_failed = self.has_failed or outcome.is_failure

    def stop(self, grace: float, *, interrupted: bool = False) -> None:  # noqa: ARG002 - see Group
        """SIGTERM, the grace period, SIGKILL."""
        self.collect()
        if self.closed or (self.all_ended and not self.has_failed):
            return
        try:
            self._signal(signal.SIGTERM)
            self.wait(lambda: self.all_ended, time.monotonic() + grace)
        finally:  # a second Ctrl-C cuts the grace period short
            self.kill()
            self.wait(lambda: self.all_ended, time.monotonic() + _GONE_SECONDS)

    def kill(self) -> None:
        """SIGKILL to those that run, without waiting."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with self._noting:
            self._is_stopped = True
            for index in sorted(self.sentinels.values()):
                process = self.processes[index]
                process.kill() if number == signal.SIGKILL else process.terminate()

    def close(self) -> None:
        """Let go of what waits need."""
        with self._noting:
            if not self.closed:
                self.closed = True
                self._selector.close()
                self._closing.wake()
        for tell in list(self.listeners):
            tell()

    def has_ended(self, index: int) -> bool:
        """Its outcome is final."""
        return index in self.outcomes

    def report_of(self, index: int) -> TextReport:
        """Its traceback, if it left one."""
        return self._reports[index]

    def last_lines(self, _: int) -> str:
        """Not kept."""
        return ""

    def stacks(self, *, quickly: bool = False) -> dict[int, str]:  # noqa: ARG002 - nobody asks so
        """Nobody can ask such processes."""
        return {}

    def state_of(self, index: int) -> str:
        """One word for what it does."""
        outcome = self.outcomes.get(index)
        return "running" if outcome is None else STATES.get(outcome.end, "failed")

    def steps_of(self, _: int) -> bytes:
        """Nothing is known of them."""
        return b""

    def open_output(self, _: int) -> None:
        """It goes where this process's own goes."""


def _read(path: str) -> str | None:
    """The traceback in an error file; None if there is none."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return str(pickle.load(file))
    return None
