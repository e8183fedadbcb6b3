"""``MultiprocessContext``: what a caller holds of a group of workers."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from rankspawn.descriptors import stdio_occupied
from rankspawn.errors import ProcessException, SpawnTimeoutError
from rankspawn.workers.failures import OURS, Wording, first_of, make_error
from rankspawn.workers.group import WorkerGroup
from rankspawn.workers.outcome import End
from rankspawn.workers.process import RankProcess
from rankspawn.workers.queues import RankQueue
from rankspawn.workers.stacks import collect_stacks, describe_stacks
from rankspawn.workers.start import sigint_blocked


@dataclass(frozen=True, slots=True)
class Policy:
    """How a context supervises its group."""

    grace_period: float = 10.0
    timeout: float | None = None
    max_restarts: int = 0
    wording: Wording = OURS


class MultiprocessContext:
    """A group of workers, from start to end.

    Any thread may use it. Leaving it as a context manager stops what still runs.

    Attributes:
        return_queues: For each rank a queue with its result.
        error_queues: For each rank a queue with its traceback, empty if it did not fail.
    """

    def __init__(self, start: Callable[[int], WorkerGroup], policy: Policy) -> None:
        """Start the group.

        Args:
            start: Starts a group; gets how many were started before.
            policy: How to supervise it.
        """
        self._start = start
        self._policy = policy
        self._restarts = 0
        self._settling = threading.RLock()
        self._error: BaseException | None = None
        self._finished = False
        self._values: dict[int, Any] = {}
        # How many tasks await this context; cancelling the last one stops the workers.
        self.awaiting = 0
        timeout = policy.timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        with self._stopped_on_error(policy.grace_period), sigint_blocked():
            self._start_group()
            ranks = range(len(self._group.workers))
            self.return_queues = [
                RankQueue(self, at, self._has_result, self._take_result) for at in ranks
            ]
            self.error_queues = [
                RankQueue(self, at, self._has_error, self._take_error, failures=True)
                for at in ranks
            ]

    @property
    def processes(self) -> list[RankProcess]:
        """The processes by rank; new ones after a restart."""
        return self._group.processes

    @property
    def sentinels(self) -> dict[int, int]:
        """Sentinel to rank, of those that still run."""
        return self._group.sentinels

    def pids(self) -> list[int]:
        """The process ids by rank."""
        return [process.popen.pid for process in self.processes]

    def exitcodes(self) -> list[int | None]:
        """The exit codes by rank: minus the number for a signal, None while it runs."""
        return [process.exitcode for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for the workers, and stop all of them if one fails.

        It may be called again after it returned or raised, and answers the same. Ctrl-C while
        it waits stops the workers, too.

        Args:
            timeout: Seconds to wait; ``None`` waits for as long as they run.
            grace_period: Seconds between SIGTERM and SIGKILL, in place of the option's.

        Returns:
            True once every worker ended well, False on timeout (they run on).

        Raises:
            ProcessRaisedException: A worker's function raised; its exception is the cause.
            ProcessExitedException: A worker died without reporting, e.g. by a signal.
            SpawnTimeoutError: The time for the whole run is over.
        """
        deadline = None if timeout is None else time.monotonic() + max(0.0, timeout)
        grace = self._policy.grace_period if grace_period is None else grace_period
        with self._stopped_on_error(grace):
            self._wait(lambda: self._finished, deadline, grace)
        if not self._finished:
            return False
        if self._error is not None:
            raise self._error
        return True

    def terminate(self, grace_period: float | None = None) -> None:
        """Stop the workers that still run; nothing is restarted.

        Blocks until they are gone, at most for the grace period and a few seconds. A later
        ``join`` raises unless all had ended well.
        """
        self._stop(self._policy.grace_period if grace_period is None else grace_period)

    def results(self) -> list[Any]:
        """The results by rank; waits for the workers as :meth:`join` does."""
        self.join()
        return [self._take_result(at) for at in range(len(self.processes))]

    def dump_stacks(self) -> dict[int, str]:
        """The Python stacks of all threads of each rank that runs; it does not disturb them."""
        return collect_stacks(self._group)

    def __enter__(self) -> MultiprocessContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.terminate()

    def __await__(self) -> Generator[Any, None, bool]:
        """Join without blocking the event loop; cancelling it stops the workers."""
        from rankspawn.workers.async_join import join_async  # imports asyncio: 50 ms

        return join_async(self).__await__()

    def _wait(self, condition: Callable[[], bool], deadline: float | None, grace: float) -> bool:
        """Wait for the condition, settling the group when there is something to settle."""
        while not condition():
            group = self._group
            limits = [one for one in (deadline, self._deadline) if one is not None]
            if not group.wait(partial(_either, condition, group), min(limits, default=None)):
                if not self._is_overdue():
                    return False
                self._settle(group, grace)
            elif not condition():
                self._settle(group, grace)
        return True

    def _start_group(self) -> None:
        with stdio_occupied():
            self._group = self._start(self._restarts)
            self._group.supervisor = weakref.ref(self)

    @contextmanager
    def _stopped_on_error(self, grace: float) -> Iterator[None]:
        """Whatever goes wrong in here (Ctrl-C, as a rule), the workers do not outlive it."""
        try:
            yield
        except BaseException as error:
            if hasattr(self, "_group"):
                self._stop(grace, interrupted=isinstance(error, KeyboardInterrupt))
            raise

    def _stop(self, grace: float, *, interrupted: bool = False) -> None:
        with self._settling:
            if not self._finished:
                self._group.stop(grace, interrupted=interrupted)
                self._finish()

    def _settle(self, group: WorkerGroup, grace: float) -> None:
        """End the group after a failure, a timeout or success; start the next one if allowed."""
        with self._settling:
            if self._finished or group is not self._group:
                return
            stacks = None if group.settled else collect_stacks(group)
            group.stop(grace)
            if stacks is not None:
                self._finish(_out_of_time(self._policy.timeout, stacks))
            elif group.failures and self._may_restart(group):
                self._restart()
            else:
                self._finish()

    def _restart(self) -> None:
        self._group.close()
        self._restarts += 1
        try:
            with sigint_blocked():
                self._start_group()
        except BaseException as error:
            self._error, self._finished = error, True
            raise

    def _may_restart(self, group: WorkerGroup) -> bool:
        """A failure before any rank reached the function does not heal by trying again."""
        reached = any(outcome.reached_function for outcome in group.outcomes.values())
        return reached and self._restarts < self._policy.max_restarts

    def _finish(self, error: BaseException | None = None) -> None:
        group = self._group
        bad = group.failures or [
            (at, one) for at, one in sorted(group.outcomes.items()) if one.end is End.STOPPED
        ]
        if error is None and bad:
            error = first_of(
                [self._make_error(group, at) for at, _ in bad],
                tries=self._restarts + 1,
            )
        self._error = error
        self._finished = True
        group.close()

    @property
    def finished(self) -> bool:
        """The answer of ``join`` is known."""
        return self._finished

    @property
    def group(self) -> WorkerGroup:
        """The workers that run now, or ran last."""
        return self._group

    @property
    def deadline(self) -> float | None:
        """When ``timeout`` is over, on the monotonic clock."""
        return self._deadline

    def settle_if_due(self, group: WorkerGroup) -> None:
        """End the group if it failed, ended or is out of time; for whoever watches it."""
        if group.settled or self._is_overdue():
            self._settle(group, self._policy.grace_period)

    def _is_overdue(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def wait_for_rank(self, at: int, deadline: float | None, *, failures: bool) -> bool:
        """Wait for the end of one rank, for its queues."""
        is_final = partial(self._is_final, at, failures)
        grace = self._policy.grace_period
        with self._stopped_on_error(grace):
            return self._wait(is_final, deadline, grace)

    def has_ended(self, at: int, *, failures: bool) -> bool:
        """The rank's outcome is final, seen without waiting; for its queues."""
        if not self._finished:
            self._group.collect()
        return self._is_final(at, failures)

    def _is_final(self, at: int, failures: bool) -> bool:
        """With restarts allowed, an outcome counts only once the whole group is done.

        Who waits for a result must see the group torn down if it failed; who looks for errors
        can have this one as it is.
        """
        if self._finished or self._policy.max_restarts:
            return self._finished
        group = self._group
        return at in group.remains and (failures or not group.outcomes[at].is_failure)

    def _has_result(self, at: int) -> bool:
        return at in self._group.outcomes and self._group.outcomes[at].had_returned

    def _take_result(self, at: int) -> Any:
        if not self._has_result(at):
            raise self._error_of(at)
        if at not in self._values:
            try:
                self._values[at] = self._group.remains_of(at).result()
            except Exception as error:
                error.add_note(f"The result of rank {self._group.workers[at].rank} was being read.")
                raise
        return self._values[at]

    def _has_error(self, at: int) -> bool:
        return at in self._group.outcomes and self._group.outcomes[at].is_failure

    def _take_error(self, at: int) -> str:
        if not self._has_error(at):
            raise queue.Empty
        text = self._group.remains_of(at).text
        return text if self._group.outcomes[at].end is End.RAISED else str(self._error_of(at))

    def _make_error(self, group: WorkerGroup, at: int) -> ProcessException:
        wording, log = self._policy.wording, group.log_of(at)
        return make_error(group.outcomes[at], group.remains_of(at), wording, log)

    def _error_of(self, at: int) -> BaseException:
        """Its own error, or what it fell victim to."""
        if self._has_error(at) or self._error is None:
            return self._make_error(self._group, at)
        return self._error


def _either(condition: Callable[[], bool], group: WorkerGroup) -> bool:
    return condition() or group.settled


def _out_of_time(timeout: float | None, stacks: dict[int, str]) -> SpawnTimeoutError:
    text = f"the workers did not end within {timeout:g} s and were stopped.\n"
    return SpawnTimeoutError(text + describe_stacks(stacks), stacks=stacks)
