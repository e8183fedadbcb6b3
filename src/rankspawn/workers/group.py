"""A running group: waiting for its ranks, and stopping them.

Everything that can happen is a readable descriptor in one selector: a worker's pidfd (it
ended), or the failure event (a worker reported a failure and may still take long to end). Any
number of threads may wait; one of them blocks on the selector, the others on it.
"""

from __future__ import annotations

import selectors
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

from rankspawn.descriptors import Waker, close_in_forks
from rankspawn.handlers import handlers_held, handlers_let_through, let_handlers_through
from rankspawn.interrupts import patiently, wait_patiently, woken_by_signals
from rankspawn.machine import OomCounts, describe_oom_kills, read_oom_counts
from rankspawn.supervise.outcome import STATES, Outcome, failures_in
from rankspawn.workers.running import running
from rankspawn.workers.teardown import (
    describe_unreached,
    kill_workers,
    stop_workers,
)
from rankspawn.workers.worker import FunctionWorker, Worker

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.descriptors import Closable
    from rankspawn.supervise.context import RankProcess
    from rankspawn.supervise.group import RankOutput
    from rankspawn.workers.agent_store import AgentStore
    from rankspawn.workers.outcome_file import TakenReport

# The system's waits cannot take more than 24 days at once; a day is as good as for ever.
_LONGEST_WAIT = 86_400.0


