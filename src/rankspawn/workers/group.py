"""A running group: waiting for its ranks, and stopping them.

Everything that can happen is a readable descriptor in one selector: a worker's pidfd (it
ended), or the failure event (a worker reported a failure and may still take long to end). Any
number of threads may wait; one of them blocks on the selector, the others on it.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import util

from rankspawn.descriptors import Closable, Owned, close_in_forks
from rankspawn.workers.guardian import Guardian
from rankspawn.workers.marker import VARIABLE, kill_marked, new_mark, variable_value
from rankspawn.workers.oom import describe_change, read_counts
from rankspawn.workers.orders import StartSettings, Task
from rankspawn.workers.outcome import Outcome, Remains, classify, read_header, take_remains
from rankspawn.workers.report import RAISED
from rankspawn.workers.start import Worker, kill_started, start_workers
from rankspawn.workers.teardown import stop_workers

logger = logging.getLogger(__name__)

# Groups with running workers. They live as long as those, also if nobody keeps the context:
# with a group its lifeline would be closed, and the guardian would take that for our death.
_running: set[WorkerGroup] = set()
os.register_at_fork(after_in_child=_running.clear)
# The system's waits cannot take more than 24 days at once; a day is as good as for ever.
_LONGEST_WAIT = 86_400.0
# A look that takes no longer found what it found waiting.
_AT_ONCE_NS = 200_000


class WorkerGroup:
    """The workers of one start, and the resources they need while they run."""

    def __init__(
        self,
        workers: Sequence[Worker],
        mark: str,
        failure_event: Owned,
        resources: Sequence[Closable] = (),
    ) -> None:
        self.mark = mark
        # Whose job it is to close the group; it may be dropped while workers run.
        self.supervisor: weakref.ref[object] | None = None
        self._oom_before = read_counts()
        self.workers = list(workers)
        self.processes = [worker.process for worker in workers]
        # Sentinel to position; shrinks as workers end.
        self.sentinels = {worker.process.sentinel: at for at, worker in enumerate(workers)}
        # Position to outcome; grows as they end, or report a failure.
        self.outcomes: dict[int, Outcome] = {}
        self._has_failed = False  # one of them is a failure
        self.remains: dict[int, Remains] = {}
        self._failure_event = failure_event
        self._resources = list(resources)
        self._stopped_ns: int | None = None
        self._looked_ns = time.monotonic_ns()
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
    def reports_are_complete(self) -> bool:
        """No rank that failed is still writing its report."""
        failed = [at for at in self.sentinels.values() if at in self.outcomes]
        headers = [read_header(self.workers[at].outcome.fileno()) for at in failed]
        return all(one.is_complete or one.kind != RAISED for one in headers)

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

    def collect(self) -> None:
        """Take note of what happened, without waiting."""
        with self._changed:
            free = not self.closed and self._may_select()
        if free:
            self._select(0)

    def stop(self, grace: float, *, interrupted: bool = False) -> None:
        """End every worker that still runs, and what the workers started; see ``teardown``.

        After a success there is nothing to stop: what such workers started is left alone. An
        exception (a second Ctrl-C) during the grace period cuts it short.
        """
        with self._stopping:
            self.collect()
            if self.closed or (self.all_ended and not self.failures):
                return
            if self._stopped_ns is None:
                self._stopped_ns = self._looked_ns = time.monotonic_ns()
            stop_workers(self, grace, interrupted=interrupted)

    def close(self) -> None:
        """Let go of what running workers needed; what they left stays readable."""
        with self._changed:
            if self.closed:
                return
            self.closed = True
            if self._selecting_thread in (None, threading.get_ident()):
                self._close_descriptors()
            else:  # who selects is woken up, and closes them
                os.write(self._failure_event.fileno(), (1).to_bytes(8, "little"))
            self._changed.notify_all()
        self._tell_listeners()
        _running.discard(self)

    def _close_descriptors(self) -> None:
        self._selector.close()
        for process in self.processes:
            process.popen.close()
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
        begun = time.monotonic_ns()
        try:
            ready = [key.fd for key, _ in self._selector.select(timeout)]
        finally:
            with self._changed:
                self._selecting_thread = None
                if self.closed:
                    self._close_descriptors()
                else:
                    self._note(ready, self._time_of_events(begun))
                self._changed.notify_all()
            if ready:
                self._tell_listeners()

    def _time_of_events(self, begun: int) -> int:
        """When the deaths happened that were just noticed, as far as that can be known.

        If we had to wait for them, it is now. If they were there already, nobody looked for a
        while, and they count as early as possible: a death without a report is more often the
        cause of another rank's exception than its consequence.
        """
        now = time.monotonic_ns()
        since, self._looked_ns = self._looked_ns, now
        return now if now - begun > _AT_ONCE_NS else since

    def _note(self, ready: list[int], now: int) -> None:
        for fd in ready:
            at = self.sentinels.get(fd)
            if at is not None:
                self._selector.unregister(fd)
                del self.sentinels[fd]
                self._judge(at, self._reap(at), now)
                self._take_remains(at)
        # A rank that only reported so far may have failed before one that already ended.
        if self._failure_event.fileno() in ready:
            os.read(self._failure_event.fileno(), 8)
            self._note_reports(now)

    def _note_reports(self, now: int) -> None:
        for at in self.sentinels.values():
            header = read_header(self.workers[at].outcome.fileno())
            if at not in self.outcomes and header.is_failure:
                self._judge(at, None, now)

    def _reap(self, at: int) -> int | None:
        process = self.processes[at]
        process.join()
        # Without a status, the worker's report is all there is.
        return None if process.popen.status_lost else process.exitcode

    def _take_remains(self, at: int) -> None:
        outcome = self.workers[at].outcome
        self.remains[at] = take_remains(outcome.fileno())
        outcome.close()

    @contextmanager
    def open_reports(self) -> Iterator[dict[int, int]]:
        """Position to descriptor of the files in which running workers report.

        Copies, because the end of a worker closes its file.
        """
        copies: dict[int, int] = {}
        try:
            with self._changed:
                for at in self.sentinels.values():
                    copies[at] = os.dup(self.workers[at].outcome.fileno())
            yield copies
        finally:
            for fd in copies.values():
                os.close(fd)

    def remains_of(self, at: int) -> Remains:
        """What a rank left; also of one that reported, but could not be reaped."""
        return self.remains.get(at) or take_remains(self.workers[at].outcome.fileno())

    def log_of(self, at: int) -> str | None:
        """Where a rank's output is kept, if it is."""
        return self.workers[at].log

    def _judge(self, at: int, exit_code: int | None, now: int) -> None:
        worker = self.workers[at]
        outcome = classify(
            worker.rank,
            worker.process.popen.pid,
            read_header(worker.outcome.fileno()),
            exit_code,
            seen_ns=now,
            stopped_ns=self._stopped_ns,
            evidence=describe_change(self._oom_before, read_counts()) if exit_code == -9 else None,
        )
        self.outcomes[at] = outcome
        self._has_failed = self._has_failed or outcome.is_failure


