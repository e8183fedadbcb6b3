"""A running group: waiting for its ranks, and stopping them.

Everything that can happen is a readable descriptor in one selector: a worker's pidfd (it
ended), or the failure event (a worker reported a failure and may still take long to end). Any
number of threads may wait; one of them blocks on the selector, the others on it.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rankspawn.descriptors import Owned, close_in_forks
from rankspawn.workers.guardian import Guardian
from rankspawn.workers.marker import kill_marked, new_mark
from rankspawn.workers.oom import OomCounts, describe_change, read_counts
from rankspawn.workers.outcome import Outcome, Remains
from rankspawn.workers.teardown import stop_workers
from rankspawn.workers.wakeup import woken_by_signals
from rankspawn.workers.worker import FunctionWorker, Worker, kill_started

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.descriptors import Closable
    from rankspawn.workers.process import RankProcess

logger = logging.getLogger(__name__)

# Groups with running workers. They live as long as those, also if nobody keeps the context:
# with a group its lifeline would be closed, and the guardian would take that for our death.
_running: set[WorkerGroup] = set()
os.register_at_fork(after_in_child=_running.clear)
# The system's waits cannot take more than 24 days at once; a day is as good as for ever.
_LONGEST_WAIT = 86_400.0


@dataclass(frozen=True, slots=True)
class Moment:
    """What was before the first worker; whatever happened to one of them happened later."""

    time_ns: int = field(default_factory=time.monotonic_ns)
    oom_counts: OomCounts = field(default_factory=read_counts)


class WorkerGroup:
    """The workers of one start, and the resources they need while they run."""

    def __init__(
        self,
        workers: Sequence[Worker],
        mark: str,
        failure_event: Owned,
        before: Moment,
        resources: Sequence[Closable] = (),
    ) -> None:
        self.mark = mark
        # Whose job it is to close the group; it may be dropped while workers run.
        self.supervisor: weakref.ref[object] | None = None
        self._oom_before = before.oom_counts
        self.workers = list(workers)
        # Sentinel to position; shrinks as workers end.
        self.sentinels = {worker.popen.sentinel: at for at, worker in enumerate(workers)}
        # Position to outcome; grows as they end, or report a failure.
        self.outcomes: dict[int, Outcome] = {}
        self._has_failed = False  # one of them is a failure
        self.remains: dict[int, Remains] = {}
        self._last_lines: dict[int, str] = {}
        self._failure_event = failure_event
        self._resources = list(resources)
        self._stopped_ns: int | None = None
        self._looked_ns = before.time_ns
        self._changed = threading.Condition()
        # True after close(), and in a forked child, which has no business with these workers.
        self.closed = False
        # Called after each look and at the end: event loops, which must not miss what another
        # thread noted.
        self.listeners: set[Callable[[], None]] = set()
        self._selecting_thread: int | None = None
        self._stopping = threading.RLock()
        self._selector = selectors.DefaultSelector()
        close_in_forks(self._selector)
        self._selector.register(failure_event, selectors.EVENT_READ)
        for sentinel in self.sentinels:
            self._selector.register(sentinel, selectors.EVENT_READ)

    def fileno(self) -> int:
        """The descriptor that is readable when :meth:`collect` has something to do."""
        return self._selector.fileno()

    @property
    def processes(self) -> list[RankProcess]:
        """The workers as multiprocessing has them; none of programs."""
        return [one.process for one in self.workers if isinstance(one, FunctionWorker)]

    @property
    def all_ended(self) -> bool:
        """No worker runs any more."""
        return not self.sentinels

    @property
    def failures(self) -> list[tuple[int, Outcome]]:
        """Position and outcome of the ranks that failed by themselves, first one first."""
        failed = [(at, one) for at, one in self.outcomes.items() if one.is_failure]
        return sorted(failed, key=lambda entry: entry[1].when_ns)

    @property
    def settled(self) -> bool:
        """Nothing more to wait for: all ended, or one failed."""
        return self.all_ended or self._has_failed

    @property
    def is_being_stopped(self) -> bool:
        """Somebody ends the workers, after a failure or because it was asked to."""
        return self._stopped_ns is not None and not self.closed

    @property
    def reports_are_complete(self) -> bool:
        """No rank that failed is still writing its report."""
        failed = [at for at in self.sentinels.values() if at in self.outcomes]
        return not any(self.workers[at].is_writing for at in failed)

    def wait(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        """Block until the condition holds or the (monotonic) deadline passes; say which.

        The end of the group's supervision counts as the former: then nothing more happens.
        """
        looked = False  # also with no time left, what has happened counts
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with self._changed:
                if self.closed or condition():
                    return True
                if looked and left == 0:
                    return False
                looked = True
                left = _LONGEST_WAIT if left is None else min(left, _LONGEST_WAIT)
                if not self._may_select():
                    self._changed.wait(left)
                    continue
            self._select(left)

    def collect(self, *, was_waiting: bool = False) -> None:
        """Take note of what happened, without waiting.

        Args:
            was_waiting: The caller blocked on :meth:`fileno` until now, so that whatever ended
                did so just now.
        """
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
        with self._stopping:
            self.collect()
            if self.closed or (self.all_ended and not self.failures):
                return
            if self._stopped_ns is None:
                self._stopped_ns = self._looked_ns = time.monotonic_ns()
            mark = self.mark if only_marked is None else only_marked
            stop_workers(self, grace, mark, interrupted=interrupted)

    def close(self) -> None:
        """Let go of what running workers needed; what they left stays readable."""
        with self._changed:
            if self.closed:
                return
            self.closed = True
            self._last_lines = {at: self.workers[at].describe_output() for at, _ in self.failures}
            if self._selecting_thread in (None, threading.get_ident()):
                self._close_descriptors()
            else:  # who selects is woken up, and closes them
                os.write(self._failure_event.fileno(), (1).to_bytes(8, "little"))
            self._changed.notify_all()
        self._tell_listeners()
        _running.discard(self)

    def _close_descriptors(self) -> None:
        self._selector.close()
        for worker in self.workers:
            worker.popen.close()
            worker.close_output()
        while self._resources:
            self._resources.pop().close()

    def _tell_listeners(self) -> None:
        for tell in list(self.listeners):
            tell()

    def _may_select(self) -> bool:
        """Claim the selector for this thread, unless another one has it.

        The claim is a thread's name rather than a lock: if an interrupt hits between claim and
        use, the same thread can still claim it again.
        """
        me = threading.get_ident()
        if self._selecting_thread not in (None, me):
            return False
        self._selecting_thread = me
        return True

    def _select(self, timeout: float | None) -> None:
        ready: list[int] = []
        waited = False
        try:
            ready = [key.fd for key, _ in self._selector.select(0)]
            if timeout != 0 and not ready:
                waited = True
                with woken_by_signals(self._selector):
                    ready = [key.fd for key, _ in self._selector.select(timeout)]
        finally:
            with self._changed:
                self._selecting_thread = None
                if self.closed:
                    self._close_descriptors()
                else:
                    self._note(ready, self._time_of_events(waited=waited))
                self._changed.notify_all()
            if ready:
                self._tell_listeners()

    def _time_of_events(self, *, waited: bool) -> int:
        """When the deaths happened that were just noticed, as far as that can be known.

        If we had to wait for them, it is now. If they were there already, nobody looked for a
        while, and they count as early as possible: a death without a report is more often the
        cause of another rank's exception than its consequence.
        """
        now = time.monotonic_ns()
        since, self._looked_ns = self._looked_ns, now
        return now if waited else since

    def _note(self, ready: list[int], now: int) -> None:
        for fd in ready:
            at = self.sentinels.get(fd)
            if at is not None:
                self._selector.unregister(fd)
                del self.sentinels[fd]
                self._judge(at, self.workers[at].reap(), now)
                self._take_remains(at)
        # A rank that only reported so far may have failed before one that already ended.
        if self._failure_event.fileno() in ready:
            os.read(self._failure_event.fileno(), 8)
            self._note_reports(now)

    def _note_reports(self, now: int) -> None:
        for at in self.sentinels.values():
            if at not in self.outcomes and self.workers[at].header().is_failure:
                self._judge(at, None, now)

    def _take_remains(self, at: int) -> None:
        self.remains[at] = self.workers[at].take_remains()
        self.workers[at].close()

    @contextmanager
    def open_reports(self) -> Iterator[dict[int, int]]:
        """Position to descriptor of the files in which running workers report.

        Copies, because the end of a worker closes its file.
        """
        copies: dict[int, int] = {}
        try:
            with self._changed:
                for at in self.sentinels.values():
                    worker = self.workers[at]
                    if isinstance(worker, FunctionWorker):
                        copies[at] = os.dup(worker.report.fileno())
            yield copies
        finally:
            for fd in copies.values():
                os.close(fd)

    def remains_of(self, at: int) -> Remains:
        """What a rank left; also of one that reported, but could not be reaped."""
        return self.remains.get(at) or self.workers[at].take_remains()

    def output_of(self, at: int) -> str:
        """A rank's last lines, for its error; also after the end of the group."""
        return self._last_lines.get(at) or self.workers[at].describe_output()

    def _judge(self, at: int, exit_code: int | None, now: int) -> None:
        outcome = self.workers[at].judge(
            exit_code,
            seen_ns=now,
            stopped_ns=self._stopped_ns,
            evidence=describe_change(self._oom_before, read_counts()) if exit_code == -9 else None,
        )
        self.outcomes[at] = outcome
        self._has_failed = self._has_failed or outcome.is_failure


