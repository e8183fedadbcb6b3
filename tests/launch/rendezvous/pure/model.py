"""A model of a small job, every step of which a test can take in every order.

Nodes see the job's state late, the store hears of their news late, and the leading node decides
on members that it read a while ago: each of these is a step of its own. Leases end only after
the node's workers are gone, which is the one thing that the rules take for granted; whether the
clocks make it true is the simulation's question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rankspawn.launch.rendezvous import membership, participant
from rankspawn.launch.rendezvous.job_state import Cause, JobState, Member, News, Phase, Policy
from rankspawn.launch.rendezvous.participant import (
    AskedToLeave,
    Mine,
    Over,
    Rejoin,
    Saw,
    Start,
    Stop,
    Tick,
    WorkerFailed,
    WorkersDone,
    WorkersStopped,
)

# Of the participants' clock: a lease is good at NOW, and may have ended at LATER.
NOW, SAFE_UNTIL, LATER = 0.0, 1.0, 2.0
# Of the leading node's clock: more than any time that it waits for.
LONG = 1000.0


@dataclass(frozen=True)
class ModelNode:
    """One incarnation of a node.

    Attributes:
        mine: None if its launcher was killed.
        alive: The generation of the worker processes that exist on it.
        must_end: They were told to.
        published: What the store knows of it; None before it joined and after its lease ended.
    """

    mine: Mine | None
    alive: int = 0
    must_end: bool = False
    published: News | None = None
    lease_ended: bool = False


@dataclass(frozen=True)
class World:
    """Everything, between two steps."""

    policy: Policy
    faults_left: int
    joins_left: int
    nodes: tuple[ModelNode, ...] = ()
    state: JobState | None = None
    # What the leading node has read, and will decide on.
    read: tuple[JobState | None, tuple[tuple[int, News], ...]] | None = None

    @property
    def running(self) -> set[int]:
        """Generations of which a process exists anywhere."""
        return {node.alive for node in self.nodes if node.alive}


def name_of(index: int) -> str:
    return f"node{index}"


def successors(world: World) -> Iterator[tuple[str, World]]:
    """Each thing that could happen next, by name."""
    if world.joins_left and (world.state is None or world.state.phase is not Phase.ENDED):
        yield "join", _join(world)
    for index, node in enumerate(world.nodes):
        for what, changed in _steps_of(world, index, node):
            yield f"{what} {name_of(index)}", changed
    yield from _leading_steps(world)


def _join(world: World) -> World:
    mine = Mine(name_of(len(world.nodes)), world.policy, safe_until=SAFE_UNTIL)
    nodes = (*world.nodes, ModelNode(mine, published=mine.news))
    return replace(world, nodes=nodes, joins_left=world.joins_left - 1)


def _steps_of(world: World, index: int, node: ModelNode) -> Iterator[tuple[str, World]]:
    mine = node.mine
    if mine is not None and not mine.over:
        if world.state is not None:
            yield "deliver to", feed(world, index, Saw(world.state))
        if node.published is not None and node.published != mine.news and not mine.fenced:
            yield "publish", _set(world, index, replace(node, published=mine.news))
    if node.alive and node.must_end:
        yield "processes end on", _processes_end(world, index)
    if node.alive and not node.must_end and mine is not None:
        yield "work done on", _work_done(world, index)
    if world.faults_left:
        yield from _faults(replace(world, faults_left=world.faults_left - 1), index, node)
    if _lease_can_end(node):
        yield "lease ends of", _set(world, index, replace(node, published=None, lease_ended=True))


def _faults(world: World, index: int, node: ModelNode) -> Iterator[tuple[str, World]]:
    mine = node.mine
    if mine is None or mine.over:
        return
    if node.alive and not node.must_end:
        cause = Cause("failed", "on purpose", 7, node=mine.name)
        yield "worker fails on", feed(world, index, WorkerFailed(node.alive, cause))
    if mine.news.leaving is None:
        cause = Cause("left", "interrupted", 130, node=mine.name)
        yield "leave", feed(world, index, AskedToLeave(cause))
    if not mine.fenced:
        yield "cut off", feed(world, index, Tick(), LATER)
    # Its guardian and its fence will end its processes.
    yield "kill launcher of", _set(world, index, replace(node, mine=None, must_end=True))


def _lease_can_end(node: ModelNode) -> bool:
    """The assumption: a lease ends only when the node, or its fence, has killed its workers."""
    quiet = node.mine is None or node.mine.fenced or node.mine.over
    return node.published is not None and quiet and not node.alive


def _processes_end(world: World, index: int) -> World:
    node = world.nodes[index]
    ended = _set(world, index, replace(node, alive=0, must_end=False))
    return ended if node.mine is None else feed(ended, index, WorkersStopped(node.alive))


def _work_done(world: World, index: int) -> World:
    node = world.nodes[index]
    ended = _set(world, index, replace(node, alive=0))
    return feed(ended, index, WorkersDone(node.alive))


def _leading_steps(world: World) -> Iterator[tuple[str, World]]:
    there = tuple(
        (index, node.published)
        for index, node in enumerate(world.nodes)
        if node.published is not None
    )
    if any(node.mine is not None and not node.mine.over for node in world.nodes):
        now_read = (world.state, there)
        if world.read != now_read:
            yield "leader reads", replace(world, read=now_read)
    if world.read is not None and world.read[0] == world.state:
        for waited in (0.0, LONG):
            decided = decide(world, waited)
            if decided is not None:
                yield f"leader decides after {waited:g} s", decided


def decide(world: World, waited: float) -> World | None:
    """The leading node's compare-and-swap; None if it leaves everything as it is."""
    assert world.read is not None
    state, there = world.read
    members = {
        name_of(index): Member(
            name_of(index), f"10.0.0.{index}", order=index, updated=index, news=news
        )
        for index, news in there
    }
    begun = membership.look(
        state, members, membership.Memory(), NOW, policy=world.policy, run_id="run"
    )
    verdict = membership.look(
        state, members, begun.memory, NOW + waited, policy=world.policy, run_id="run"
    )
    if verdict.state is None or verdict.state == state:
        return None
    return replace(world, state=verdict.state, read=None)


def feed(world: World, index: int, event: participant.Event, now: float = NOW) -> World:
    """One event for one node, and the state that it last saw stays with it."""
    node = world.nodes[index]
    assert node.mine is not None
    mine, decisions = participant.step(node.mine, event, now)
    node = replace(node, mine=mine)
    for decision in decisions:
        if isinstance(decision, Start):
            assert not node.alive, "started while workers run"
            node = replace(node, alive=decision.generation, must_end=False)
        elif isinstance(decision, Stop):
            node = replace(node, must_end=bool(node.alive))
            if not node.alive:
                # They ended by themselves before they were told.
                mine, _ = participant.step(mine, WorkersStopped(decision.generation), now)
                node = replace(node, mine=mine)
        elif isinstance(decision, Over | Rejoin):
            assert not node.alive, "over while workers run"
    return _set(world, index, node)


def _set(world: World, index: int, node: ModelNode) -> World:
    nodes = (*world.nodes[:index], node, *world.nodes[index + 1 :])
    return replace(world, nodes=nodes)