def start_group(
    task: Task,
    environments: Sequence[Mapping[str, str | None]],
    settings: StartSettings,
    *,
    grace: float,
    resources: Sequence[Closable] = (),
    first_rank: int = 0,
    is_restart: bool = False,
) -> WorkerGroup:
    """Start one worker per environment, watched over in case this process dies.

    Args:
        task: What they run.
        environments: For each rank the changes to this process's environment; None removes.
        settings: How to start.
        grace: Seconds that they get to end, if this process dies.
        resources: What they need while they run; closed with the group.
        first_rank: The rank of the first one; others follow.
        is_restart: Then logs go on where they ended.

    Raises:
        TypeError: The task cannot be sent to a worker; nothing was started.
        OSError: A process could not be started; those before it were killed.
    """
    _close_forgotten()
    mark = new_mark()
    closables: list[Closable] = [*resources]
    workers: list[Worker] = []
    try:
        event = Owned(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        closables.append(event)
        # Before the first worker, so that there is no moment without it.
        closables.append(Guardian(mark, grace))
        marked = [{**changes, VARIABLE: variable_value(mark)} for changes in environments]
        start_workers(
            task,
            marked,
            settings,
            event,
            mark,
            workers,
            first_rank=first_rank,
            is_restart=is_restart,
        )
        group = WorkerGroup(workers, mark, event, closables)
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
            text = group.remains_of(at).text.rstrip() or f"exit code {outcome.exit_code}"
            logger.error("rank %d failed, and nobody joined the group: %s", outcome.rank, text)
        group.close()


# Priorities below 0 come after the wait for the workers.
util.Finalize(None, report_unseen_failures, exitpriority=-10)


def _close_forgotten() -> None:
    """Let go of groups whose context was dropped, and whose workers have ended since."""
    for group in list(_running):
        if group.supervisor is not None and group.supervisor() is None:
            group.collect()
            if group.all_ended:
                group.close()
