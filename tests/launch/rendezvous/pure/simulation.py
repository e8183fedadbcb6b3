"""A simulated cluster: the real logic of nodes and the real store's memory, in simulated time.

Everything else is made up, and hostile: messages take their time or get lost, links are cut,
clocks run at their own rates, launchers are killed or stand still, and workers end as late as
they may. After each step it is checked that the processes that exist anywhere are all of one
generation.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rankspawn.launch.rendezvous.fence import LeaseTimes
from rankspawn.launch.rendezvous.job_state import JobTerms, Member, Phase
from rankspawn.launch.rendezvous.keyvalues import KeyValues
from rankspawn.launch.rendezvous.node_logic import NodeLogic, Write
from rankspawn.launch.rendezvous.participant import (
    AskedToLeave,
    Event,
    LeaseEnded,
    LeaseHeld,
    NodeState,
    Over,
    Rejoin,
    Start,
    Step,
    Stop,
    Tick,
    WorkerFailed,
    WorkersDone,
    WorkersStopped,
)
from rankspawn.launch.rendezvous.records import Keys, read_state
from rankspawn.launch.rendezvous.store import (
    Changes,
    Lease,
    LeaseExpiredError,
    RevisionGoneError,
    Snapshot,
)
from rankspawn.launch.session import Cause

KEYS = Keys("simulated")
# What the assumptions of LeaseTimes allow: rates, and how long a kill takes (of the lease).
DRIFT = 0.01
KILL_TIME = 0.17


@dataclass
class Conditions:
    """How bad the network is, in seconds and probabilities."""

    delay: tuple[float, float] = (0.0005, 0.01)
    slow: float = 0.02
    slow_delay: float = 1.5
    loss: float = 0.005


@dataclass(eq=False)
class SimNode:
    """One machine; it keeps its workers' processes when its launcher is gone."""

    index: int
    rate: float
    linked: bool = True
    frozen_until: float = 0.0
    logic: NodeLogic | None = None
    lease: Lease | None = None
    # Counts incarnations, so that what was meant for an earlier one is not heard.
    life: int = 0
    # Each incarnation's processes, and when its own fence kills them.
    alive: dict[int, int] = field(default_factory=dict)
    fence_at: dict[int, float] = field(default_factory=dict)
    busy: bool = False
    wake: float = 0.0
    outcomes: list[Step] = field(default_factory=list)


