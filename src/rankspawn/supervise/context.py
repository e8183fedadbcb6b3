"""What a caller holds of a group of ranks: its context, a process and two queues per rank."""

from __future__ import annotations

import os
import queue
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing import process
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rankspawn.caller import at_users_line
from rankspawn.cpython import adopt
from rankspawn.errors import ProcessException, ProcessExceptionGroup
from rankspawn.option_values import read_seconds
from rankspawn.supervise.supervisor import SupervisionPolicy, Supervisor

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import typing_extensions

    from rankspawn.supervise.group import Group, Spectator, StartedProcess
    from rankspawn.supervise.reports import Steps

    # Strict checkers refuse the bare name unless it has a default, as typing's own can from 3.13.

    T_co = typing_extensions.TypeVar("T_co", covariant=True, default=Any)
else:
    T_co = TypeVar("T_co", covariant=True)

# What repr() calls the states of ranks, in its order; all others run.
_ENDED_STATES = {
    "done": "returned",
    "stopped": "stopped",
    "exited": "exited",
    "failed": "failed",
}


class RankProcess(process.BaseProcess):
    """The process of one rank; ``is_alive``, ``exitcode``, ``join`` and the rest as usual."""

    # The started process.
    popen: StartedProcess
    _start_method = None  # multiprocessing then leaves a forked worker's default as it is

    def __init__(self, rank: int, daemon: bool) -> None:
        super().__init__(name=f"rank-{rank}", daemon=daemon)
        self.rank = rank

    @property
    def host(self) -> str:
        """The node that it runs on."""
        return getattr(self.popen, "host", "") or os.uname().nodename

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once it ended."""
        known = super().sentinel
        return self.popen.sentinel if known < 0 else known

    def has_started(self, popen: StartedProcess) -> None:
        """Take charge of the started process, in place of ``start()``."""
        self.popen = popen
        # Not start(): it forbids daemonic processes to have children, because these would be
        # orphaned; ours end with their parent. And it looks after all other children each time,
        # which is thousands of system calls for a large group.
        adopt(self, popen)


class RankQueue(Generic[T_co]):
    """One rank's result, or its error text: a queue of at most one item, as Paddle has them.

    The item is there once the rank ended. ``get`` waits for that; where nothing will ever come
    it raises instead of waiting for ever.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        index: int,
        has_item: Callable[[int], bool],
        take: Callable[[int], T_co],
        *,
        failures: bool,
    ) -> None:
        self._failures = failures
        self._supervisor = supervisor
        self._index = index
        self._has_item = has_item
        self._take = take
        self._taken = False

    @at_users_line
    def get(self, block: bool = True, timeout: float | None = None) -> T_co:
        """The item, once the rank ended.

        Raises:
            queue.Empty: It did not end in time, the item was taken before, or there is none.
            ProcessException: From a return queue, if the rank failed.
        """
        deadline = None if timeout is None else time.monotonic() + max(0.0, timeout)
        if not block:
            deadline = 0.0
        if self._taken:
            raise queue.Empty
        is_there = self._supervisor.wait_for_rank(self._index, deadline, failures=self._failures)
        if not is_there:
            raise queue.Empty
        item = self._take(self._index)
        self._taken = True
        return item

    @at_users_line
    def get_nowait(self) -> T_co:
        """The item, if it is there."""
        return self.get(block=False)

    def empty(self) -> bool:
        """True if there is no item now."""
        if self._taken or not self._supervisor.has_ended(self._index, failures=self._failures):
            return True
        return not self._has_item(self._index)

    def qsize(self) -> int:
        """1 or 0."""
        return int(not self.empty())


