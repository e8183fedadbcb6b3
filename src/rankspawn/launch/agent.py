"""A job on one machine: starts its pod, waits, and decides what happens next.

Everything that can happen is a readable descriptor in one selector: a signal to the launcher,
the end of a program. With several nodes (``member_agent``), what they agree on is one more.
"""

from __future__ import annotations

import logging
import selectors
import signal
from dataclasses import dataclass
from enum import Enum

from rankspawn.launch.signals import ImpatientError, Signals
from rankspawn.launch.words import describe_end, exit_code_of

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.pod import Ending, Pod

__all__ = ["Agent", "Result", "may_restart"]

logger = logging.getLogger(__name__)


class Event(Enum):
    """What an agent waits for."""

    SIGNALLED = "a signal asks us to end"
    FAILED = "a program failed"
    DONE = "all trainers ended well"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of the job on this node.

    Attributes:
        exit_code: For the launcher to end with.
        endings: How each program ended, of the last start.
        cause: The failure that came first, if one did.
        tries: How often the programs were started.
        text: With several nodes, what went wrong on any of them, the root cause last.
    """

    exit_code: int
    endings: list[Ending]
    cause: Ending | None
    tries: int
    text: str = ""


def may_restart(config: LaunchConfig, restarts: int) -> bool:
    """Whether a node starts its programs again after one of them failed."""
    return config.elastic_level == 1 and restarts < config.max_restart


class Agent:
    """Runs the programs of this node to one result.

    Args:
        config: What was asked for.
        start: Starts a pod; gets how many were started before.
        signals: What the launcher receives.
    """

    def __init__(self, config: LaunchConfig, start: Callable[[int], Pod], signals: Signals) -> None:
        self._config = config
        self._start = start
        self._signals = signals

    def run(self) -> Result:
        """Start, wait, restart if allowed; nothing runs any more when it returns or raises.

        Raises:
            OSError: A program could not be started.
        """
        restarts = 0
        while True:
            result = self._run_once(restarts)
            if result.cause is None or not may_restart(self._config, restarts):
                return result
            if self._signals.ending is not None:
                # It would have been started again: not the failure has ended the job, but this.
                return Result(128 + self._signals.ending, result.endings, None, result.tries)
            restarts += 1
            logger.warning(
                "%s failed (%s), its log is %s; restart %d of %d",
                result.cause.name,
                describe_end(result.cause.outcome),
                result.cause.log,
                restarts,
                self._config.max_restart,
            )

    def _run_once(self, restarts: int) -> Result:
        if self._signals.ending is not None:
            return Result(128 + self._signals.ending, [], None, restarts)
        pod = self._start(restarts)
        try:
            try:
                event = self._wait(pod)
            except BaseException:
                pod.stop()
                raise
            exit_code, cause = self._end(pod, event)
            return Result(exit_code, pod.endings, cause, restarts + 1)
        finally:
            pod.close()

    def _wait(self, pod: Pod) -> Event:
        """Block until there is something to decide."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals, selectors.EVENT_READ)
            selector.register(pod, selectors.EVENT_READ)
            while True:
                self._signals.clear()
                for number in self._signals.take_to_pass_on():
                    pod.pass_on(number)
                pod.collect()
                # First, because Ctrl-C reaches the programs as well, which then seem to fail.
                if self._signals.ending is not None:
                    return Event.SIGNALLED
                if pod.failures:
                    return Event.FAILED
                if pod.is_done:
                    return Event.DONE
                selector.select()

    def _end(self, pod: Pod, event: Event) -> tuple[int, Ending | None]:
        """End the pod accordingly; the exit code, and the cause of a failure."""
        try:
            with self._signals.impatient():
                if event is Event.DONE:
                    pod.stop_helpers()
                else:
                    pod.stop(interrupted=self._signals.ending == signal.SIGINT)
        except ImpatientError:
            logger.warning("asked again to end: what still runs is killed")
            pod.kill()
        if event is Event.DONE:
            return 0, None
        if event is Event.SIGNALLED:
            assert self._signals.ending is not None, "it was the event"
            return 128 + self._signals.ending, None
        cause = pod.failures[0]
        assert cause.outcome is not None, "what failed has ended"
        return exit_code_of(cause.outcome), cause
