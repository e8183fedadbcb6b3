"""Supervising a group, and its successors if it is restarted, to one answer.

``MultiprocessContext`` is the face of this for callers; queues and event loops use it, too.
Any thread may call anything here.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from rankspawn.descriptors import stdio_occupied
from rankspawn.errors import ProcessException, SpawnTimeoutError
from rankspawn.workers.failures import OURS, Wording, first_of, make_error
from rankspawn.workers.group import WorkerGroup
from rankspawn.workers.interrupts import sigint_blocked
from rankspawn.workers.outcome import End
from rankspawn.workers.stacks import collect_stacks, describe_stacks


@dataclass(frozen=True, slots=True)
class Policy:
    """How a context supervises its group."""

    grace_period: float = 10.0
    timeout: float | None = None
    max_restarts: int = 0
    wording: Wording = OURS
    # False while one rank is debugged: then the others do not hear a Ctrl-C in the terminal.
    interrupts_reach_workers: bool = True


class Spectator(Protocol):
    """Shows people what the ranks do; see ``rankspawn.view``."""

    def begin(self, group: WorkerGroup, /) -> None:
        """This group was started."""

    def watched(self) -> AbstractContextManager[None]:
        """In here somebody waits for the ranks."""

    def finish(self) -> None:
        """The group was closed: show the rest."""


class Supervisor:
    """One job: the group that runs now, and the answer once there is one.

    Attributes:
        group: The workers that run now, or ran last.
        finished: The answer is known: ``error``, or None for success.
        deadline: When ``timeout`` is over, on the monotonic clock.
        awaiting: How many tasks await it; cancelling the last one stops the workers.
    """

    def __init__(
        self,
        start: Callable[[int], WorkerGroup],
        policy: Policy,
        spectators: Sequence[Spectator] = (),
    ) -> None:
        """Nothing runs before :meth:`begin`.

        Args:
            start: Starts a group; gets how many were started before.
            policy: How to supervise it.
            spectators: Who shows what the ranks do.
        """
        self.policy = policy
        self._spectators = spectators
        self.error: BaseException | None = None
        self.finished = False
        self.awaiting = 0
        timeout = policy.timeout
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self._start = start
        self._restarts = 0
        self._settling = threading.RLock()
        self._values: dict[int, Any] = {}

    def begin(self) -> None:
        """Start the group."""
        with sigint_blocked():
            self._start_group()

    def wait(self, condition: Callable[[], bool], deadline: float | None, grace: float) -> bool:
        """Wait for the condition, settling the group when there is something to settle."""
        with self.watched():
            while not condition():
                group = self.group
                limits = [one for one in (deadline, self.deadline) if one is not None]
                if not group.wait(partial(_either, condition, group), min(limits, default=None)):
                    if not self._is_overdue():
                        return False
                    self._settle(group, grace)
                elif not condition():
                    self._settle(group, grace)
            return True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """In here somebody waits for the ranks, and is shown what they do."""
        with ExitStack() as stack:
            for one in self._spectators:
                stack.enter_context(one.watched())
            yield

    def stop(self, grace: float, *, interrupted: bool = False) -> None:
        """End the group for good; see ``teardown`` for what ``interrupted`` means."""
        with self._settling:
            if not self.finished:
                reaches = interrupted and self.policy.interrupts_reach_workers
                self.group.stop(grace, interrupted=reaches)
                self._finish()

    @contextmanager
    def stopped_on_error(self, grace: float) -> Iterator[None]:
        """Whatever goes wrong in here (Ctrl-C, as a rule), the workers do not outlive it."""
        try:
            yield
        except BaseException as error:
            if hasattr(self, "group"):
                interrupted = isinstance(error, KeyboardInterrupt)
                try:
                    self.stop(grace, interrupted=interrupted)
                except KeyboardInterrupt:
                    # The second one has cut the grace period short, and is not told besides.
                    if not interrupted:
                        raise
            raise

    def settle_if_due(self, group: WorkerGroup) -> None:
        """End the group if it failed, ended or is out of time; for whoever watches it."""
        if group.settled or self._is_overdue():
            self._settle(group, self.policy.grace_period)

    def wait_for_rank(self, at: int, deadline: float | None, *, failures: bool) -> bool:
        """Wait for the end of one rank, for its queues."""
        is_final = partial(self._is_final, at, failures)
        grace = self.policy.grace_period
        with self.stopped_on_error(grace):
            return self.wait(is_final, deadline, grace)

    def has_ended(self, at: int, *, failures: bool) -> bool:
        """The rank's outcome is final, seen without waiting; for its queues."""
        if not self.finished:
            self.group.collect()
        return self._is_final(at, failures)

    def _is_final(self, at: int, failures: bool) -> bool:
        """With restarts allowed, an outcome counts only once the whole group is done.

        Who waits for a result must see the group torn down if it failed; who looks for errors
        can have this one as it is.
        """
        if self.finished or self.policy.max_restarts:
            return self.finished
        group = self.group
        return at in group.remains and (failures or not group.outcomes[at].is_failure)

    def has_result(self, at: int) -> bool:
        """The rank reported a result."""
        return at in self.group.outcomes and self.group.outcomes[at].had_returned

    def take_result(self, at: int) -> Any:
        """The rank's result, or its error raised."""
        if not self.has_result(at):
            raise self.error_of(at)
        if at not in self._values:
            try:
                self._values[at] = self.group.remains_of(at).result()
            except Exception as error:
                error.add_note(f"The result of rank {self.group.workers[at].rank} was being read.")
                raise
        return self._values[at]

    def has_error(self, at: int) -> bool:
        """The rank failed by itself."""
        return at in self.group.outcomes and self.group.outcomes[at].is_failure

    def take_error(self, at: int) -> str:
        """The rank's traceback, or the message if it has none."""
        if not self.has_error(at):
            raise queue.Empty
        text = self.group.remains_of(at).text
        return text if self.group.outcomes[at].end is End.RAISED else str(self.error_of(at))

    def _make_error(self, group: WorkerGroup, at: int) -> ProcessException:
        wording, tail = self.policy.wording, group.output_of(at)
        return make_error(group.outcomes[at], group.remains_of(at), wording, tail)

    def error_of(self, at: int) -> BaseException:
        """Its own error, or what it fell victim to."""
        if self.has_error(at) or self.error is None:
            return self._make_error(self.group, at)
        return self.error

    def _start_group(self) -> None:
        with stdio_occupied():
            self.group = self._start(self._restarts)
            self.group.supervisor = weakref.ref(self)
        try:
            for one in self._spectators:
                one.begin(self.group)
        except BaseException:  # no descriptors left, as a rule
            self.group.stop(0.0)
            self.group.close()
            raise

    def _settle(self, group: WorkerGroup, grace: float) -> None:
        """End the group after a failure, a timeout or success; start the next one if allowed."""
        with self._settling:
            if self.finished or group is not self.group:
                return
            stacks = None if group.settled else collect_stacks(group)
            ended = [group.workers[at].rank for at in sorted(group.outcomes)]
            group.stop(grace)
            if stacks is not None:
                self._finish(_out_of_time(self.policy.timeout, ended, stacks))
            elif group.failures and self._may_restart(group):
                self._restart()
            else:
                self._finish()

    def _restart(self) -> None:
        self.group.close()
        for one in self._spectators:
            one.finish()
        self._restarts += 1
        try:
            self.begin()
        except BaseException as error:
            self.error, self.finished = error, True
            raise

    def _may_restart(self, group: WorkerGroup) -> bool:
        """A failure before any rank reached the function does not heal by trying again."""
        reached = any(outcome.reached_function for outcome in group.outcomes.values())
        return reached and self._restarts < self.policy.max_restarts

    def _finish(self, error: BaseException | None = None) -> None:
        group = self.group
        bad = group.failures or [
            (at, one) for at, one in sorted(group.outcomes.items()) if one.end is End.STOPPED
        ]
        if error is None and bad:
            error = first_of(
                [self._make_error(group, at) for at, _ in bad],
                tries=self._restarts + 1,
            )
        self.error = error
        group.close()
        try:
            for one in self._spectators:
                one.finish()
        finally:  # also if that was interrupted
            self.finished = True

    def _is_overdue(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline


def _either(condition: Callable[[], bool], group: WorkerGroup) -> bool:
    return condition() or group.settled


def _out_of_time(
    timeout: float | None, ended: Sequence[int], stacks: dict[int, str]
) -> SpawnTimeoutError:
    text = f"the workers did not end within {timeout:g} s and were stopped.\n"
    if ended:  # what the others wait for, as a rule
        text += f"rank {', '.join(map(str, ended))} had returned before.\n"
    return SpawnTimeoutError(text + describe_stacks(stacks), stacks=stacks)