class WorkerGroup:
    """The workers of one start, and the resources they need while they run.

    With functions it is a :class:`rankspawn.supervise.group.Group`.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        mark: str,
        failure_event: Waker,
        began_ns: int,
        oom_before: OomCounts,
        resources: Sequence[Closable],
        grace: float,
        store: AgentStore | None = None,
    ) -> None:
        self.mark = mark
        # For a group that nobody joins.
        self.grace = grace
        self.deadline: float | None = None
        self.queued: float = 0.0
        self.stops_on_failure = True
        # What is said of it there: the function that its workers run.
        self.what = ""
        # Whose job it is to close the group; it may be dropped while workers run.
        self.owner: weakref.ref[object] | None = None
        self._oom_before = oom_before
        self.workers: list[Worker] = list(workers)
        # The workers as multiprocessing has them; none of programs.
        self.processes: list[RankProcess] = [
            worker.process for worker in workers if isinstance(worker, FunctionWorker)
        ]
        # Sentinel to index; shrinks as workers end.
        self.sentinels: dict[int, int] = {
            worker.popen.sentinel: index for index, worker in enumerate(workers)
        }
        # Index to outcome; grows as they end, or report a failure.
        self.outcomes: dict[int, Outcome] = {}
        self.has_failed: bool = False  # one of them is a failure, or the store is lost
        self.lost: Outcome | None = None
        self.measured: None = None
        self._store = store
        self._reports: dict[int, TakenReport] = {}
        self._last_lines: dict[int, str] = {}
        self._failure_event = failure_event
        self._resources = list(resources)
        self._stopped_ns: int | None = None
        self._looked_ns = began_ns
        self._changed = threading.Condition()
        # True after close(), and in a forked child, which has no business with these workers.
        self.closed: bool = False
        # Called after each look and at the end: event loops must not miss what a thread noted.
        self.listeners: set[Callable[[], None]] = set()
        self._selecting_thread: int | None = None
        # In how many calls it selects: more than one if a handler of a signal waits in a wait.
        self._selects = 0
        self._stopping = threading.RLock()
        self._selector = selectors.DefaultSelector()
        close_in_forks(self._selector)
        self._selector.register(failure_event, selectors.EVENT_READ)
        for sentinel in (*self.sentinels, *([store.sentinel] if store else ())):
            self._selector.register(sentinel, selectors.EVENT_READ)

    def fileno(self) -> int:
        """The descriptor that is readable when :meth:`collect` has something to do."""
        return self._selector.fileno()

    @property
    def all_ended(self) -> bool:
        """No worker runs any more."""
        return not self.sentinels

    @property
    def is_daemonic(self) -> bool:
        """Multiprocessing would end one of the workers at the exit of this process."""
        return any(worker.is_daemonic for worker in self.workers)

    @property
    def failures(self) -> list[tuple[int, Outcome]]:
        """Index and outcome of the ranks that failed by themselves, the first in time first."""
        return failures_in(self.outcomes)

    @property
    def reports_are_complete(self) -> bool:
        """No rank that failed is still writing its report."""
        failed = [index for index in self.sentinels.values() if index in self.outcomes]
        return not any(self.workers[index].is_writing for index in failed)

    def wait(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        """Block until the condition holds or the (monotonic) deadline passes; say which.

        The end of the group's supervision counts as the former: then nothing more happens.
        """
        looked = False  # also with no time left, what has happened counts
        with handlers_held():
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                with self._changed:
                    if self.closed or condition():
                        return True
                    if looked and left == 0:
                        return False
                    looked = True
                    left = _LONGEST_WAIT if left is None else min(left, _LONGEST_WAIT)
                    selects = self._may_select()
                    if not selects:
                        wait_patiently(self._changed, left)
                if selects:
                    self._select(left)
                else:
                    let_handlers_through()

    def collect(self, *, was_waiting: bool = False) -> None:
        """Take note of what happened, without waiting.

        Args:
            was_waiting: The caller blocked on :meth:`fileno` until now, so that whatever ended
                did so just now.
        """
        with handlers_held():
            with self._changed:
                free = not self.closed and self._may_select()
            if free:
                if was_waiting:
                    self._looked_ns = time.monotonic_ns()
                self._select(0)

    def stop(
        self, grace: float, *, interrupted: bool = False, only_marked: str | None = None
    ) -> None:
        """End every worker that still runs, and what the workers started; see ``teardown``.

        After a success there is nothing to stop: what such workers started is left alone. An
        exception (a second Ctrl-C) during the grace period cuts it short.

        Args:
            grace: Seconds until SIGKILL.
            interrupted: This process got SIGINT.
            only_marked: Of what the workers started, only those with this mark are killed.
        """
        with patiently(self._stopping):
            self.collect()
            if self.closed or (self.all_ended and not self.has_failed):
                return
            self._note_stop()
            mark = self.mark if only_marked is None else only_marked
            stop_workers(self, grace, mark, interrupted=interrupted)

    def kill(self) -> None:
        """SIGKILL to the workers that run; whoever waits for their end does the rest."""
        self._note_stop()
        kill_workers(self)

    def _note_stop(self) -> None:
        """Whoever ends from here on is a victim."""
        if self._stopped_ns is None:
            self._stopped_ns = self._looked_ns = time.monotonic_ns()

    def close(self) -> None:
        """Let go of what running workers needed; what they left stays readable."""
        with handlers_held(firmly=True):
            with self._changed:
                if self.closed:
                    return
                self.closed = True
                self._last_lines = {index: self._describe_end(index) for index, _ in self.failures}
                if self._may_select() and not self._selects:
                    self._close_descriptors()
                else:  # another thread, or what a handler of a signal interrupted, will close them
                    self._failure_event.wake()
                self._changed.notify_all()
            for tell in list(self.listeners):
                tell()
            running.discard(self)

    def _close_descriptors(self) -> None:
        self._selector.close()
        for worker in self.workers:
            worker.popen.close()
            worker.close_output()
        while self._resources:
            self._resources.pop().close()

    def _may_select(self) -> bool:
        """Claim the selector for this thread, unless another one has it.

        The claim is a thread's name rather than a lock: a handler of a signal, which may wait in
        the middle of a wait, can claim it again.
        """
        me = threading.get_ident()
        if self._selecting_thread not in (None, me):
            return False
        self._selecting_thread = me
        return True

    def _select(self, timeout: float | None) -> None:
        """Take note of what happened, after a wait for it in which signals are handled."""
        ready: list[int] = []
        waited = False
        with handlers_held():
            self._selects += 1
            try:
                ready = [key.fd for key, _ in self._selector.select(0)]
                if timeout != 0 and not ready:
                    waited = True
                    with woken_by_signals(self._selector), handlers_let_through():
                        ready = [key.fd for key, _ in self._selector.select(timeout)]
            finally:
                self._end_select(ready, waited=waited)

    def _end_select(self, ready: list[int], *, waited: bool) -> None:
        with self._changed:
            self._selects -= 1
            if not self._selects:
                self._selecting_thread = None
            if not self.closed:
                self._note(ready, self._time_of_events(waited=waited))
            elif not self._selects:
                self._close_descriptors()
            self._changed.notify_all()
        for tell in list(self.listeners) if ready else ():
            tell()

    def _time_of_events(self, *, waited: bool) -> int:
        """When the deaths happened that were just noticed, as far as that can be known.

        Now, if we waited for them. Else nobody looked for a while, and they count as early as
        possible: a death without a report is more often a cause than a consequence.
        """
        now = time.monotonic_ns()
        since, self._looked_ns = self._looked_ns, now
        return now if waited else since

    def _note(self, ready: list[int], now: int) -> None:
        for fd in ready:
            index = self.sentinels.get(fd)
            if index is not None:
                self._selector.unregister(fd)
                del self.sentinels[fd]
                self._note_outcome(index, self.workers[index].reap(), now)
                self._reports[index] = self.workers[index].take_report()
                self.workers[index].close()
        # A rank that only reported so far may have failed before one that already ended.
        if self._failure_event.fileno() in ready:
            self._failure_event.clear()
            for index in self.sentinels.values():
                if index not in self.outcomes and self.workers[index].header().is_failure:
                    self._note_outcome(index, None, now)
        if self._store is not None and self._store.sentinel in ready:
            self._selector.unregister(self._store.sentinel)
            # Else nobody needs it any more.
            if self._stopped_ns is None and (self.sentinels or self._store.is_shared):
                self.lost, self.has_failed = self._store.describe_loss(now), True

    def stacks(self, *, quickly: bool = False) -> dict[int, str]:
        """Rank to the Python stacks of all its threads, of the ranks that run."""
        with handlers_held():
            from rankspawn.workers.stacks import collect_stacks  # few groups are asked

        return collect_stacks(self, quickly=quickly)

    def copy_outcome_files(self, copies: dict[int, int]) -> None:
        """Add, by index, copies of the files of running workers, whose end closes them."""
        with self._changed:
            for index in self.sentinels.values():
                copy = self.workers[index].copy_outcome_file()
                if copy is not None:
                    copies[index] = copy

    def has_ended(self, index: int) -> bool:
        """The rank is gone, and its outcome and report are final."""
        return index in self._reports

    def report_of(self, index: int) -> TakenReport:
        """What a rank said at its end; also of one that reported, but could not be reaped."""
        return self._reports.get(index) or self.workers[index].take_report()

    def last_lines(self, index: int) -> str:
        """A rank's last lines, for its error; also after the end of the group."""
        return self._last_lines.get(index) or self._describe_end(index)

    def _describe_end(self, index: int) -> str:
        return describe_unreached(self) + self.workers[index].describe_output()

    def state_of(self, index: int) -> str:
        """One word for what a rank does, or how it ended; waits for nobody."""
        state = "running"
        if index not in self.outcomes and not self.closed:
            # Without the lock: its holder may wait for a fork server, or be stopped by a debugger.
            # If the end is noted meanwhile, descriptors are others', and this does not count.
            with suppress(OSError, ValueError):
                state = self.workers[index].state()
        outcome = self.outcomes.get(index)
        return state if outcome is None else STATES.get(outcome.end, "failed")

    def steps_of(self, index: int) -> bytes:
        """What the rank said last with ``rankspawn.report``, as a record."""
        with self._changed:
            report = self._reports.get(index)
            return self.workers[index].steps() if report is None else report.steps

    def open_output(self, index: int) -> RankOutput | None:
        """Where what the rank prints can be read; whoever asked for it closes it."""
        return self.workers[index].open_output()

    def _note_outcome(self, index: int, exit_code: int | None, now: int) -> None:
        killed = exit_code == -signal.SIGKILL
        evidence = describe_oom_kills(self._oom_before, read_oom_counts()) if killed else None
        outcome = self.workers[index].decide_outcome(
            exit_code, seen_ns=now, stopped_ns=self._stopped_ns, evidence=evidence
        )
        self.outcomes[index] = outcome
        self.has_failed = self.has_failed or outcome.is_failure
