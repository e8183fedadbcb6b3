"""A job as an agent sees it: what it is told to do, what it says, and how it all ended.

With several nodes what to do is agreed on in the rendezvous (``rendezvous.session``); a job on
one machine answers its agent itself, and loads nothing of that.
"""

from __future__ import annotations

import os
from collections import deque

from rankspawn.descriptors import Waker
from rankspawn.launch.backoff import Backoff, call_later
from rankspawn.launch.programs import Node
from rankspawn.telling import get_logger
from rankspawn.values import dataclass, replace

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from typing import Protocol

    from rankspawn.launch.config import LaunchConfig

logger: logging.Logger = get_logger(__name__)

# A worker's failure after which there is no other start.
FINAL = "final"
# The exit code of a cause that is no worker's own.
_GENERAL_FAILURE = 1


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that went wrong.

    Attributes:
        kind: ``failed`` or ``final`` (a worker), ``vanished``, ``silent``, ``left``, ``refused``,
            ``lost`` (the store) or ``too few``.
        text: For people: whole sentences, or the report of a worker's failure.
        exit_code: What the launchers exit with if this came first.
        node: The node's name, where it is one node's matter.
    """

    kind: str
    text: str
    exit_code: int = _GENERAL_FAILURE
    node: str = ""


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended, the same on every node that saw its end.

    Attributes:
        causes: What went wrong, the root cause first; empty after success.
    """

    causes: tuple[Cause, ...] = ()

    @property
    def succeeded(self) -> bool:
        """Whether all workers of all nodes ended well."""
        return not self.causes

    @property
    def exit_code(self) -> int:
        """The exit code of the failure that came first; 0 after success."""
        return self.causes[0].exit_code if self.causes else 0

    @property
    def text(self) -> str:
        """All causes as text; the root cause last, as that is read last on a terminal."""
        return "\n".join(cause.text for cause in reversed(self.causes))


@dataclass(frozen=True, slots=True)
class Waiting:
    """For people: what the job waits for, such as a missing node."""

    text: str


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start this node's workers, right after :meth:`Session.may_start` said yes.

    Attributes:
        generation: Grows with each start; goes into all that is said about these workers.
        nodes: All nodes of it by rank.
        node_rank: This one's.
        restarts: Regroups of this run so far.
        run_id: The same on all nodes, from the first generation to the last.
        mark: What the workers have to carry beside their pod's own mark, to be killed should
            this node be lost to the others; None where nobody goes on without it.
    """

    generation: int
    nodes: tuple[Node, ...]
    node_rank: int
    restarts: int
    run_id: str
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """End this node's workers, and say so with :meth:`Session.stopped`.

    Attributes:
        reason: For people; empty if they know it.
        grace: Seconds between SIGTERM and SIGKILL; None for the agent's own.
        succeeded: All work of the job is done; what still runs only served it.
    """

    generation: int
    reason: str = ""
    grace: float | None = None
    succeeded: bool = False


@dataclass(frozen=True, slots=True)
class JobOver:
    """This node's part in the job is over: the last instruction.

    Nothing runs here any more, unless the rendezvous itself has failed; then the agent ends
    what does.
    """

    result: JobResult


Instruction = Waiting | StartWorkers | StopWorkers | JobOver


class Outbox:
    """Instructions on their way from a session's thread to the agent, with a descriptor.

    It is readable while something is in it.
    """

    def __init__(self) -> None:
        self._waker = Waker()
        self._instructions: deque[Instruction] = deque()

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._waker.fileno()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._waker.closed

    def put(self, instruction: Instruction) -> None:
        """Add an instruction, from any thread."""
        self._instructions.append(instruction)
        self._waker.wake()

    def take(self) -> list[Instruction]:
        """All that are there, oldest first."""
        # Before they are taken: one that comes in between wakes once more, and none is missed.
        self._waker.clear()
        taken = []
        while self._instructions:
            taken.append(self._instructions.popleft())
        return taken

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        self._waker.close()


if TYPE_CHECKING:
    FreshPorts = Callable[[], tuple[int, ...] | None]

    class Session(Protocol):
        """One node's part in a job: what its agent talks to. Nothing here but `close` blocks."""

        def fileno(self) -> int | None:
            """Readable when :meth:`take` has something; None if it always has it at once."""

        def take(self) -> list[Instruction]:
            """What has to be done now, in this order."""

        def may_start(self, instruction: StartWorkers) -> bool:
            """Ask right before the first worker of a generation is started.

            Returns:
                False if the instruction is not valid any more: then nothing may be started, and
                nothing needs to be said about it.

            Raises:
                OSError: Nothing may be started, for a reason that has to be told.
            """

        def not_started(self, instruction: StartWorkers, error: Exception, /) -> None:
            """The workers cannot be started, and none of them is there.

            Raises:
                Exception: The same error, if it concerns nobody else.
            """

        def failed(
            self,
            generation: int,
            *,
            exit_code: int,
            text: str,
            brief: str = "",
            is_final: bool = False,
        ) -> None:
            """A worker failed by itself; the instruction to stop the others comes at once.

            Args:
                generation: Which.
                exit_code: The launcher's, if this ends the job.
                text: The whole story, for the end of the job.
                brief: The same in a line, for a job that goes on.
                is_final: Another start would end alike, or is not wanted.
            """

        def done(self, generation: int, *, gone: bool = True) -> None:
            """This node's part of the work ended well.

            Args:
                generation: Which.
                gone: No process of it is left. False where servers run on until all are done.
            """

        def stopped(self, generation: int, /, *, fresh_ports: FreshPorts | None = None) -> None:
            """No process of this generation is left here, for whatever reason.

            Args:
                generation: Which.
                fresh_ports: Holds this node's ports of the next generation, if there is one;
                    None if they stay the same.
            """

        def leave(self, text: str, *, exit_code: int) -> None:
            """Have this node leave the job, e.g. because the user pressed Ctrl-C."""

        def close(self, *, wait: bool = True) -> None:
            """Let go of the job, and with ``wait`` see the others off; a second call is fine."""


