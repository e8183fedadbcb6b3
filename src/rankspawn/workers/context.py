"""``MultiprocessContext``: what a caller holds of a group of workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any

from rankspawn.option_values import read_seconds
from rankspawn.workers.group import WorkerGroup
from rankspawn.workers.process import RankProcess
from rankspawn.workers.queues import RankQueue
from rankspawn.workers.stacks import collect_stacks
from rankspawn.workers.supervisor import Policy, Spectator, Supervisor


class MultiprocessContext:
    """A group of workers, from start to end.

    Any thread may use it. Leaving it as a context manager stops what still runs.

    Attributes:
        return_queues: For each rank a queue with its result.
        error_queues: For each rank a queue with its traceback, empty if it did not fail.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = one = supervisor
        ranks = range(len(one.group.workers))
        self.return_queues = [
            RankQueue(one, at, one.has_result, one.take_result, failures=False) for at in ranks
        ]
        self.error_queues = [
            RankQueue(one, at, one.has_error, one.take_error, failures=True) for at in ranks
        ]

    @property
    def _group(self) -> WorkerGroup:
        return self._supervisor.group

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
        one = self._supervisor
        deadline = None if timeout is None else time.monotonic() + _seconds_to_wait(timeout)
        grace = self._grace(grace_period)
        with one.stopped_on_error(grace):
            one.wait(lambda: one.finished, deadline, grace)
        if one.error is not None:
            raise one.error
        return one.finished

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

    def results(self) -> list[Any]:
        """The results by rank; waits for the workers as :meth:`join` does."""
        self.join()
        return [self._supervisor.take_result(at) for at in range(len(self.processes))]

    def dump_stacks(self) -> dict[int, str]:
        """The Python stacks of all threads of each rank that runs; it does not disturb them."""
        self._group.collect()
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
        return self._join_async().__await__()

    async def _join_async(self) -> bool:
        from rankspawn.workers.async_join import wait_until_finished  # imports asyncio: 50 ms

        await wait_until_finished(self._supervisor)
        return self.join()


def _seconds_to_wait(timeout: float) -> float:
    """As multiprocessing takes it: a time that is over already means not to wait."""
    over = isinstance(timeout, (int, float)) and timeout < 0
    return 0.0 if over else read_seconds("timeout", timeout, positive=False)


def start_context(
    start: Callable[[int], WorkerGroup],
    policy: Policy,
    *,
    join: bool,
    spectators: Sequence[Spectator] = (),
) -> MultiprocessContext:
    """Start a group and, if asked, wait for it.

    Somebody is there to stop the workers before the first one runs, so that an interrupt at any
    moment leaves none behind.
    """
    supervisor = Supervisor(start, policy, spectators)
    with supervisor.stopped_on_error(policy.grace_period):
        supervisor.begin()
        context = MultiprocessContext(supervisor)
        if join:
            context.join()
        return context
