"""Runs the programs of this node: does what its session says, and tells it what happens.

One selector waits for signals to the launcher, for the session and for the ends of programs;
nothing else blocks.
"""

from __future__ import annotations

import os
import selectors
import signal

from rankspawn.interrupts import ImpatientError, Signals
from rankspawn.launch.flags import UsageError
from rankspawn.launch.limits import Limits, describe_others, describe_where
from rankspawn.launch.session import Cause, JobOver, JobResult, StartWorkers, StopWorkers, Waiting
from rankspawn.supervise.outcome import signal_name
from rankspawn.telling import get_logger

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping

    from rankspawn.launch.node import ThisNode
    from rankspawn.launch.pod import Ending, Pod
    from rankspawn.launch.session import Instruction, Session
    from rankspawn.supervise.outcome import Outcome

logger: logging.Logger = get_logger(__name__)

_TIMED_OUT = 124  # as timeout(1) has it
_NAMED = 8


class Agent:
    """Runs the programs of this node, generation after generation, to one result.

    Args:
        here: This node.
        signals: What the launcher receives.

    Attributes:
        endings: How each program ended, of the last start.
        tries: How often the programs were started.
    """

    def __init__(self, here: ThisNode, signals: Signals) -> None:
        self.endings: list[Ending] = []
        self.tries: int = 0
        self._here = here
        self._signals = signals
        self._pod: Pod | None = None
        self._started: StartWorkers | None = None
        # What the session knows about the pod.
        self._told_failed = self._told_done = False
        self._limits = Limits(here.config)
        # Who ran when one of them was reached.
        self._still_running = ""

    @property
    def running(self) -> Mapping[int, int]:
        """Rank to process of what runs on this node."""
        return {} if self._pod is None else self._pod.running

    def run(self, join: Callable[[], Session]) -> JobResult:
        """Take part until the job is over; nothing runs here any more when it returns or raises.

        Args:
            join: Begins the session; it may take its time.

        Raises:
            OSError: A job on this machine alone could not be started.
            UsageError: The same, because of its options.
        """
        try:
            with self._signals.impatient(at_first=True):
                self._session = join()
        except ImpatientError:  # before it met anybody
            return JobResult((self._own_end,))
        with selectors.DefaultSelector() as self._selector:
            try:
                return self._take_part()
            except BaseException:
                self._end_pod()
                self._session.close(wait=False)
                raise

    def _take_part(self) -> JobResult:
        self._selector.register(self._signals, selectors.EVENT_READ)
        descriptor = self._session.fileno()
        if descriptor is not None:
            self._selector.register(descriptor, selectors.EVENT_READ)
        over = self._follow()
        if over is None:
            over = self._leave()
            if over is None or _is_a_leave(over):
                over = JobResult((self._own_end,))
        self._close_session()
        return over

    @property
    def _own_end(self) -> Cause:
        """Why this launcher ends the job: somebody wants it to, or a limit is reached."""
        if self._signals.ending is not None:
            return Cause("left", "", 128 + self._signals.ending)
        return Cause("left", self._limits.why + self._still_running, _TIMED_OUT)

    def _follow(self, *, leaving: bool = False) -> JobResult | None:
        """Do what the session says until the job is over; None if a signal asks us to end."""
        while True:
            self._signals.clear()
            self._collect()
            # Asked before the session is told of failures: when another node fails, programs of
            # this one fail because of it, and must not be taken for the cause.
            while instructions := self._session.take():
                for instruction in instructions:
                    if isinstance(instruction, JobOver):
                        # Something still runs only if the rendezvous itself has failed.
                        self._end_pod()
                        return instruction.result
                    self._obey(instruction)
            # Between the look at the programs and what is told of them: Ctrl-C reaches them as
            # well, and those that it has ended have not failed.
            if not leaving and (self._signals.ending is not None or self._limits.are_reached()):
                return None
            if not self._tell():
                self._selector.select(None if leaving else self._limits.seconds_left())

    def _leave(self) -> JobResult | None:
        """End what runs here and tell the others why; None if nobody wants to wait for that."""
        if self._signals.ending is not None:
            name = signal_name(self._signals.ending)
            text = f"{self._own_name()} was ended by {name} to its launcher"
        else:
            self._still_running = self._name_running()
            if self._pod is not None:
                where = describe_where(
                    self._pod.running, is_called_off=self._has_to_end, note=self._pod.note_stacks
                )
                logger.error("where the ranks of this node are:\n%s", where)
            text = f"{self._own_name()} was {self._own_end.text}"
        self._session.leave(text, exit_code=self._own_end.exit_code)
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

    def _obey(self, instruction: Instruction) -> None:
        match instruction:
            case Waiting(text):
                logger.info("%s", text)
            case StartWorkers():
                self._start(instruction)
            case StopWorkers(generation, reason) if self._runs(generation):
                if reason and not instruction.succeeded:
                    logger.warning("the workers of this node are ended: %s", reason)
                self._end_pod(grace=instruction.grace, only_helpers=instruction.succeeded)
            case StopWorkers(generation):
                self._session.stopped(generation)

    def _runs(self, generation: int) -> bool:
        return self._started is not None and self._started.generation == generation

    def _start(self, instruction: StartWorkers) -> None:
        if self._signals.ending is not None:
            self._session.stopped(instruction.generation)
            return
        try:
            if not self._session.may_start(instruction):
                return
            with self._signals.quit_is_ours():
                self._pod, self._started = self._here.start(instruction), instruction
        except (OSError, UsageError) as error:
            self._session.not_started(instruction, error)
            return
        self._told_failed = self._told_done = False
        self.tries += 1
        self._limits.begin(self._pod)
        self._selector.register(self._pod, selectors.EVENT_READ)

    def _collect(self) -> None:
        """Take note of what became of the programs, and pass on what is meant for them."""
        if self._pod is not None:
            for number in self._signals.take_to_pass_on():
                self._pod.pass_on(number)
            self._pod.collect()
        if self._signals.take_quit():
            # At every level: it was asked for.
            pids = {} if self._pod is None else self._pod.running
            where = describe_where(pids, is_called_off=self._has_to_end)
            logger.critical("SIGQUIT\n%s", where)

    def _has_to_end(self) -> bool:
        return self._signals.ending is not None

    def _tell(self) -> bool:
        """Tell the session what became of the programs; False if it knows all of it."""
        pod, started = self._pod, self._started
        if pod is None or started is None or self._told_failed:
            return False
        # Others may still need the servers of this node, if it has no more than those.
        only_serves = not pod.has_trainers and len(started.nodes) > 1
        if pod.lost is not None:  # before the failures, which follow from it
            self._told_failed = True
            self._tell_loss(pod.lost, started)
        elif pod.failures:
            self._told_failed = True
            self._tell_failure(pod, pod.failures[0], started.generation)
        elif pod.is_empty:
            self._end_pod(done=True)
        elif not self._told_done and (pod.is_done or only_serves):
            self._told_done = True
            self._session.done(started.generation, gone=False)
        else:
            return False
        return True

    def _tell_failure(self, pod: Pod, cause: Ending, generation: int) -> None:
        from rankspawn.launch.summary import LINES_READ, describe_cause, describe_end, exit_code_of
        from rankspawn.workers.logs import read_tail

        assert cause.outcome is not None, "what failed has ended"
        lines = read_tail(cause.log, start=cause.log_start, lines=LINES_READ)
        exit_code, why_not = exit_code_of(cause.outcome), ""
        if self._here.config.may_go_on:
            from rankspawn.launch.retrying import why_not_again

            why_not = why_not_again(self._here.config, exit_code, lines)
        is_last = bool(why_not) or not self._here.config.may_go_on
        if is_last and (others := describe_others(pod.running, note=pod.note_stacks)):
            logger.error("%s", others)
        host = os.uname().nodename
        self._session.failed(
            generation,
            exit_code=exit_code,
            text=describe_cause(cause, lines, host=host, no_restart=why_not),
            is_final=bool(why_not),
            brief=f"{cause.name} failed ({describe_end(cause.outcome)}), its log is {cause.log}",
        )

    def _tell_loss(self, lost: Outcome, started: StartWorkers) -> None:
        from rankspawn.launch.summary import exit_code_of

        text = f"on {os.uname().nodename} {lost.evidence}"
        code = exit_code_of(lost) or 1
        self._session.failed(started.generation, exit_code=code, text=text, brief=text)

    def _end_pod(
        self, *, grace: float | None = None, only_helpers: bool = False, done: bool = False
    ) -> None:
        """End what runs here, if anything does, and say so.

        Args:
            grace: Seconds between SIGTERM and SIGKILL, if others than the pod's.
            only_helpers: All trainers of the job succeeded; what they left running is left alone.
            done: The work of this node is what has ended it.
        """
        pod, started = self._pod, self._started
        if pod is None or started is None:
            return
        self._pod = self._started = None
        self._limits.end()
        self._selector.unregister(pod)
        try:
            with self._signals.impatient():
                if only_helpers:
                    pod.stop_helpers()
                else:
                    pod.stop(interrupted=self._signals.ending == signal.SIGINT, grace=grace)
        except ImpatientError:
            logger.warning("asked again to end: what still runs is killed")
            pod.kill()
        finally:
            self.endings = pod.endings
            pod.close()
        if done:
            self._session.done(started.generation)
        else:
            self._session.stopped(started.generation, fresh_ports=self._here.fresh_ports)

    def _name_running(self) -> str:
        if self._pod is None:
            return ""
        names = [ending.name for ending in self._pod.endings if ending.outcome is None]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"; still running: {', '.join(names[:_NAMED])}{more}" if names else ""

    def _own_name(self) -> str:
        if self._started is None:
            return f"a node ({self._here.host})"
        return f"node {self._started.node_rank} ({self._here.host})"


def _is_a_leave(over: JobResult) -> bool:
    """Whether the job has not failed by itself, as far as is known."""
    return not over.causes or over.causes[0].kind == "left"
