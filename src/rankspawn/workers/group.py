"""A running group: waiting for its ranks, and stopping them.

Everything that can happen is a readable descriptor in one selector: a worker's pidfd (it
ended), or the failure event (a worker reported a failure and may still take long to end). Any
number of threads may wait; one of them blocks on the selector, the others on it.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence

from rankspawn.workers.descriptors import Closable, Owned, above_stdio, close_in_forks
from rankspawn.workers.outcome import Outcome, Remains, classify, read_header, take_remains
from rankspawn.workers.start import Worker
from rankspawn.workers.teardown import stop_workers


class WorkerGroup:
    """The workers of one start, and the resources they need while they run."""

    def __init__(
        self, workers: Sequence[Worker], failure_event: Owned, resources: Sequence[Closable] = ()
    ) -> None:
        self.workers = list(workers)
        self.processes = [worker.process for worker in workers]
        # Sentinel to position; shrinks as workers end.
        self.sentinels = {worker.process.sentinel: at for at, worker in enumerate(workers)}
        # Position to outcome; grows as they end, or report a failure.
        self.outcomes: dict[int, Outcome] = {}
        self.remains: dict[int, Remains] = {}
        self._failure_event = failure_event
        self._resources = list(resources)
        self._stopped_ns: int | None = None
        self._changed = threading.Condition()
        self._selecting_thread: int | None = None
        self._stopping = threading.RLock()
        self._selector = selectors.DefaultSelector()
        close_in_forks(self._selector)
        self._selector.register(failure_event, selectors.EVENT_READ)
        for sentinel in self.sentinels:
            self._selector.register(sentinel, selectors.EVENT_READ)

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._failure_event.closed

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
        return self.all_ended or any(one.is_failure for one in self.outcomes.values())

    def wait(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        """Block until the condition holds or the (monotonic) deadline passes; say which."""
        looked = False  # also with no time left, what has happened counts
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with self._changed:
                if condition():
                    return True
                if looked and left == 0:
                    return False
                looked = True
                if not self._may_select():
                    self._changed.wait(left)
                    continue
            self._select(left)

    def collect(self) -> None:
        """Take note of what happened, without waiting."""
        with self._changed:
            free = self._may_select()
        if free:
            self._select(0)

    def stop(self, grace: float) -> None:
        """End every worker that still runs, and what it started; see ``teardown``.

        An exception (a second Ctrl-C) during the grace period cuts it short.
        """
        with self._stopping:
            self.collect()
            if self.all_ended:
                return
            if self._stopped_ns is None:
                self._stopped_ns = time.monotonic_ns()
            stop_workers(self, grace)

    def close(self) -> None:
        """Let go of what running workers needed; what they left stays readable."""
        self._selector.close()
        self._failure_event.close()
        for process in self.processes:
            process.popen.close()
        while self._resources:
            self._resources.pop().close()

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
        try:
            ready = [key.fd for key, _ in self._selector.select(timeout)]
        finally:
            with self._changed:
                self._selecting_thread = None
                self._note(ready)
                self._changed.notify_all()

    def _note(self, ready: list[int]) -> None:
        now = time.monotonic_ns()
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
        return process.exitcode

    def _take_remains(self, at: int) -> None:
        outcome = self.workers[at].outcome
        self.remains[at] = take_remains(outcome.fileno())
        outcome.close()

    def log_of(self, at: int) -> str | None:
        """Where a rank's output is kept, if it is."""
        return self.workers[at].log

    def _judge(self, at: int, exit_code: int | None, now: int) -> None:
        worker = self.workers[at]
        self.outcomes[at] = classify(
            worker.rank,
            worker.process.popen.pid,
            read_header(worker.outcome.fileno()),
            exit_code,
            seen_ns=now,
            stopped_ns=self._stopped_ns,
        )


def make_failure_event() -> Owned:
    """The descriptor through which workers wake the parent."""
    flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
    return Owned(above_stdio(os.eventfd(0, flags)))