def may_restart(config: LaunchConfig, restarts: int) -> bool:
    """Whether a node that is alone starts its programs again after one of them failed."""
    return config.elastic_level == 1 and restarts < config.max_restart


class LocalSession:
    """The session of a job that this node has for itself: runs, restarts if allowed, ends.

    Args:
        config: What was asked for.
        node: This node, with its first ports.
        backoff: The pauses between restarts.
    """

    def __init__(self, config: LaunchConfig, node: Node, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff()
        # Has the start that a pause puts off.
        self._outbox = Outbox() if may_restart(config, 0) else None
        self._call_off: Callable[[], None] | None = None
        self._config = config
        self._node = node
        self._run_id = os.urandom(8).hex()
        self._restarts = 0
        self._is_done = False
        self._failure: Cause | None = None
        self._brief = ""
        self._instructions: list[Instruction] = [self._start()]

    def fileno(self) -> int | None:
        """Each answer is there before its question has returned, but for a restart."""
        return None if self._outbox is None else self._outbox.fileno()

    def take(self) -> list[Instruction]:
        """The next instructions; see :class:`Session`, here as below."""
        taken, self._instructions = self._instructions, []
        return taken if self._outbox is None else [*taken, *self._outbox.take()]

    def may_start(self, instruction: StartWorkers) -> bool:
        """Always; says that it is a restart, which before now a signal could have prevented."""
        if instruction.restarts:
            total = self._config.max_restart
            logger.warning("%s; restart %d of %d", self._brief, instruction.restarts, total)
        self._backoff.begin()
        return True

    def not_started(self, _: StartWorkers, error: Exception, /) -> None:
        """Nobody else has to be told: it is the launcher's own error."""
        raise error

    def failed(
        self,
        generation: int,
        *,
        exit_code: int,
        text: str,
        brief: str = "",
        is_final: bool = False,
    ) -> None:
        """What becomes of the job is decided once nothing runs."""
        kind = FINAL if is_final else "failed"
        self._failure, self._brief = Cause(kind, text, exit_code), brief
        self._instructions.append(StopWorkers(generation))

    def done(self, generation: int, *, gone: bool = True) -> None:
        """The work is done; what still runs only served it."""
        self._is_done = True
        if gone:
            self.stopped(generation)
        else:
            self._instructions.append(StopWorkers(generation, succeeded=True))

    def stopped(self, _: int, /, *, fresh_ports: FreshPorts | None = None) -> None:
        """The end, a restart, or nothing yet, where a signal asked the agent to leave."""
        failure, self._failure = self._failure, None
        if self._is_done:
            self._instructions.append(JobOver(JobResult()))
        elif (
            failure is not None
            and failure.kind != FINAL
            and may_restart(self._config, self._restarts)
        ):
            ports = None if fresh_ports is None else fresh_ports()
            if ports is not None:
                self._node = replace(self._node, ports=ports)
            self._restarts += 1
            self._restart_after(self._backoff.pause())
        elif failure is not None:
            self._instructions.append(JobOver(JobResult((failure,))))

    def leave(self, text: str, *, exit_code: int) -> None:
        """End the job at once: nobody has to agree."""
        self._instructions.append(JobOver(JobResult((Cause("left", text, exit_code),))))

    def close(self, *, wait: bool = True) -> None:  # noqa: ARG002 - a Session's
        """Call off what is to come; there is nobody to wait for."""
        if self._call_off is not None:
            self._call_off()
        if self._outbox is not None:
            self._outbox.close()

    def _restart_after(self, seconds: float) -> None:
        outbox, start = self._outbox, self._start()
        if not seconds or outbox is None:
            self._instructions.append(start)
            return
        logger.info("%s; the next start is in %g s", self._brief, seconds)
        self._call_off = call_later(seconds, lambda: outbox.put(start))

    def _start(self) -> StartWorkers:
        return StartWorkers(self._restarts + 1, (self._node,), 0, self._restarts, self._run_id)
