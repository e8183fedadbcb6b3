"""One node's part in a job: what the launcher's agent talks to.

The agent waits for its descriptor together with its processes and signals, takes what it has to
do, and says what becomes of its workers. Nothing here blocks it: a thread decides and writes, one
keeps the lease, one waits for changes (``membership``, ``store_threads``).
"""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
import string
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue

from rankspawn.interrupts import join_patiently
from rankspawn.launch.flags import CANNOT_EXECUTE, WRONG_USAGE, UsageError
from rankspawn.launch.rendezvous import participant
from rankspawn.launch.rendezvous.causes import explain_absence
from rankspawn.launch.rendezvous.fence import Fence, now
from rankspawn.launch.rendezvous.job_state import JobTerms, Member, NodeReport
from rankspawn.launch.rendezvous.membership import Membership
from rankspawn.launch.rendezvous.records import Keys, clip
from rankspawn.launch.rendezvous.store import StoreRefusedError, StoreUnreachableError
from rankspawn.launch.rendezvous.stores import OpenStore, machine_id
from rankspawn.launch.session import (
    FINAL,
    Cause,
    Instruction,
    JobOver,
    JobResult,
    Outbox,
    StartWorkers,
    StopWorkers,
    Waiting,
)
from rankspawn.workers.marker import new_mark

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.launch.session import FreshPorts

logger: logging.Logger = logging.getLogger(__name__)

# Between two tries to reach a store, and how long a refusal may be a master's that is just
# making room for the next one.
_RETRY_SECONDS = 0.3
_REFUSED_SECONDS = 3.0
# How often the node that serves the master looks whether the others have gone.
_SEE_OFF_SECONDS = 0.1
# Of the lease, what workers get between SIGTERM and SIGKILL before the fence.
_LAST_GRACE = 0.15