class Cluster:
    """Nodes, a store, and the time."""

    def __init__(
        self, terms: JobTerms, count: int, seed: int, conditions: Conditions | None = None
    ) -> None:
        self.terms = terms
        self.random = random.Random(seed)
        self.conditions = conditions or Conditions()
        self.time = 0.0
        self.times = LeaseTimes(terms.lease_seconds, fenced=terms.survives_loss)
        self.store = KeyValues(first_revision=1)
        self.store_rate = 1 + self.random.uniform(-DRIFT, DRIFT)
        self.store_up = True
        self.nodes = [
            SimNode(index, 1 + self.random.uniform(-DRIFT, DRIFT)) for index in range(count)
        ]
        self.processes: Counter[int] = Counter()
        self.most_nodes: Counter[int] = Counter()
        self.steps = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._ids = itertools.count(1)
        # Waiting requests for changes, by prefix, and how to answer them.
        self._waiting: dict[str, dict[SimNode, Callable[[], None]]] = {KEYS.job: {}, KEYS.root: {}}
        self._expire_at: float | None = None
        self._notified = 0

    # ------------------------------------------------------------------ time

    def later(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.time + delay, next(self._number), action))

    def run(self, until: float, condition: Callable[[], bool] | None = None) -> bool:
        """Let time pass; True as soon as the condition holds."""
        while self._queue and self._queue[0][0] <= until:
            self.time, _, action = heapq.heappop(self._queue)
            action()
            self.steps += 1
            assert len(self.processes) <= 1, (
                f"two generations at {self.time:.3f} s: {dict(self.processes)}"
            )
            if condition is not None and condition():
                return True
        self.time = max(self.time, until)
        return condition is not None and condition()

    def clock(self, node: SimNode) -> float:
        return self.time * node.rate + 1000.0 * node.index

    # ----------------------------------------------------------------- store

    def request(
        self, node: SimNode, perform: Callable[[], object], answer: Callable[[object], None]
    ) -> None:
        """A call to the store; the answer may be a TimeoutError, after the call's effect."""
        life = node.life
        done: list[bool] = []

        def hear(result: object) -> None:
            if node.life == life and not done:
                done.append(True)
                self._when_awake(node, life, lambda: answer(result))

        def arrive() -> None:
            if self.store_up:
                result = _attempt(perform)
                self._notify()
                self._send(node, lambda: hear(result))

        self._send(node, arrive)
        self.later(self.times.answer_within, lambda: hear(TimeoutError()))

    def _send(self, node: SimNode, action: Callable[[], None]) -> None:
        conditions = self.conditions
        if not node.linked or self.random.random() < conditions.loss:
            return
        slow = self.random.random() < conditions.slow
        most = conditions.slow_delay if slow else conditions.delay[1]
        self.later(self.random.uniform(conditions.delay[0], most), action)

    def _when_awake(self, node: SimNode, life: int, action: Callable[[], None]) -> None:
        if node.frozen_until > self.time:
            self.later(
                node.frozen_until - self.time,
                lambda: self._when_awake(node, life, action),
            )
        elif node.life == life:
            action()

    def _later(self, node: SimNode, delay: float, action: Callable[[], None]) -> None:
        life = node.life
        self.later(delay, lambda: self._when_awake(node, life, action))

    def _notify(self) -> None:
        """Answer waiting requests, and note when the next lease ends."""
        ends_at = self.store.expire(self.time * self.store_rate)
        if ends_at is not None and ends_at != self._expire_at:
            self._expire_at = ends_at
            self.later(ends_at / self.store_rate - self.time + 1e-6, self._expire)
        if self.store.revision == self._notified:
            return
        changed = self.store.changed_keys(self._notified)
        self._notified = self.store.revision
        for prefix, waiting in self._waiting.items():
            if any(key.startswith(prefix) for key in changed):
                answers = list(waiting.values())
                waiting.clear()
                for answer in answers:
                    answer()

    def _has_changes(self, prefix: str, after: int) -> bool:
        try:
            changes = self.store.changes(prefix, after)
        except RevisionGoneError:
            return True
        return bool(changes.entries or changes.deleted)

    def _expire(self) -> None:
        self._expire_at = None
        self._notify()

    # ------------------------------------------------------------------ nodes

    def join(self, node: SimNode, *, returned: bool = False) -> None:
        """Get a lease, enter the store, and begin to watch."""
        node.life += 1
        node.busy = False
        node.logic = None
        sent = self.clock(node)

        def granted(answer: object) -> None:
            if not isinstance(answer, Lease):
                self._later(node, 0.2, lambda: self.join(node, returned=returned))
                return
            node.lease = answer
            name = f"n{node.index}.{node.life}"
            me = Member(
                name,
                f"10.{node.index // 250}.0.{node.index % 250}",
                (6070,),
                flags=self.terms.flags,
                returned=returned,
            )
            safe_until = self.times.safe_until(sent)
            node_state = NodeState(name, self.terms, safe_until=safe_until, spare=self.times.spare)
            node.logic = NodeLogic(KEYS, me, node_state, lambda: f"id{next(self._ids)}")
            self._extend_fence(node, life, sent)
            self.later(self.times.renew_every, lambda: self._renew(node, life))
            self._read(node, KEYS.job)
            self._turn(node)

        life = node.life
        seconds = self.terms.lease_seconds
        self.request(node, lambda: self.store.grant(seconds, self.time * self.store_rate), granted)

    def _renew(self, node: SimNode, life: int) -> None:
        if node.life != life:
            return
        if node.frozen_until > self.time:
            self._when_awake(node, life, lambda: self._renew(node, life))
            return
        sent = self.clock(node)
        lease = node.lease
        assert lease is not None

        def renewed(answer: object) -> None:
            if isinstance(answer, LeaseExpiredError):
                self.feed(node, LeaseEnded())
            elif not isinstance(answer, TimeoutError):
                self._extend_fence(node, life, sent)
                self.feed(node, LeaseHeld(self.times.safe_until(sent)))

        self.request(node, lambda: self.store.renew(lease.id, self.time * self.store_rate), renewed)
        self.later(self.times.renew_every / node.rate, lambda: self._renew(node, life))

    def _extend_fence(self, node: SimNode, life: int, sent: float) -> None:
        """The fence is a process of its own: it acts whatever became of the launcher."""
        if not self.terms.survives_loss:
            return
        node.fence_at[life] = self.times.fence_at(sent)
        wait = (node.fence_at[life] - self.clock(node)) / node.rate
        self.later(max(0.0, wait) + 1e-6, lambda: self._fence(node, life))

    def _fence(self, node: SimNode, life: int) -> None:
        generation = node.alive.get(life)
        if generation is not None and self.clock(node) >= node.fence_at[life]:
            kill_time = self.random.uniform(0, KILL_TIME * self.terms.lease_seconds)
            self.later(kill_time, lambda: self._processes_end(node, life, generation))

    def _read(self, node: SimNode, prefix: str) -> None:
        """Everything with this prefix, and then its changes."""

        def read(answer: object) -> None:
            if isinstance(answer, Snapshot):
                self._learn(node, answer, prefix)
            else:
                self._later(node, 0.2, lambda: self._read(node, prefix))

        self.request(node, lambda: self.store.prefix(prefix), read)

    def _watch(self, node: SimNode, prefix: str, after: int) -> None:
        life = node.life
        answered: list[bool] = []

        def hear(changes: object) -> None:
            if node.life != life or answered:
                return
            answered.append(True)
            if isinstance(changes, Changes):
                self._when_awake(node, life, lambda: self._learn(node, changes, prefix))
            else:
                self._when_awake(node, life, lambda: self._read(node, prefix))

        def answer() -> None:
            result = _attempt(lambda: self.store.changes(prefix, after))
            self._send(node, lambda: hear(result))

        def arrive() -> None:
            if self._has_changes(prefix, after):
                answer()
            else:
                self._waiting[prefix][node] = answer

        self._send(node, arrive)
        # Whether the answer got lost or nothing happened: ask again.
        self.later(0.5 * self.times.seconds, lambda: hear(TimeoutError()))

    def _learn(self, node: SimNode, report: Snapshot | Changes, prefix: str) -> None:
        logic = node.logic
        if logic is None:
            return
        logic.learn(report, prefix)
        if logic.watched == prefix:
            self._watch(node, prefix, report.revision)
        else:
            self._read(node, logic.watched)
        self.feed(node, Tick())

    def feed(self, node: SimNode, event: Event) -> None:
        if node.logic is None:
            return
        for step in node.logic.feed(event, self.clock(node)):
            self._obey(node, step)
        self._turn(node)

    def _obey(self, node: SimNode, step: Step) -> None:
        lease = self.terms.lease_seconds
        if isinstance(step, Start):
            self._start(node, step.generation)
        elif isinstance(step, Stop):
            generation = step.generation
            grace = 0.01 * lease if step.at_once else self.random.choice([0.1, lease])
            life = node.life
            self.later(
                self.random.uniform(0, grace),
                lambda: self._processes_end(node, life, generation),
            )
        elif isinstance(step, Rejoin):
            node.life += 1
            node.logic = None
            self._later(node, 0.5, lambda: self.join(node, returned=True))
        elif isinstance(step, Over):
            node.outcomes.append(step)
            self._leave(node)

    def _leave(self, node: SimNode) -> None:
        lease = node.lease
        node.life += 1
        node.logic = None
        if lease is not None:
            self.request(node, lambda: self.store.revoke(lease.id), lambda _: None)

    def _start(self, node: SimNode, generation: int) -> None:
        assert node.life not in node.alive, "started while workers run"
        fence_at = node.fence_at.get(node.life, float("inf"))
        assert self.clock(node) < fence_at, "started behind the fence"
        node.alive[node.life] = generation
        self.processes[generation] += 1
        self.most_nodes[generation] = max(self.most_nodes[generation], self.processes[generation])

    def _processes_end(self, node: SimNode, life: int, generation: int) -> None:
        if node.alive.get(life) == generation:
            del node.alive[life]
            self.processes -= Counter({generation: 1})
        self._when_awake(node, life, lambda: self.feed(node, WorkersStopped(generation)))

    def _turn(self, node: SimNode) -> None:
        """Have the store told what it should be told, one thing after the other."""
        logic = node.logic
        if logic is None or node.busy:
            return
        writes = logic.writes(self.clock(node))
        if logic.wake_at is not None:
            self._wake(node, logic.wake_at)
        if writes:
            node.busy = True
            self._perform(node, logic, writes)

    def _perform(self, node: SimNode, logic: NodeLogic, writes: list[Write]) -> None:
        if not writes:
            node.busy = False
            self._turn_later(node)
            return
        first, *rest = writes
        assert node.lease is not None
        # Of this incarnation: it may be another one's turn when the request arrives.
        lease = node.lease.id if first.leased else 0

        def answered(answer: object) -> None:
            if isinstance(answer, int):
                logic.accepted(first, answer)
                if logic.watched == KEYS.root and first.key == KEYS.leader:
                    self._read(node, KEYS.root)
                self._perform(node, logic, rest)
            elif answer is None:
                self._perform(node, logic, logic.refused(first))
            else:
                # Unreachable, or the lease is gone: its own events tell of it.
                node.busy = False
                self._later(node, 0.2, lambda: self._turn(node))

        self.request(node, lambda: self._write(first, lease), answered)

    def _turn_later(self, node: SimNode) -> None:
        """Not at once after a refusal, which the store's changes will explain."""
        self._later(node, 0.05, lambda: self.feed(node, Tick()))

    def _write(self, write: Write, lease: int) -> int | None:
        if write.expected is not None:
            return self.store.swap(write.key, write.expected, write.value, lease=lease)
        if write.value is None:
            self.store.delete(write.key)
            return self.store.revision
        return self.store.put(write.key, write.value, lease=lease)

    def _wake(self, node: SimNode, when: float) -> None:
        wait = (when - self.clock(node)) / node.rate
        if self.time < node.wake <= self.time + wait:
            return
        node.wake = self.time + max(0.0, wait) + 1e-6
        self._later(node, max(0.0, wait) + 1e-6, lambda: self.feed(node, Tick()))

    # ----------------------------------------------------------------- trouble

    def kill_launcher(self, node: SimNode) -> None:
        """Nobody is left but the fence."""
        node.life += 1
        node.logic = None

    def freeze(self, node: SimNode, seconds: float) -> None:
        node.frozen_until = self.time + seconds

    def fail_worker(self, node: SimNode) -> None:
        if node.life in node.alive:
            cause = Cause("failed", f"failed on node {node.index}", 7)
            self.feed(node, WorkerFailed(node.alive[node.life], cause))

    def finish(self, node: SimNode) -> None:
        """This node's workers end well."""
        generation = node.alive.pop(node.life, None)
        if generation is not None:
            self.processes -= Counter({generation: 1})
            self.feed(node, WorkersDone(generation))

    def leave(self, node: SimNode) -> None:
        self.feed(node, AskedToLeave(Cause("left", "preempted", 143)))

    # --------------------------------------------------------------- questions

    @property
    def working(self) -> int:
        """How many nodes have workers."""
        return sum(self.processes.values())

    @property
    def phase(self) -> Phase | None:
        entry = self.store.get(KEYS.state)
        return read_state(entry)[0].phase if entry else None


def _attempt(perform: Callable[[], object]) -> object:
    try:
        result = perform()
    except (LeaseExpiredError, RevisionGoneError) as error:
        return error
    return result
