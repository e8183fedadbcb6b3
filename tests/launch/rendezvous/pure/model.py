"""A model of a small job, every step of which a test can take in every order.

Nodes see the job's state late, the store hears their reports late, and the leading node decides
on members that it read a while ago: each of these is a step of its own. Leases end only after
the node's workers are gone, which is the one thing that the rules take for granted where a job goes
on after a loss; whether the clocks make it true is the simulation's question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rankspawn.launch.rendezvous import job_rules, participant
from rankspawn.launch.rendezvous.job_state import JobState, JobTerms, Member, NodeReport, Phase
from rankspawn.launch.rendezvous.participant import (
    AskedToLeave,
    NodeState,
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
from rankspawn.launch.session import Cause

# Of the participants' clock: a lease is good at NOW, and may have ended at LATER.
NOW, SAFE_UNTIL, LATER = 0.0, 1.0, 2.0
# Of the leading node's clock: more than any time that it waits for.
LONG = 1000.0


@dataclass(frozen=True)
class ModelNode:
    """One incarnation of a node.

    Attributes:
        node_state: None if its launcher was killed.
        alive: The generation of the worker processes that exist on it.
        must_end: They were told to.
        published: What the store knows of it; None before it joined and after its lease ended.
    """

    node_state: NodeState | None
    alive: int = 0
    must_end: bool = False
    published: NodeReport | None = None
    lease_ended: bool = False


@dataclass(frozen=True)
class World:
    """Everything, between two steps."""

    terms: JobTerms
    faults_left: int
    joins_left: int
    nodes: tuple[ModelNode, ...] = ()
    state: JobState | None = None
    # What the leading node has read, and will decide on.
    read: tuple[JobState | None, tuple[tuple[int, NodeReport], ...]] | None = None

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
    node_state = NodeState(name_of(len(world.nodes)), world.terms, safe_until=SAFE_UNTIL)
    nodes = (*world.nodes, ModelNode(node_state, published=node_state.report))
    return replace(world, nodes=nodes, joins_left=world.joins_left - 1)


def _steps_of(world: World, index: int, node: ModelNode) -> Iterator[tuple[str, World]]:
    node_state = node.node_state
    if node_state is not None and not node_state.over:
        if world.state is not None:
            yield "deliver to", feed(world, index, Saw(world.state))
        if (
            node.published is not None
            and node.published != node_state.report
            and not node_state.fenced
        ):
            yield "publish", _set(world, index, replace(node, published=node_state.report))
    if node.alive and node.must_end:
        yield "processes end on", _processes_end(world, index)
    if node.alive and not node.must_end and node_state is not None:
        yield "work done on", _work_done(world, index)
    if world.faults_left:
        yield from _faults(replace(world, faults_left=world.faults_left - 1), index, node)
    if _lease_can_end(world, node):
        yield "lease ends of", _set(world, index, replace(node, published=None, lease_ended=True))


def _faults(world: World, index: int, node: ModelNode) -> Iterator[tuple[str, World]]:
    node_state = node.node_state
    if node_state is None or node_state.over:
        return
    if node.alive and not node.must_end:
        cause = Cause("failed", "on purpose", 7, node=node_state.name)
        yield "worker fails on", feed(world, index, WorkerFailed(node.alive, cause))
    if node_state.report.leaving is None:
        cause = Cause("left", "interrupted", 130, node=node_state.name)
        yield "leave", feed(world, index, AskedToLeave(cause))
    if not node_state.fenced:
        yield "cut off", feed(world, index, Tick(), LATER)
    # Its guardian and its fence will end its processes.
    yield "kill launcher of", _set(world, index, replace(node, node_state=None, must_end=True))


def _lease_can_end(world: World, node: ModelNode) -> bool:
    """The assumption: a lease ends only when the node, or its fence, has killed its workers.

    Where nobody goes on after a loss, they may live.
    """
    quiet = node.node_state is None or node.node_state.fenced or node.node_state.over
    may_end = not node.alive or not world.terms.survives_loss
    return node.published is not None and quiet and may_end


def _processes_end(world: World, index: int) -> World:
    node = world.nodes[index]
    ended = _set(world, index, replace(node, alive=0, must_end=False))
    return ended if node.node_state is None else feed(ended, index, WorkersStopped(node.alive))


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
    if any(node.node_state is not None and not node.node_state.over for node in world.nodes):
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
            name_of(index), f"10.0.0.{index}", order=index, updated=index, report=report
        )
        for index, report in there
    }
    begun = job_rules.next_state(
        state, members, job_rules.Observed(), NOW, terms=world.terms, run_id="run"
    )
    decided = job_rules.next_state(
        state, members, begun.observed, NOW + waited, terms=world.terms, run_id="run"
    )
    if decided.state is None or decided.state == state:
        return None
    return replace(world, state=decided.state, read=None)


def feed(world: World, index: int, event: participant.Event, now: float = NOW) -> World:
    """One event for one node, and the state that it last saw stays with it."""
    node = world.nodes[index]
    assert node.node_state is not None
    node_state, steps = participant.react(node.node_state, event, now)
    node = replace(node, node_state=node_state)
    for step in steps:
        if isinstance(step, Start):
            assert not node.alive, "started while workers run"
            node = replace(node, alive=step.generation, must_end=False)
        elif isinstance(step, Stop):
            node = replace(node, must_end=bool(node.alive))
            if not node.alive:
                # They ended by themselves before they were told.
                node_state, _ = participant.react(node_state, WorkersStopped(step.generation), now)
                node = replace(node, node_state=node_state)
        elif isinstance(step, Over | Rejoin):
            assert not node.alive, "over while workers run"
    return _set(world, index, node)


def _set(world: World, index: int, node: ModelNode) -> World:
    nodes = (*world.nodes[:index], node, *world.nodes[index + 1 :])
    return replace(world, nodes=nodes)