class SharedSession:
    """The session of a job of several nodes, in which it takes part until that is over.

    Args:
        opened: The job's store, and the master if this node serves it; the session's own from
            now on, closed with it.
        job_id: Which job.
        terms: The job's.
        ports: One per worker of this node.
        given_rank: The rank that the user gave this node; -1 for none.
        unable: Why this node cannot take part, for the others to know; None if it can.
    """

    def __init__(
        self,
        opened: OpenStore,
        *,
        job_id: str,
        terms: JobTerms,
        ports: Sequence[int],
        given_rank: int = -1,
        unable: Cause | None = None,
    ) -> None:
        self._opened = opened
        self._keys = Keys(job_id)
        self._terms = terms
        self._me = Member(
            name="",
            host=opened.host,
            ports=tuple(ports),
            given_rank=given_rank,
            machine=machine_id(),
            flags=terms.flags,
            report=NodeReport(unable=unable),
        )
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._outbox = Outbox()
        # Only where others go on without a lost node do its workers have to be gone in time.
        self._fence = Fence() if terms.survives_loss else None
        # The generations that may run here, with what the fence knows them by.
        self._marks: dict[int, str | None] = {}
        self._is_fenced = False
        self._safe_until = 0.0
        self._startable = 0
        self._pending: participant.Start | None = None
        self._leaving: Cause | None = None
        self._leave_by: float | None = None
        self._closing = self._hurry = False
        self._told = ""
        self._took_part = False
        self._membership: Membership | None = None
        self._thread = threading.Thread(target=self._run, name="rankspawn-session", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------- the agent's side

    def fileno(self) -> int:
        """Readable when :meth:`take` has something."""
        return self._outbox.fileno()

    def take(self) -> list[Instruction]:
        """What has to be done now, in this order; never blocks."""
        return self._outbox.take()

    def may_start(self, instruction: StartWorkers) -> bool:
        """Ask right before the first worker of a generation is started.

        From now on whoever carries its mark is killed if this node may have lost its lease,
        where the others go on without it.

        Returns:
            False if the instruction is not valid any more: then nothing may be started,
            and nothing needs to be said about it.

        Raises:
            FenceError: Nobody is there to kill the workers; nothing may be started.
        """
        if self._fence is not None and instruction.mark is not None:
            self._fence.guard(instruction.mark)
        self._marks[instruction.generation] = instruction.mark
        if instruction.generation == self._startable and now() < self._safe_until:
            return True
        self.stopped(instruction.generation)
        return False

    def not_started(self, instruction: StartWorkers, error: Exception) -> None:
        """The workers cannot be started, which is a failure of theirs."""
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        own = instruction.nodes[instruction.node_rank]
        text = f"node {instruction.node_rank} ({own.host}) cannot start its workers: {error}{notes}"
        # 126 also for what is not there, as docs/launch.md has it for a node of several.
        exit_code = WRONG_USAGE if isinstance(error, UsageError) else CANNOT_EXECUTE
        self.failed(instruction.generation, exit_code=exit_code, text=text)
        self.stopped(instruction.generation)

    def stopped(self, generation: int, *, fresh_ports: FreshPorts | None = None) -> None:
        """No process of this generation is left here, for whatever reason.

        Args:
            generation: Which.
            fresh_ports: Holds this node's ports of the next generation, if they are others.
        """
        # At once, also if no generation should follow: that is not known here yet.
        ports = None if fresh_ports is None else fresh_ports()
        if ports is not None:
            self._post(lambda: self._change_ports(ports))
        self._release(self._marks.pop(generation, None))
        self._feed(participant.WorkersStopped(generation))

    def failed(
        self,
        generation: int,
        *,
        exit_code: int,
        text: str,
        brief: str = "",
        is_final: bool = False,
    ) -> None:
        """A worker failed by itself; its text will be readable on every node.

        The instruction to stop the others comes at once; see :class:`rankspawn.launch.session`.
        """
        if brief and self._terms.survives_loss:
            logger.warning("%s", brief)
        cause = Cause(FINAL if is_final else "failed", clip(text), exit_code)
        self._feed(participant.WorkerFailed(generation, cause))

    def done(self, generation: int, *, gone: bool = True) -> None:
        """This node's part of the work ended well; ``gone``: no process of it is left."""
        if gone:
            self._release(self._marks.pop(generation, None))
        self._feed(participant.WorkersDone(generation, gone))

    def leave(self, text: str, *, exit_code: int) -> None:
        """Have this node leave the job, e.g. because the user pressed Ctrl-C."""
        self._post(lambda: self._ask_to_leave(Cause("left", clip(text), exit_code)))

    def close(self, *, wait: bool = True) -> None:
        """Leave the job and let go of its store; a second call does nothing.

        On the node that serves the master it waits until the others know how the job ended, but
        not longer than their leases last.

        Args:
            wait: Do that.
        """
        if self._outbox.closed:
            return
        self._hurry = not wait
        self._post(self._close)
        join_patiently(self._thread, None)
        if self._fence is not None:
            self._fence.close()
        self._opened.close()
        if self._membership is not None:
            self._membership.join_threads()
        self._outbox.close()

    # --------------------------------------------------- the deciding thread's side

    def _post(self, call: Callable[[], None]) -> None:
        self._inbox.put(call)

    def _feed(self, event: participant.Event) -> None:
        self._post(lambda: self._membership.feed(event) if self._membership is not None else None)

    def _tell(self, text: str) -> None:
        if text and text != self._told:
            self._outbox.put(Waiting(text))
        self._told = text

    def _run(self) -> None:
        try:
            result = self._take_part()
        except Exception as error:
            logger.exception("the rendezvous has failed")
            result = JobResult((Cause("broken", f"the rendezvous has failed: {error!r}"),))
        served = self._opened.master
        sent_away = served.sent_away if served is not None else ()
        self._outbox.put(JobOver(explain_absence(result, self._opened.address, sent_away)))
        if self._membership is not None:
            self._see_others_off(self._membership, result)
            # Where something may still run, this node has to count as there.
            self._membership.leave(revoke=not self._marks)

    def _see_others_off(self, membership: Membership, result: JobResult) -> None:
        """The master stays until the others know the end, or their leases have ended."""
        until = now() + self._terms.lease_seconds
        while self._opened.master and not self._hurry and not membership.see_off(result, until):
            # Looked at again and again, because the thread that waits for changes may be
            # waiting for other ones; it takes a moment, or as long as the longest lease.
            self._wait(_SEE_OFF_SECONDS)

    def _take_part(self) -> JobResult:
        """From the first try to reach the store to the end, also as one member after another."""
        result = self._join(returned=False)
        while result is None:
            assert self._membership is not None
            self._wait(self._seconds_to_wait(self._membership))
            end = self._turn(self._membership)
            if isinstance(end, participant.Rejoin):
                self._took_part |= self._membership.node.report.stopped > 0
                self._membership.leave(revoke=not self._marks)
                self._membership, self._pending = None, None
                result = self._join(returned=self._took_part)
            else:
                result = end
        return result

    def _seconds_to_wait(self, membership: Membership) -> float | None:
        times = (membership.wake_at(), self._leave_by)
        due = [when for when in times if when is not None]
        return max(0.0, min(due) - now()) if due else None

    def _wait(self, seconds: float | None) -> None:
        """Make the calls that were posted; wait for the first one."""
        with contextlib.suppress(Empty):
            call = self._inbox.get(timeout=seconds)
            while True:
                call()
                call = self._inbox.get_nowait()

    def _join(self, *, returned: bool) -> JobResult | None:
        """Become a member; a result if that can never be."""
        began = now()
        patience = self._terms.elastic_timeout if returned else self._terms.join_timeout
        while not self._closing:
            if self._leaving is not None:
                return JobResult((self._leaving,))
            serves = self._opened.master is not None
            me = replace(self._me, name=_new_name(), serves=serves, returned=returned)
            try:
                self._membership = Membership(
                    self._opened.store,
                    self._keys,
                    self._terms,
                    me,
                    self._fence,
                    post=self._post,
                    held=self._note_held,
                )
            except StoreUnreachableError as error:
                if now() >= began + patience:
                    text = f"{error}; given up after {patience:g} s"
                    return JobResult((Cause("lost" if returned else "absent", text),))
                self._tell(f"waiting for the other nodes: {error}")
                if not returned:
                    self._opened.serve_if_free()
            except StoreRefusedError as error:
                if now() >= began + _REFUSED_SECONDS:
                    return JobResult((Cause("refused", str(error)),))
            else:
                return None
            # A thousand nodes that come at once should not all come back at once.
            self._wait(_RETRY_SECONDS * (0.5 + random.random()))
        return JobResult((Cause("left", "closed"),))

    def _turn(self, membership: Membership) -> JobResult | participant.Rejoin | None:
        """Carry out what follows from what was heard; a result once this membership is over."""
        membership.feed(participant.Tick())
        membership.write()
        while steps := membership.take():
            for step in steps:
                if isinstance(step, participant.Over):
                    return step.result
                if isinstance(step, participant.Rejoin):
                    return step
                if isinstance(step, participant.Start):
                    self._pending = step
                else:
                    self._stop(membership, step)
            membership.write()
        if self._is_fenced and not membership.node.dies_of_loss:
            # The job ends, and what has to be saved may take longer than the store is there.
            self._is_fenced = False
            for mark in list(self._marks.values()):
                self._release(mark)
        self._start_pending(membership)
        self._tell(membership.waiting)
        if self._closing:
            return JobResult((self._leaving or Cause("left", "closed"),))
        return self._leave_unheard(membership)

    def _start_pending(self, membership: Membership) -> None:
        if self._pending is None or membership.state is None:
            return
        nodes = membership.read_nodes()
        if nodes is None:
            return
        generation, self._pending = self._pending.generation, None
        self._startable = generation
        state = membership.state
        rank = state.rank_of(membership.name)
        # For a store that has forgotten it, should this node have to come back.
        self._me = replace(self._me, restarts=state.restarts, used=state.used, former_rank=rank)
        self._is_fenced = self._fence is not None
        mark = new_mark() if self._is_fenced else None
        self._outbox.put(StartWorkers(generation, nodes, rank, state.restarts, state.run_id, mark))

    def _stop(self, membership: Membership, stop: participant.Stop) -> None:
        self._startable = 0
        if self._pending is not None:
            # The agent never heard of these.
            self._pending = None
            membership.feed(participant.WorkersStopped(stop.generation))
            return
        grace = _LAST_GRACE * self._terms.lease_seconds if stop.at_once else None
        self._outbox.put(StopWorkers(stop.generation, stop.reason, grace, stop.succeeded))

    def _release(self, mark: str | None) -> None:
        if self._fence is not None and mark is not None:
            self._fence.release(mark)

    def _leave_unheard(self, membership: Membership) -> JobResult | None:
        """Go without waiting any longer for the others to take notice."""
        if self._leaving is None or membership.node.running:
            return None
        if self._leave_by is None:
            self._leave_by = now() + self._terms.answer_seconds
        return JobResult((self._leaving,)) if now() >= self._leave_by else None

    def _note_held(self, safe_until: float) -> None:
        """Note up to when the lease is good; runs in the lease's thread, too."""
        self._safe_until = safe_until

    def _change_ports(self, ports: tuple[int, ...]) -> None:
        self._me = replace(self._me, ports=ports)
        if self._membership is not None:
            self._membership.describe_me(ports)

    def _ask_to_leave(self, cause: Cause) -> None:
        self._leaving = self._leaving or cause
        if self._membership is not None:
            self._membership.feed(participant.AskedToLeave(cause))

    def _close(self) -> None:
        self._closing = True


def _new_name() -> str:
    """Eight letters: a thousand nodes have the same with a chance of one in 400,000."""
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(8))
