"""One node's part in a job: what the launcher's agent talks to.

The agent waits for :meth:`Session.fileno` together with its processes and signals, takes what it
has to do, and says what becomes of its workers. Nothing here blocks it: a thread decides and
writes, one keeps the lease, one waits for changes (``link``, ``keeping``).
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

from rankspawn.launch.rendezvous import participant
from rankspawn.launch.rendezvous.addresses import machine_id
from rankspawn.launch.rendezvous.causes import name_silent_store
from rankspawn.launch.rendezvous.decisions import (
    Decision,
    JobOver,
    StartWorkers,
    StopWorkers,
    Waiting,
)
from rankspawn.launch.rendezvous.fence import Fence
from rankspawn.launch.rendezvous.job_state import Cause, Member, Policy, Result
from rankspawn.launch.rendezvous.lease_times import now
from rankspawn.launch.rendezvous.link import Link
from rankspawn.launch.rendezvous.opening import Opened
from rankspawn.launch.rendezvous.outbox import Outbox
from rankspawn.launch.rendezvous.records import Keys, clip
from rankspawn.launch.rendezvous.store import StoreRefusedError, StoreUnreachableError
from rankspawn.workers.wakeup import join_patiently

__all__ = ["Session"]

logger = logging.getLogger(__name__)

# Between two tries to reach a store, and how long a refusal may be a master's that is just
# making room for the next one.
_RETRY_SECONDS = 0.3
_REFUSED_SECONDS = 3.0
# How often the node that serves the master looks whether the others have gone.
_SEE_OFF_SECONDS = 0.1
# Of the lease, what workers get between SIGTERM and SIGKILL before the fence.
_LAST_GRACE = 0.15


class Session:
    """Takes part in a job until it is over.

    Args:
        opened: The job's store, and the master if this node serves it; the session's own from
            now on, closed with it.
        job_id: Which job.
        policy: Its terms.
        ports: One per worker of this node.
        devices: One per worker, or none.
        given_rank: The rank that the user gave this node; -1 for none.
    """

    def __init__(
        self,
        opened: Opened,
        *,
        job_id: str,
        policy: Policy,
        ports: Sequence[int],
        devices: Sequence[str] = (),
        given_rank: int = -1,
    ) -> None:
        self._opened = opened
        self._keys = Keys(job_id)
        self._policy = policy
        self._me = Member(
            name="",
            host=opened.host,
            ports=tuple(ports),
            devices=tuple(devices),
            given_rank=given_rank,
            serves=opened.master is not None,
            machine=machine_id(),
            terms=policy.terms,
        )
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._outbox = Outbox()
        self._fence = Fence()
        self._marks: dict[int, str] = {}
        self._safe_until = 0.0
        self._startable = 0
        self._pending: participant.Start | None = None
        self._leaving: Cause | None = None
        self._leave_by: float | None = None
        self._closing = self._hurry = False
        self._told = ""
        self._link: Link | None = None
        self._thread = threading.Thread(target=self._run, name="rankspawn-session", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------- the agent's side

    def fileno(self) -> int:
        """Readable when :meth:`take` has something."""
        return self._outbox.fileno()

    def take(self) -> list[Decision]:
        """What has to be done now, in this order; never blocks."""
        return self._outbox.take()

    def may_start(self, generation: int, mark: str) -> bool:
        """Ask right before the first worker of a generation is started.

        From now on whoever carries the mark is killed if this node may have lost its lease.

        Returns:
            False if the order to start is not valid any more: then nothing may be started,
            and nothing needs to be said about it.

        Raises:
            FenceError: Nobody is there to kill the workers; nothing may be started.
        """
        self._fence.guard(mark)
        self._marks[generation] = mark
        if generation == self._startable and now() < self._safe_until:
            return True
        self.stopped(generation)
        return False

    def stopped(self, generation: int, *, ports: Sequence[int] | None = None) -> None:
        """No process of this generation is left here, for whatever reason.

        Args:
            generation: Which.
            ports: This node's ports in the next generation, if they are others.
        """
        if ports is not None:
            self._post(lambda: self._change_ports(tuple(ports)))
        mark = self._marks.pop(generation, None)
        if mark is not None:
            self._fence.release(mark)
        self._feed(participant.WorkersStopped(generation))

    def failed(self, generation: int, *, exit_code: int, text: str) -> None:
        """A worker failed by itself; its text will be readable on every node.

        The order to stop the others comes at once; workers that end after it are no failures.
        """
        cause = Cause("failed", clip(text), exit_code, host=self._me.host)
        self._feed(participant.WorkerFailed(generation, cause))

    def done(self, generation: int, *, gone: bool = True) -> None:
        """This node's part of the work ended well.

        Args:
            generation: Which.
            gone: No process of it is left. False where servers run on until all are done.
        """
        mark = self._marks.pop(generation, None) if gone else None
        if mark is not None:
            self._fence.release(mark)
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
        self._fence.close()
        self._opened.close()
        if self._link is not None:
            self._link.join_threads()
        self._outbox.close()

    # --------------------------------------------------- the deciding thread's side

    def _post(self, call: Callable[[], None]) -> None:
        self._inbox.put(call)

    def _feed(self, event: participant.Event) -> None:
        self._post(lambda: self._link.feed(event) if self._link is not None else None)

    def _tell(self, text: str) -> None:
        if text and text != self._told:
            self._outbox.put(Waiting(text))
        self._told = text

    def _run(self) -> None:
        try:
            result = self._take_part()
        except Exception as error:
            logger.exception("the rendezvous has failed")
            result = Result((Cause("broken", f"the rendezvous has failed: {error!r}"),))
        self._outbox.put(JobOver(name_silent_store(result, self._opened.address)))
        if self._link is not None:
            self._see_others_off(self._link, result)
            # Where something may still run, this node has to count as there.
            self._link.leave(revoke=not self._marks)

    def _see_others_off(self, link: Link, result: Result) -> None:
        """The master stays until the others know the end, or their leases have ended."""
        until = now() + self._policy.lease_seconds
        while self._me.serves and not self._hurry and not link.see_off(result, until):
            # Looked at again and again, because the thread that waits for changes may be
            # waiting for other ones; it takes a moment, or as long as the longest lease.
            self._wait(_SEE_OFF_SECONDS)

    def _take_part(self) -> Result:
        """From the first try to reach the store to the end, also as one member after another."""
        result = self._join(returned=False)
        while result is None:
            assert self._link is not None
            self._wait(self._seconds_to_wait(self._link))
            verdict = self._turn(self._link)
            if isinstance(verdict, participant.Rejoin):
                took_part = self._link.mine.news.stopped > 0
                self._link.leave(revoke=not self._marks)
                self._link, self._pending = None, None
                result = self._join(returned=took_part)
            else:
                result = verdict
        return result

    def _seconds_to_wait(self, link: Link) -> float | None:
        times = (link.wake_at(), self._leave_by)
        due = [when for when in times if when is not None]
        return max(0.0, min(due) - now()) if due else None

    def _wait(self, seconds: float | None) -> None:
        """Make the calls that were posted; wait for the first one."""
        with contextlib.suppress(Empty):
            call = self._inbox.get(timeout=seconds)
            while True:
                call()
                call = self._inbox.get_nowait()

    def _join(self, *, returned: bool) -> Result | None:
        """Become a member; a result if that can never be."""
        began = now()
        while not self._closing:
            if self._leaving is not None:
                return Result((self._leaving,))
            me = replace(self._me, name=_new_name(), returned=returned)
            try:
                self._link = Link(
                    self._opened.store,
                    self._keys,
                    self._policy,
                    me,
                    self._fence,
                    post=self._post,
                    held=self._note_held,
                )
            except StoreUnreachableError as error:
                if returned and now() >= began + self._policy.elastic_timeout:
                    text = f"{error}; given up after {self._policy.elastic_timeout:g} s"
                    return Result((Cause("lost", text),))
                self._tell(f"waiting for the other nodes: {error}")
            except StoreRefusedError as error:
                if now() >= began + _REFUSED_SECONDS:
                    return Result((Cause("refused", str(error)),))
            else:
                return None
            # A thousand nodes that come at once should not all come back at once.
            self._wait(_RETRY_SECONDS * (0.5 + random.random()))
        return Result((Cause("left", "closed"),))

    def _turn(self, link: Link) -> Result | participant.Rejoin | None:
        """Carry out what follows from the news; a result once this membership is over."""
        link.feed(participant.Tick())
        link.write()
        while decisions := link.take():
            for decision in decisions:
                if isinstance(decision, participant.Over):
                    return decision.result
                if isinstance(decision, participant.Rejoin):
                    return decision
                if isinstance(decision, participant.Start):
                    self._pending = decision
                else:
                    self._stop(link, decision)
            link.write()
        self._start_pending(link)
        self._tell(link.waiting)
        if self._closing:
            return Result((self._leaving or Cause("left", "closed"),))
        return self._leave_unheard(link)

    def _start_pending(self, link: Link) -> None:
        if self._pending is None or link.state is None:
            return
        nodes = link.read_nodes()
        if nodes is None:
            return
        generation, self._pending = self._pending.generation, None
        self._startable = generation
        state = link.state
        rank = state.rank_of(link.name)
        self._outbox.put(StartWorkers(generation, nodes, rank, state.restarts, state.run_id))

    def _stop(self, link: Link, stop: participant.Stop) -> None:
        self._startable = 0
        if self._pending is not None:
            # The agent never heard of these.
            self._pending = None
            link.feed(participant.WorkersStopped(stop.generation))
            return
        grace = _LAST_GRACE * self._policy.lease_seconds if stop.at_once else None
        self._outbox.put(StopWorkers(stop.generation, stop.reason, grace, stop.succeeded))

    def _leave_unheard(self, link: Link) -> Result | None:
        """Go without waiting any longer for the others to take notice."""
        if self._leaving is None or link.mine.running:
            return None
        if self._leave_by is None:
            self._leave_by = now() + self._policy.answer_seconds
        return Result((self._leaving,)) if now() >= self._leave_by else None

    def _note_held(self, safe_until: float) -> None:
        """Runs in the lease's thread, too."""
        self._safe_until = safe_until

    def _change_ports(self, ports: tuple[int, ...]) -> None:
        self._me = replace(self._me, ports=ports)
        if self._link is not None:
            self._link.describe_me(ports)

    def _ask_to_leave(self, cause: Cause) -> None:
        self._leaving = self._leaving or cause
        if self._link is not None:
            self._link.feed(participant.AskedToLeave(cause))

    def _close(self) -> None:
        self._closing = True


def _new_name() -> str:
    """Eight letters: a thousand nodes have the same with a chance of one in 400,000."""
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(8))
