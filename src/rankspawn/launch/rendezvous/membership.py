"""One membership of a node: from its lease to its leaving.

All methods are called by the session's deciding thread. What the lease's thread and the changes'
thread hear comes back to it through ``post``, as calls to be made.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace

from rankspawn.launch.programs import Node
from rankspawn.launch.rendezvous import participant
from rankspawn.launch.rendezvous.client import MasterStore
from rankspawn.launch.rendezvous.fence import Fence, LeaseTimes, now
from rankspawn.launch.rendezvous.job_state import JobState, JobTerms, Member, Phase
from rankspawn.launch.rendezvous.last_word import words_of
from rankspawn.launch.rendezvous.node_logic import NodeLogic, Write
from rankspawn.launch.rendezvous.records import Keys, read_group, read_member, read_state
from rankspawn.launch.rendezvous.store import (
    Changes,
    LeaseExpiredError,
    RevisionGoneError,
    Snapshot,
    Store,
    StoreError,
    StoreUnreachableError,
)
from rankspawn.launch.rendezvous.store_threads import RETRY_SECONDS, ChangeWatcher, LeaseKeeper
from rankspawn.launch.session import JobResult

logger: logging.Logger = logging.getLogger(__name__)


class Membership:
    """A node's membership in its job: its lease, its entries, and what follows from those of all.

    Args:
        store: The job's.
        keys: Where its entries are.
        terms: The job's.
        me: This node; it joins under this name.
        fence: Kills this node's workers if its lease may be lost; None if nobody goes on then.
        post: Has a call made by the deciding thread.
        held: Is told up to when the lease is safe, by the lease's own thread.

    Raises:
        StoreError: The store cannot be reached, or refuses.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        terms: JobTerms,
        me: Member,
        fence: Fence | None,
        *,
        post: Callable[[Callable[[], None]], None],
        held: Callable[[float], None],
    ) -> None:
        self._store = store
        self._keys = keys
        self._post = post
        self._fence = fence
        self._told_held = held
        self._steps: list[participant.Step] = []
        self._retry_at: float | None = None
        sent = now()
        self._lease = store.grant(terms.lease_seconds)
        if fence is not None and isinstance(store, MasterStore):
            fence.give_back(words_of(store, self._lease.id))
        # A store may grant more time than was asked for; then there is more.
        self._times = LeaseTimes(self._lease.seconds, fenced=fence is not None)
        ended = _ended_run(store, keys)
        node = participant.NodeState(
            me.name,
            terms,
            ignores=ended,
            safe_until=self._note_held(sent),
            report=me.report,
            spare=self._times.spare,
        )
        self._logic = NodeLogic(keys, replace(me, ignores=ended), node, _new_id)
        self._keeper = LeaseKeeper(
            store,
            self._lease,
            self._times,
            held=self._hear_held,
            lost=lambda: post(lambda: self.feed(participant.LeaseEnded())),
        )
        self._watcher = ChangeWatcher(store, self._times.seconds / 2, self._hear)
        self._watcher.watch(keys.job, None)

    @property
    def name(self) -> str:
        """The name of this member."""
        return self._logic.name

    @property
    def state(self) -> JobState | None:
        """The state of the job; None while it is not known."""
        return self._logic.state

    @property
    def node(self) -> participant.NodeState:
        """The state of this node, from inside."""
        return self._logic.node

    @property
    def waiting(self) -> str:
        """What this node waits for, for people; empty if for nothing but its workers."""
        state = self.state
        if state is None or self.node.running:
            return ""
        if state.phase is Phase.ENDED:
            return "an earlier run of this job is ending"
        if state.phase is Phase.RUNNING and state.rank_of(self.name) < 0:
            size = f"{len(state.group)} of at most {state.terms.max_nodes} nodes"
            return f"the job runs with {size}; this one waits in reserve"
        return self._logic.waiting

    def feed(self, event: participant.Event) -> None:
        """Take up an event."""
        self._steps += self._logic.feed(event, now())

    def take(self) -> list[participant.Step]:
        """What follows from all events since the last call."""
        taken, self._steps = self._steps, []
        return taken

    def describe_me(self, ports: tuple[int, ...]) -> None:
        """Have the others see other ports of this node in the next generation."""
        self._logic.describe_me(ports)

    def write(self) -> None:
        """Tell the store what it should be told."""
        self._retry_at = None
        for _ in range(10):  # what is taken may lead to more, but not for ever
            writes = self._logic.writes(now())
            if not writes or not self._write_all(writes):
                return
            self.feed(participant.Tick())

    def wake_at(self) -> float | None:
        """When something is due even if nothing happens."""
        times = (self._logic.wake_at, self._retry_at)
        return min((when for when in times if when is not None), default=None)

    def read_nodes(self) -> tuple[Node, ...] | None:
        """The nodes of the newest generation; None if they cannot be read right now."""
        try:
            entry = self._store.get(self._logic.group_key)
        except StoreUnreachableError:
            entry = None
        if entry is None:
            self._retry_at = now() + RETRY_SECONDS
            return None
        return read_group(entry.value)

    def see_off(self, result: JobResult, until: float) -> bool:
        """Whether all others have left, or need not be waited for."""
        silent = {cause.node for cause in result.causes if cause.kind == "silent"}
        try:
            there = [read_member(entry) for entry in self._store.prefix(self._keys.nodes).entries]
        except StoreError:
            return True
        run_id = "" if self.state is None else self.state.run_id
        # Who came after the end waits for the next run, and its master.
        names = {member.name for member in there if not run_id or member.ignores != run_id}
        return not names - silent - {self.name} or now() >= until

    def leave(self, *, revoke: bool = True) -> None:
        """Let go of the lease, and of everything in the store if nobody else is there.

        Args:
            revoke: Have the store forget this node at once. Not if something of it may still
                run: then it has to count as there until its lease ends.
        """
        self._keeper.stop()
        self._watcher.stop()
        if not revoke:
            return
        # If the store is gone, so is the need to tell it anything.
        with contextlib.suppress(StoreError):
            self._store.revoke(self._lease.id)
            self._clean_up()

    def join_threads(self) -> None:
        """Wait for the end of a wait for changes; its store must have been closed."""
        self._watcher.join()

    def _clean_up(self) -> None:
        """The last one to leave takes what is not bound to a lease."""
        state = self.state
        if state is None or state.phase is not Phase.ENDED:
            return
        left = self._store.prefix(self._keys.root).entries
        if any(entry.key.startswith(self._keys.nodes) for entry in left):
            return
        for entry in left:
            # By its revision: somebody may begin the next run just now.
            self._store.swap(entry.key, entry.revision, None)

    def _write_all(self, writes: list[Write]) -> bool:
        """Have them made one after the other; False if not all could be."""
        for write in writes:
            try:
                revision = self._make(write)
            except LeaseExpiredError:
                self.feed(participant.LeaseEnded())
                return False
            except StoreUnreachableError:
                self._retry_at = now() + RETRY_SECONDS
                return False
            if revision is None:
                # Another node was faster. Its change will be heard of.
                self._write_all(self._logic.refused(write))
                return False
            self._logic.accepted(write, revision)
        return True

    def _make(self, write: Write) -> int | None:
        lease = self._lease.id if write.leased else 0
        if write.expected is not None:
            return self._store.swap(write.key, write.expected, write.value, lease=lease)
        if write.value is not None:
            return self._store.put(write.key, write.value, lease=lease)
        self._store.delete(write.key)
        return 0

    def _hear_held(self, sent: float) -> None:
        """Tell up to when the lease is good; runs in the lease's thread."""
        safe_until = self._note_held(sent)
        self._post(lambda: self.feed(participant.LeaseHeld(safe_until)))

    def _note_held(self, sent: float) -> float:
        """Up to when the lease is good, by a renewal that was sent at this time."""
        # The fence first: the session may be busy, and the workers must not die of that.
        if self._fence is not None:
            self._fence.extend(self._times.fence_at(sent))
        safe_until = self._times.safe_until(sent)
        self._told_held(safe_until)
        return safe_until

    def _hear(self, prefix: str, after: int | None, found: Snapshot | Changes | StoreError) -> None:
        """Have the deciding thread learn what was found; runs in the changes' thread."""
        self._post(lambda: self._learn(prefix, after, found))

    def _learn(
        self, prefix: str, after: int | None, found: Snapshot | Changes | StoreError
    ) -> None:
        if isinstance(found, Snapshot | Changes):
            self._logic.learn(found, prefix)
            after = found.revision
        elif isinstance(found, RevisionGoneError):
            after = None
        wanted = self._logic.watched
        self._watcher.watch(wanted, after if wanted == prefix else None)
        self.feed(participant.Tick())


def _ended_run(store: Store, keys: Keys) -> str:
    """The run that has ended before this node came; empty if the last one goes on."""
    entry = store.get(keys.state)
    if entry is None:
        return ""
    state, _ = read_state(entry)
    return state.run_id if state.phase is Phase.ENDED else ""


def _new_id() -> str:
    return secrets.token_hex(6)