def assemble(
    start: Callable[[str, Owned, list[Worker]], None],
    *,
    grace: float,
    resources: Sequence[Closable] = (),
) -> WorkerGroup:
    """Have workers started, watched over in case this process dies; all of them, or none.

    Args:
        start: Starts them; it gets the mark that each must carry, an eventfd that a failing
            one may write to, and a list for those that run.
        grace: Seconds that they get to end, if this process dies.
        resources: What they need while they run; closed with the group.

    Raises:
        Exception: Whatever ``start`` raised; those that it had started were killed.
    """
    close_forgotten()
    mark = new_mark()
    before = Moment()
    closables: list[Closable] = [*resources]
    workers: list[Worker] = []
    try:
        event = Owned(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        closables.append(event)
        # Before the first worker, so that there is no moment without it.
        closables.append(Guardian(mark, grace))
        start(mark, event, workers)
        group = WorkerGroup(workers, mark, event, before, closables)
        _running.add(group)
    except BaseException:
        kill_started(workers)
        for one in reversed(closables):
            one.close()
        # Last, because it needs descriptors, and there may have been too few of them.
        kill_marked(mark)
        raise
    return group


def report_unseen_failures() -> None:
    """At exit, after multiprocessing waited for the workers: a failure must not go unheard."""
    for group in list(_running):
        group.collect()
        for at, outcome in group.failures:
            if _ended_with_us(group.workers[at], outcome):
                continue
            text = group.remains_of(at).text.rstrip() or f"exit code {outcome.exit_code}"
            logger.error("rank %d failed, and nobody joined the group: %s", outcome.rank, text)
        group.close()


def _ended_with_us(worker: Worker, outcome: Outcome) -> bool:
    """No failure: at the exit of the parent, multiprocessing ends daemonic processes."""
    daemonic = isinstance(worker, FunctionWorker) and worker.process.daemon
    return daemonic and outcome.exit_code == -signal.SIGTERM


def close_forgotten() -> None:
    """Let go of groups whose context was dropped, and whose workers have ended since."""
    for group in list(_running):
        if group.supervisor is not None and group.supervisor() is None:
            group.collect()
            if group.all_ended:
                group.close()