class MultiprocessContext(Generic[T_co]):
    """A group of workers, from start to end.

    Any thread may use it. Leaving it as a context manager stops what still runs.

    Attributes:
        return_queues: For each rank a queue with its result.
        error_queues: For each rank a queue with its traceback, empty if it did not fail.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = job = supervisor
        indices = range(len(job.group.processes))
        self.return_queues: list[RankQueue[T_co]] = [
            RankQueue(job, index, job.has_result, job.take_result, failures=False)
            for index in indices
        ]
        self.error_queues: list[RankQueue[str]] = [
            RankQueue(job, index, job.has_error, job.take_error, failures=True) for index in indices
        ]

    def __repr__(self) -> str:
        """As in ``<MultiprocessContext: 4 ranks, 3 running, 1 returned>``; waits for nobody."""
        group = self._group
        count = len(group.processes)
        states = Counter(
            _ENDED_STATES.get(group.state_of(index), "running") for index in range(count)
        )
        names = ("running", *_ENDED_STATES.values())
        parts = [f"{count} {'rank' if count == 1 else 'ranks'}"]
        parts += [f"{states[name]} {name}" for name in names if states[name]]
        return f"<{type(self).__name__}: {', '.join(parts)}>"

    @property
    def _group(self) -> Group:
        return self._supervisor.group

    @property
    def processes(self) -> list[RankProcess]:
        """The processes by rank; new ones after a restart."""
        return list(self._group.processes)

    @property
    def sentinels(self) -> dict[int, int]:
        """Sentinel to index of the processes that still run."""
        return self._group.sentinels

    @property
    def job_id(self) -> str | None:
        """The number of a detached job, for ``rankspawn.cluster.attach``; None of others."""
        return getattr(self._group, "job_id", None)

    def pids(self) -> list[int]:
        """The process ids by rank."""
        return [process.popen.pid for process in self._group.processes]

    def exitcodes(self) -> list[int | None]:
        """The exit codes by rank: minus the number for a signal, None while it runs."""
        return [process.exitcode for process in self.processes]

    @at_users_line
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
            ProcessExceptionGroup: With ``on_failure="continue"``, all failures at once.
        """
        job = self._supervisor
        deadline = None if timeout is None else time.monotonic() + _seconds_to_wait(timeout)
        grace = self._grace(grace_period)
        with job.stopped_on_error(grace):
            job.wait(lambda: job.finished, deadline, grace)
        if job.error is not None:
            raise job.error.with_traceback(None)  # not below the lines that raised it before
        return job.finished

    @at_users_line
    def terminate(self, grace_period: float | None = None) -> None:
        """Stop the workers that still run; nothing is restarted.

        Blocks until they are gone, at most for the grace period and a few seconds. A later
        ``join`` raises unless all had ended well.
        """
        self._supervisor.stop(self._grace(grace_period))

    def _grace(self, given: float | None) -> float:
        if given is None:
            return self._supervisor.policy.grace_period
        return read_seconds("grace_period", given, positive=False)

    @at_users_line
    def results(self) -> list[T_co]:
        """The results by rank; waits for the workers as :meth:`join` does."""
        self.join()
        indices = range(len(self._group.processes))
        return [self._supervisor.take_result(index) for index in indices]

    def reports(self) -> dict[int, Steps]:
        """Rank to what it said last with ``rankspawn.report``; waits for nobody.

        A rank that has said nothing is not in it. While nobody else looks (``on_report``,
        ``progress``), what is reported more often than once a second comes up to a second late.
        """
        from rankspawn.supervise.reports import reports_of

        return reports_of(self._group)

    @at_users_line
    def outcomes(self) -> list[T_co | Exception]:
        """Each rank's result, or its error in place of one; waits as :meth:`join` does.

        It raises nothing that a rank did. A rank that was stopped because of another one has an
        error that says so.
        """
        with suppress(ProcessException, ProcessExceptionGroup):  # they are among what is returned
            self.join()
        return [self._supervisor.answer_of(index) for index in range(len(self._group.processes))]

    @at_users_line
    def dump_stacks(self) -> dict[int, str]:
        """The Python stacks of all threads of each rank that runs; it does not disturb them."""
        self._group.collect()
        return self._group.stacks()

    def __enter__(self) -> Self:
        return self

    @at_users_line
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.terminate()

    def __await__(self) -> Generator[Any, None, bool]:
        """Join without blocking the event loop; cancelling it stops the workers."""
        return self._join_async().__await__()

    async def _join_async(self) -> bool:
        if _is_in_trio():
            from rankspawn.supervise.trio_join import wait_until_finished
        else:
            from rankspawn.supervise.async_join import wait_until_finished  # loads asyncio: 50 ms

        with at_users_line:
            await wait_until_finished(self._supervisor)
            return self.join()


def _is_in_trio() -> bool:
    """Whether it is trio that runs this task."""
    trio: Any = sys.modules.get("trio")
    try:
        return trio is not None and bool(trio.lowlevel.current_task())
    except RuntimeError:  # none of its tasks
        return False


def _seconds_to_wait(timeout: float) -> float:
    """As multiprocessing takes it: a time that is over already means not to wait."""
    over = isinstance(timeout, (int, float)) and timeout < 0
    return 0.0 if over else read_seconds("timeout", timeout, positive=False)


def start_context(
    start: Callable[[int], Group],
    policy: SupervisionPolicy,
    *,
    join: bool,
    spectators: Sequence[Spectator] = (),
    make: Callable[[Supervisor], MultiprocessContext[Any]] | None = None,
) -> MultiprocessContext[Any]:
    """Start a group and, if asked, wait for it.

    Somebody is there to stop the workers before the first one runs, so that an interrupt at any
    moment leaves none behind.

    Args:
        start: Starts a group; gets how many were started before.
        policy: How to supervise it.
        join: Wait for its end.
        spectators: Who shows what the ranks do.
        make: Makes the context, if that is to be of another class.
    """
    supervisor = Supervisor(start, policy, spectators)
    try:
        with supervisor.stopped_on_error(policy.grace_period):
            supervisor.begin()
            context = (make or MultiprocessContext[Any])(supervisor)
            if join:
                context.join()
        return context  # noqa: TRY300 - a signal may come until the last line
    except BaseException as error:  # also of a signal at the end of that block
        supervisor.stop_after(error, policy.grace_period)
        raise
