"""One node's part in a job, without its effects: store entries and events in, writes out.

Pure: the same code runs in a session, with threads and a real store, and in the tests'
simulation of a thousand nodes.

Any node can lead. The leading node alone watches the entries of all members and asks the rules
of ``job_rules`` what comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rankspawn.launch.rendezvous import job_rules, participant
from rankspawn.launch.rendezvous.job_state import JobState, Member, Phase
from rankspawn.launch.rendezvous.records import (
    Keys,
    read_member,
    read_state,
    write_group,
    write_member,
    write_state,
)
from rankspawn.launch.rendezvous.store import Changes, Entry, Snapshot

# Who waits reads a text, so it need not be up to date to the millisecond; and each change of it
# goes to every node.
_WAITING_INTERVAL = 1.0


@dataclass(frozen=True, slots=True)
class Write:
    """A change for the store to make.

    Attributes:
        key: Where.
        value: What; None deletes.
        expected: The revision that the entry must still have, 0 for none; None if it does
            not matter.
        leased: Bound to this node's lease.
    """

    key: str
    value: str | None
    expected: int | None = None
    leased: bool = False


class NodeLogic:
    """What one member knows, and the steps and writes that follow from it.

    Args:
        keys: Where the job's entries are.
        me: This node as the others will see it.
        node: The same from inside, with a lease.
        new_id: Makes a text that nobody else makes.
    """

    def __init__(
        self,
        keys: Keys,
        me: Member,
        node: participant.NodeState,
        new_id: Callable[[], str],
    ) -> None:
        self.node: participant.NodeState = node
        self.wake_at: float | None = None
        self.state: JobState | None = None
        self.group_key: str = ""
        self._keys = keys
        self._me = me
        self._new_id = new_id
        self._observed = job_rules.Observed()
        self.revision: int = 0
        self._entries: dict[str, Entry] = {}
        self._members: dict[str, Member] = {}
        # What the store has of this node.
        self._said: Member | None = None
        self._waiting = ""
        self._waiting_since = 0.0

    @property
    def name(self) -> str:
        """The name of this member."""
        return self.node.name

    @property
    def leads(self) -> bool:
        """Whether this node decides for all."""
        leader = self._entries.get(self._keys.leader)
        return leader is not None and leader.value == self.name

    @property
    def watched(self) -> str:
        """The prefix of the entries that this node has to know."""
        return self._keys.root if self.leads else self._keys.job

    @property
    def waiting(self) -> str:
        """A text for people about what the job waits for; empty if for nothing."""
        entry = self._entries.get(self._keys.waiting)
        return self._waiting if self.leads else entry.value if entry else ""

    def learn(self, found: Snapshot | Changes, prefix: str) -> None:
        """Take up what the store says about the entries with this prefix."""
        if found.revision < self.revision:
            return  # an older answer that came later: time does not go back
        if isinstance(found, Snapshot):
            self._forget(
                set(self._entries) - {entry.key for entry in found.entries}, found.revision
            )
        elif prefix != self.watched and prefix != self._keys.root:
            return  # an answer from before this node led
        else:
            self._forget(found.deleted, found.revision)
        self.revision = found.revision
        for entry in found.entries:
            known = self._entries.get(entry.key)
            if known is None or known.revision < entry.revision:
                self._take(entry)

    def feed(self, event: participant.Event, now: float) -> list[participant.Step]:
        """Take up an event of this node, and say what its agent has to do."""
        self.node, steps = participant.react(self.node, event, now)
        if self.state is None:
            return list(steps)
        self.node, more = participant.react(self.node, participant.Saw(self.state), now)
        return [*steps, *more]

    def writes(self, now: float) -> list[Write]:
        """What the store should be told now, in this order; what it refuses comes again."""
        self.wake_at = None
        if self.node.over or self.node.fenced:
            return []
        self.wake_at = self.node.lost_at
        found = []
        if self._me.report != self.node.report:
            self._me = replace(self._me, report=self.node.report)
        if self._me != self._said:
            found.append(Write(self._keys.node(self.name), write_member(self._me), leased=True))
        if self._keys.leader not in self._entries:
            # Whoever is first; bound to its lease, so that the next one can follow a dead leader.
            found.append(Write(self._keys.leader, self.name, expected=0, leased=True))
        elif self.leads and self.name in self._members:
            found += self._lead(now)
        return found

    def accepted(self, write: Write, revision: int) -> None:
        """The store has taken this, so it need not be told again."""
        if write.key == self._keys.node(self.name):
            said = read_member(Entry(write.key, write.value or "", 0, 0))
            # One object for the same facts, so that comparing them again and again is cheap.
            self._said = self._me if said == self._me else said
        elif write.key.startswith(self._keys.job) and write.value is not None:
            self._take(Entry(write.key, write.value, revision, revision))

    def refused(self, write: Write) -> list[Write]:
        """Another node was faster; what has to be cleaned up.

        The store will tell what it has instead.
        """
        if write.key != self._keys.state or write.value is None:
            return []
        _, group_key = read_state(Entry(write.key, write.value, 0, 0))
        is_new = group_key and group_key != self.group_key
        return [Write(group_key, None)] if is_new else []

    def describe_me(self, ports: tuple[int, ...]) -> None:
        """Have the others see other ports of this node."""
        self._me = replace(self._me, ports=ports)

    def _lead(self, now: float) -> list[Write]:
        decided = job_rules.next_state(
            self.state,
            self._members,
            self._observed,
            now,
            terms=self.node.terms,
            run_id=self._new_id(),
        )
        self._observed = decided.observed
        if decided.wake_at is not None:
            self.wake_at = min(decided.wake_at, self.node.lost_at)
        if decided.state is not None:
            return self._change_state(decided.state)
        return self._tell_waiting(decided.waiting, now)

    def _change_state(self, state: JobState) -> list[Write]:
        before = self._entries.get(self._keys.state)
        # Should two lead for a moment, only one of them makes the next change.
        expected = before.revision if before else 0
        found = []
        group_key = self.group_key
        if state.phase is Phase.RUNNING and (
            self.state is None or state.generation != self.state.generation
        ):
            # A name of its own: another node that leads, too, may describe another group.
            group_key = f"{self._keys.groups}{state.generation}-{self._new_id()}"
            found.append(Write(group_key, write_group(state.group, self._members)))
        found.append(Write(self._keys.state, write_state(state, group_key), expected=expected))
        if self.group_key and group_key != self.group_key:
            found.append(Write(self.group_key, None))
        return found

    def _tell_waiting(self, text: str, now: float) -> list[Write]:
        entry = self._entries.get(self._keys.waiting)
        self._waiting = text
        if text == (entry.value if entry else ""):
            return []
        if text and now < self._waiting_since + _WAITING_INTERVAL:
            tell_at = self._waiting_since + _WAITING_INTERVAL
            self.wake_at = min(self.wake_at or tell_at, tell_at)
            return []
        self._waiting_since = now
        return [Write(self._keys.waiting, text)]

    def _take(self, entry: Entry) -> None:
        self._entries[entry.key] = entry
        if entry.key.startswith(self._keys.nodes):
            self._members[entry.key.removeprefix(self._keys.nodes)] = read_member(entry)
        if entry.key == self._keys.state:
            self.state, self.group_key = read_state(entry)

    def _forget(self, keys: Iterable[str], revision: int) -> None:
        for key in keys:
            known = self._entries.get(key)
            if known is not None and known.revision > revision:
                continue  # written since by this node itself
            self._entries.pop(key, None)
            self._members.pop(key.removeprefix(self._keys.nodes), None)
            if key == self._keys.state:
                self.state, self.group_key = None, ""
