"""One node's part of a job on several nodes: does what the nodes agree on, and says what happens.

One selector waits for signals to the launcher, for what the nodes agree on and for the ends of
programs; nothing else blocks. What the nodes agree on is asked before the programs: when a node
fails, programs of the others fail because of it, and theirs must not be taken for the cause.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal

from rankspawn.launch.agent import Result
from rankspawn.launch.flags import UsageError
from rankspawn.launch.rendezvous.decisions import (
    Decision,
    JobOver,
    StartWorkers,
    StopWorkers,
    Waiting,
)
from rankspawn.launch.rendezvous.fence import FenceError
from rankspawn.launch.signals import ImpatientError, Signals
from rankspawn.launch.words import (
    LINES_READ,
    describe_cause,
    describe_end,
    exit_code_of,
    signal_name,
)
from rankspawn.workers.logs import read_tail
from rankspawn.workers.marker import new_mark

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.launch.many_machines import ManyMachines
    from rankspawn.launch.pod import Ending, Pod
    from rankspawn.launch.rendezvous.job_state import Result as JobResult
    from rankspawn.launch.rendezvous.session import Session

__all__ = ["MemberAgent"]

logger = logging.getLogger(__name__)

_WRONG_USAGE = 2
_CANNOT_EXECUTE = 126


class MemberAgent:
    """Runs the programs of this node, generation after generation, to one result.

    Args:
        here: This node.
        session: Its part in the job; closed in the end.
        signals: What the launcher receives.
    """

    def __init__(self, here: ManyMachines, session: Session, signals: Signals) -> None:
        self._here = here
        self._session = session
        self._signals = signals
        self._selector = selectors.DefaultSelector()
        self._pod: Pod | None = None
        self._order: StartWorkers | None = None
        # What the others know about the pod.
        self._told_failed = self._told_done = False
        self._endings: list[Ending] = []
        self._tries = 0

    def run(self) -> Result:
        """Take part until the job is over; nothing runs here any more when it returns or raises."""
        try:
            self._selector.register(self._signals, selectors.EVENT_READ)
            self._selector.register(self._session, selectors.EVENT_READ)
            over = self._follow()
            is_asked = over is None
            if is_asked:
                over = self._leave()
            self._close_session()
        except BaseException:
            self._end_pod(grace=0.0)
            self._session.close(wait=False)
            raise
        finally:
            self._selector.close()
        if over is None or (is_asked and _is_a_leave(over)):
            assert self._signals.ending is not None, "it was the reason"
            return Result(128 + self._signals.ending, self._endings, None, self._tries)
        return Result(over.exit_code, self._endings, None, self._tries, over.text)

    def _follow(self, *, leaving: bool = False) -> JobResult | None:
        """Do what the nodes agree on until the job is over; None if a signal asks us to end."""
        while True:
            self._signals.clear()
            for decision in self._session.take():
                if isinstance(decision, JobOver):
                    # Something still runs only if the rendezvous itself has failed.
                    self._end_pod()
                    return decision.result
                self._obey(decision)
            if self._signals.ending is not None and not leaving:
                return None
            if self._pod is not None:
                self._look_at(self._pod)
            self._selector.select()

    def _leave(self) -> JobResult | None:
        """End what runs here and tell the others why; None if nobody wants to wait for that."""
        ending = self._signals.ending
        assert ending is not None, "it is the reason"
        text = f"{self._own_name()} was ended by {signal_name(ending)} to its launcher"
        self._session.leave(text, exit_code=128 + ending)
        self._end_pod()
        try:
            with self._signals.impatient():
                return self._follow(leaving=True)
        except ImpatientError:
            logger.warning("asked again to end: the other nodes are not waited for")
            self._session.close(wait=False)
            return None

    def _close_session(self) -> None:
        try:
            with self._signals.impatient():
                self._session.close()
        except ImpatientError:
            self._session.close(wait=False)

    def _obey(self, decision: Decision) -> None:
        match decision:
            case Waiting(text):
                logger.info("%s", text)
            case StartWorkers():
                self._start(decision)
            case StopWorkers(generation) if self._runs(generation):
                if decision.succeeded:
                    self._end_helpers()
                else:
                    logger.warning("the workers of this node are ended: %s", decision.reason)
                    self._end_pod(grace=decision.grace)
            case StopWorkers(generation):
                self._session.stopped(generation)

    def _runs(self, generation: int) -> bool:
        return self._order is not None and self._order.generation == generation

    def _start(self, order: StartWorkers) -> None:
        if self._signals.ending is not None:
            self._session.stopped(order.generation)
            return
        mark = new_mark()
        try:
            if not self._session.may_start(order.generation, mark):
                return
            self._pod, self._order = self._here.start(order, mark), order
        except (OSError, UsageError, FenceError) as error:
            self._tell_no_start(order, error)
            return
        self._told_failed = self._told_done = False
        self._tries += 1
        self._selector.register(self._pod, selectors.EVENT_READ)

    def _tell_no_start(self, order: StartWorkers, error: Exception) -> None:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        own = order.nodes[order.node_rank]
        text = f"node {order.node_rank} ({own.host}) cannot start its workers: {error}{notes}"
        exit_code = _WRONG_USAGE if isinstance(error, UsageError) else _CANNOT_EXECUTE
        self._session.failed(order.generation, exit_code=exit_code, text=text)
        self._session.stopped(order.generation)

    def _look_at(self, pod: Pod) -> None:
        """Tell the others what became of the programs."""
        assert self._order is not None, "it is the pod's"
        for number in self._signals.take_to_pass_on():
            pod.pass_on(number)
        pod.collect()
        if self._told_failed:
            return
        if pod.failures:
            self._told_failed = True
            self._tell_failure(pod.failures[0])
        elif pod.is_empty:
            self._end_pod(done=True)
        elif not self._told_done and (pod.is_done or not pod.has_trainers):
            # Others may still need the servers of this node.
            self._told_done = True
            self._session.done(self._order.generation, gone=False)

    def _tell_failure(self, cause: Ending) -> None:
        assert self._order is not None, "something ran"
        assert cause.outcome is not None, "what failed has ended"
        if self._here.goes_on_after_failures:
            # Else it is the last that is said.
            how = describe_end(cause.outcome)
            logger.warning("%s failed (%s), its log is %s", cause.name, how, cause.log)
        lines = read_tail(cause.log, start=cause.log_start, lines=LINES_READ)
        self._session.failed(
            self._order.generation,
            exit_code=exit_code_of(cause.outcome),
            text=describe_cause(cause, lines, host=os.uname().nodename),
        )

    def _end_helpers(self) -> None:
        """All trainers of the job succeeded; what they left running is left alone."""
        assert self._pod is not None, "it runs"
        try:
            with self._signals.impatient():
                self._pod.stop_helpers()
        except ImpatientError:
            self._pod.kill()
        self._end_pod()

    def _end_pod(self, *, grace: float | None = None, done: bool = False) -> None:
        """End what runs here, if anything does, and say so."""
        pod, order = self._pod, self._order
        if pod is None or order is None:
            return
        self._pod = self._order = None
        self._selector.unregister(pod)
        try:
            with self._signals.impatient():
                pod.stop(interrupted=self._signals.ending == signal.SIGINT, grace=grace)
        except ImpatientError:
            logger.warning("asked again to end: what still runs is killed")
            pod.kill()
        finally:
            self._endings = pod.endings
            pod.close()
        if done:
            self._session.done(order.generation)
        else:
            self._session.stopped(order.generation, ports=self._here.fresh_ports())

    def _own_name(self) -> str:
        if self._order is None:
            return f"a node ({self._here.host})"
        return f"node {self._order.node_rank} ({self._here.host})"


def _is_a_leave(over: JobResult) -> bool:
    """The job has not failed by itself, as far as it is known."""
    return not over.causes or over.causes[0].kind == "left"
