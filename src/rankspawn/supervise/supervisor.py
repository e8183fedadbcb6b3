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
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from rankspawn.descriptors import stdio_occupied
from rankspawn.handlers import handlers_held, handlers_let_through, let_handlers_through
from rankspawn.interrupts import patiently, sigint_blocked
from rankspawn.supervise.failures import (
    describe_survivors,
    first_of,
    make_error,
    make_group_error,
    make_loss_error,
    make_timeout_error,
)
from rankspawn.supervise.outcome import End, failures_in
from rankspawn.supervise.policy import SupervisionPolicy as SupervisionPolicy
from rankspawn.telling import get_logger
from rankspawn.terminating import TerminatedError, die, ends_ranks, sigterm_passed_on

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import logging

    from rankspawn.errors import ProcessException
    from rankspawn.supervise.group import Group, Spectator
    from rankspawn.supervise.listening import Listener

logger: logging.Logger = get_logger(__name__)


class Supervisor:
    """One job: the group that runs now, and the answer once there is one.

    Attributes:
        group: The workers that run now, or ran last.
        finished: The answer is known: ``error``, or None for success.
        deadline: When ``timeout`` is over, on the monotonic clock.
        is_stopping: The group is being ended, after a failure or because it was asked to.
        awaiting: How many tasks await it; cancelling the last one stops the workers.
        patience: Seconds that the others get to end by themselves if a rank fails.
    """

    group: Group

    def __init__(
        self,
        start: Callable[[int], Group],
        policy: SupervisionPolicy,
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
        self.finished: bool = False
        self.is_stopping: bool = False
        self.awaiting = 0
        self.patience: float = 0.0
        timeout = policy.timeout
        self.deadline: float | None = None if timeout is None else time.monotonic() + timeout
        self._start = start
        self._restarts = 0
        self._concluding = threading.RLock()
        self._values: dict[int, Any] = {}
        self.stacks: dict[int, str] = {}  # where the others were when a rank failed
        self._listener: Listener | None = None
        if (policy.on_report, policy.stall_timeout) != (None, None):
            from rankspawn.supervise.listening import Listener

            self._listener = Listener(policy)

    def begin(self) -> None:
        """Start the group."""
        with sigint_blocked():
            self._start_group()

    def wait(self, condition: Callable[[], bool], deadline: float | None, grace: float) -> bool:
        """Wait for the condition, concluding the group once it failed, ended or is overdue."""
        with self.watched():
            while not condition():
                group = self.group
                self.listen(group)
                limits = [limit for limit in (deadline, self.next_due) if limit is not None]
                news = partial(self._is_news, condition, group)
                if not group.wait(news, min(limits, default=None)):
                    if self._is_overdue():
                        self._conclude(group, grace)
                    elif deadline is not None and time.monotonic() >= deadline:
                        return False
                elif not condition():
                    self._conclude(group, grace)
            if self._listener is not None and self.finished:
                self._listener.look_last(self.group, has_failed=self.error is not None)
            return True

    def listen(self, group: Group) -> None:
        """Look at what ranks report, if somebody asked for that and it is time to."""
        if self._listener is not None:
            self._listener.look(group)

    @property
    def next_due(self) -> float | None:
        """When whoever waits has something to do in any case, on the monotonic clock."""
        dues = (self.deadline, None if self._listener is None else self._listener.due)
        return min((due for due in dues if due is not None), default=None)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """In here somebody waits for the ranks, and is shown what they do."""
        with ExitStack() as stack:
            for spectator in self._spectators:
                stack.enter_context(spectator.watched())
            yield

    def stop(self, grace: float, *, interrupted: bool = False) -> None:
        """End the group for good; see ``Group.stop`` for what ``interrupted`` means."""
        with patiently(self._concluding):
            if not self.finished:
                self.is_stopping = True
                reaches = interrupted and self.policy.interrupts_reach_workers
                try:
                    self.group.stop(grace, interrupted=reaches)
                finally:  # a second Ctrl-C has cut the grace period short: it is over, too
                    self._finish()

    @contextmanager
    def stopped_on_error(self, grace: float) -> Iterator[None]:
        """Whatever goes wrong in here (Ctrl-C, as a rule), the workers do not outlive it.

        Signals are handled in its waits only, so that nothing is interrupted half-way.
        """
        with handlers_held(), sigterm_passed_on():
            try:
                yield
                let_handlers_through()  # what came after the last wait
            except BaseException as error:
                try:
                    self.stop_after(error, grace)
                except TerminatedError:  # in the grace period, which it has cut short
                    die()
                if isinstance(error, TerminatedError):
                    die()
                raise

    def stop_after(self, error: BaseException, grace: float) -> None:
        """End the group that was started, if there is one and it has not ended yet."""
        with handlers_held():
            if hasattr(self, "group") and ends_ranks(error, self.group):
                interrupted = isinstance(error, KeyboardInterrupt)
                if isinstance(error, TerminatedError) and not self.group.all_ended:
                    logger.warning(
                        "SIGTERM: passed on to %d workers, which have %g s to end",
                        len(self.group.sentinels),
                        grace,
                    )
                try:
                    self.stop(grace, interrupted=interrupted)
                except KeyboardInterrupt:
                    # The second one has cut the grace period short, and is not told besides.
                    if not interrupted:
                        raise

    def is_due(self, group: Group) -> bool:
        """The group has to be concluded: it ended, a rank failed, or the time is over."""
        return self._is_decided(group) or self._is_overdue()

    def conclude_if_due(self, group: Group) -> None:
        """Conclude the group if it is time to; for whoever watches it."""
        if self.is_due(group):
            self._conclude(group, self.policy.grace_period)

    def wait_for_rank(self, index: int, deadline: float | None, *, failures: bool) -> bool:
        """Wait for the end of one rank, for its queues."""
        is_final = partial(self._is_final, index, failures)
        grace = self.policy.grace_period
        with self.stopped_on_error(grace):
            return self.wait(is_final, deadline, grace)

    def has_ended(self, index: int, *, failures: bool) -> bool:
        """The rank's outcome is final, seen without waiting; for its queues."""
        if not self.finished:
            self.group.collect()
        return self._is_final(index, failures)

    def _is_final(self, index: int, failures: bool) -> bool:
        """With restarts allowed, an outcome counts only once the whole group is done.

        Who waits for a result must see the group torn down if it failed; who looks for errors
        can have this one as it is.
        """
        if self.finished or self.policy.max_restarts:
            return self.finished
        group = self.group
        return group.has_ended(index) and (failures or not group.outcomes[index].is_failure)

    def has_result(self, index: int) -> bool:
        """The rank reported a result."""
        return index in self.group.outcomes and self.group.outcomes[index].had_returned

    def take_result(self, index: int) -> Any:
        """The rank's result, or its error raised."""
        if not self.has_result(index):
            raise self.error_of(index).with_traceback(None)  # it may have been raised before
        if index not in self._values:
            try:
                self._values[index] = self.group.report_of(index).result()
            except Exception as error:
                rank = self.group.outcomes[index].rank
                error.add_note(f"The result of rank {rank} was being read.")
                raise
        return self._values[index]

    def has_error(self, index: int) -> bool:
        """The rank failed by itself."""
        return index in self.group.outcomes and self.group.outcomes[index].is_failure

    def take_error(self, index: int) -> str:
        """The rank's traceback, or the message if it has none."""
        if not self.has_error(index):
            raise queue.Empty
        text = self.group.report_of(index).text
        return text if self.group.outcomes[index].end is End.RAISED else str(self.error_of(index))

    def _make_error(self, group: Group, index: int) -> ProcessException:
        wording, tail = self.policy.wording, group.last_lines(index)
        if self.stacks:
            tail = describe_survivors(self.stacks) + tail
        return make_error(group.outcomes[index], group.report_of(index), wording, tail)

    def error_of(self, index: int) -> BaseException:
        """Its own error, or what it fell victim to."""
        if self.has_error(index) or self.error is None:
            return self._make_error(self.group, index)
        return self.error

    def answer_of(self, index: int) -> Any:
        """The rank's result, or else what is raised because there is none."""
        try:
            if self.has_result(index):
                return self.take_result(index)
        except Exception as error:  # of classes whose pickles cannot be read here
            return error
        if index in self.group.outcomes and not isinstance(self.error, TimeoutError):
            return self._make_error(self.group, index)
        return self.error_of(index)

    def _start_group(self) -> None:
        with stdio_occupied():
            self.group: Group = self._start(self._restarts)
            # What it took until an engine's queue let it begin is no part of the run.
            if self.deadline is not None:
                self.deadline += self.group.queued
            self.group.owner = weakref.ref(self)
            self.group.deadline = self.deadline
        self.is_stopping = False
        try:
            for spectator in self._spectators:
                spectator.begin(self.group)
        except BaseException:  # no descriptors left, as a rule
            self.group.stop(0.0)
            self.group.close()
            raise

    def _conclude(self, group: Group, grace: float) -> None:
        """End the group after a failure, a timeout or success; start the next one if allowed."""
        with patiently(self._concluding):
            if self.finished or group is not self.group:
                return
            is_decided = self._is_decided(group)
            stacks = None if is_decided else group.stacks()
            if is_decided and not group.all_ended:
                from rankspawn.supervise.survivors import look_at

                self.stacks = look_at(group, self.policy, is_last=not self._may_restart(group))
            if stacks is None and self.patience:
                group.wait(lambda: group.all_ended, time.monotonic() + self.patience)
            ended = [outcome.rank for _, outcome in sorted(group.outcomes.items())]
            self.is_stopping = True
            if self.policy.before_stop is not None:
                self.policy.before_stop(group)
            group.stop(grace)
            if stacks is not None:
                stalled = "" if self._listener is None else self._listener.describe_stall()
                self._finish(make_timeout_error(self.policy.timeout, ended, stacks, stalled))
            elif group.has_failed and self._may_restart(group):
                self._restart()
            else:
                self._finish()

    def _restart(self) -> None:
        self.group.close()
        with handlers_let_through():  # as in _finish()
            for spectator in self._spectators:
                spectator.finish()
        self._restarts += 1
        ended = self.group
        try:
            self.begin()
        except BaseException as error:
            if self.group is ended:  # else it was started, and whoever waits for it stops it
                self.error, self.finished = error, True
            raise

    def _may_restart(self, group: Group) -> bool:
        """A failure before any rank reached the function does not heal by trying again."""
        if self.finished:  # a handler of a signal has stopped it meanwhile, for good
            return False
        reached = any(outcome.reached_function for outcome in group.outcomes.values())
        return reached and self._restarts < self.policy.max_restarts

    def _finish(self, error: BaseException | None = None) -> None:
        """Keep the final answer; without an error given, what became of the ranks says it."""
        if self.finished:  # by a handler of a signal, while this was going to
            return
        group = self.group
        lost = [] if group.lost is None else [make_loss_error(group.lost, self.policy.wording)]
        bad = [index for index, _ in failures_in(group.outcomes)] or [
            index for index, outcome in sorted(group.outcomes.items()) if outcome.end is End.STOPPED
        ]
        try:
            if error is None and (lost or bad):
                with handlers_let_through():  # unpickles, and so runs code of users' classes
                    errors = [self._make_error(group, index) for index in bad if not lost]
                    for each in (*lost, *errors):
                        each.stacks = dict(self.stacks)
                    error = self._one_error([*lost, *errors])
            self.error = error
            if self.policy.on_answer is not None:
                self.policy.on_answer(error)
        finally:
            group.close()
            if self._listener is not None:
                self._listener.close()
        try:
            with handlers_let_through():  # a terminal may take long
                for spectator in self._spectators:
                    spectator.finish()
        finally:  # also if that was interrupted
            self.finished = True

    def _one_error(self, errors: list[ProcessException]) -> BaseException:
        """What is raised of all failures: the first one, or where others went on, all of them."""
        outcomes = self.group.outcomes
        if self.policy.stops_on_failure or self.group.lost is not None or not failures_in(outcomes):
            return first_of(errors, tries=self._restarts + 1)
        answers = {outcomes[index].rank: self.answer_of(index) for index in sorted(outcomes)}
        return make_group_error(errors, answers)

    def _is_overdue(self) -> bool:
        if self._listener is not None and self._listener.has_stalled:
            return True
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _is_decided(self, group: Group) -> bool:
        """Nothing more to wait for in it: all ended, or one failed and ends the others."""
        if group.all_ended or group.lost is not None:
            return True
        return group.has_failed and self.policy.stops_on_failure

    def _is_news(self, condition: Callable[[], bool], group: Group) -> bool:
        return condition() or self._is_decided(group)
