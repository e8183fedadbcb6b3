"""What one node does about the state of its job: starts, stops, acknowledges, leaves.

Pure: what happened goes in with the time of this node's clock, steps for its session to take come
out, and what the node has to say to the others is in ``NodeState.report``.

Two rules make sure that no worker of an old generation runs beside those of a new one; they are
marked with "Never two generations".
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rankspawn.launch.rendezvous.job_state import JobState, JobTerms, NodeReport, Phase
from rankspawn.launch.session import Cause, JobResult

_LOST = "this node lost contact with the others, and its workers were ended"


@dataclass(frozen=True, slots=True)
class Saw:
    """The job's state was read from the store."""

    state: JobState


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """The store has confirmed the lease; it cannot have ended before this time."""

    safe_until: float


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The store does not know the lease any more."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing but time went by."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker of this node failed by itself."""

    generation: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class WorkersDone:
    """This node's part of the work is done; ``gone``: and no process of it is left."""

    generation: int
    gone: bool = True


@dataclass(frozen=True, slots=True)
class WorkersStopped:
    """No process of this generation is left on this node."""

    generation: int


@dataclass(frozen=True, slots=True)
class AskedToLeave:
    """The user, or a scheduler, wants this node out of the job."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Start:
    """Start the workers of this generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the workers of this generation.

    Attributes:
        at_once: There is no time for a grace period.
        succeeded: The job is done; what is left only served it.
    """

    generation: int
    reason: str
    at_once: bool = False
    succeeded: bool = False


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Nothing runs here; come back as another member once the store can be reached."""


@dataclass(frozen=True, slots=True)
class Over:
    """Nothing runs here, and this node's part in the job is over."""

    result: JobResult


Event = (
    Saw | LeaseHeld | LeaseEnded | Tick | WorkerFailed | WorkersDone | WorkersStopped | AskedToLeave
)
Step = Start | Stop | Rejoin | Over


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of one node, as it knows it itself.

    Attributes:
        name: The member that it is.
        terms: Those of its job.
        ignores: The run that had ended before this node came.
        safe_until: Its lease cannot have ended before this time of its clock.
        spare: Seconds before that at which it looks for another store while it never had workers.
        running: The generation whose workers run here; 0 for none.
        stopping: They have been told to end.
        killing: They have been told to end at once.
        fenced: The lease may end, or has.
        result: The end of the job, as far as it concerns this node, if it is known.
        over: Nothing more comes.
        report: What it says to the others.
    """

    name: str
    terms: JobTerms
    ignores: str = ""
    safe_until: float = 0.0
    spare: float = 0.0
    running: int = 0
    stopping: bool = False
    killing: bool = False
    fenced: bool = False
    result: JobResult | None = None
    over: bool = False
    report: NodeReport = field(default_factory=NodeReport)

    @property
    def lost_at(self) -> float:
        """When it counts as lost, if nothing is heard until then."""
        took_part = self.running or self.report.stopped
        return self.safe_until if took_part else self.safe_until - self.spare

    @property
    def dies_of_loss(self) -> bool:
        """Whether its workers have to be gone before its lease ends.

        Not if no generation comes after theirs: they have all the time of a grace period.
        """
        return self.terms.survives_loss and not self.report.answered


_Reaction = tuple[NodeState, tuple[Step, ...]]


def react(node: NodeState, event: Event, now: float) -> _Reaction:
    """What becomes of this node, and what its agent has to do.

    After any other event the caller feeds the last state that it saw once more: only there is
    it decided whether the node can go.
    """
    if node.over:
        return node, ()
    node = _note(node, event, now)
    # Never two generations: past the time up to which its lease is certain, nothing starts under
    # this name at all. What runs is killed, and the node comes back as another member.
    if not node.fenced and (now >= node.lost_at or isinstance(event, LeaseEnded)):
        node = replace(node, fenced=True)
    if node.fenced:
        return _react_fenced(node)
    if isinstance(event, Saw):
        return _follow(node, event.state)
    if node.running and node.report.failed == node.running:
        return _stop(node, "a worker of this node failed")
    if node.running and node.report.leaving is not None:
        return _stop(node, node.report.leaving.text)
    return node, ()


def _note(node: NodeState, event: Event, now: float) -> NodeState:
    """Take up the facts of an event; what follows from them is decided elsewhere."""
    report = node.report
    match event:
        case LeaseHeld(safe_until) if not node.fenced:
            return replace(node, safe_until=safe_until)
        case WorkersStopped(generation) if generation == node.running:
            return _without_workers(node)
        case WorkersDone(generation, gone) if generation == node.running:
            node = replace(node, report=replace(report, done=generation))
            return _without_workers(node) if gone else node
        case WorkerFailed(generation, cause) if generation == node.running and not node.stopping:
            # Workers that fail after they were told to stop are victims, no causes; and so are
            # those that the fence has killed before anybody here looked at the clock.
            if node.fenced or now >= node.lost_at:
                return node
            return replace(node, report=replace(report, failed=generation, cause=cause))
        case AskedToLeave(cause) if report.leaving is None:
            return replace(node, report=replace(report, leaving=cause))
    return node


def _without_workers(node: NodeState) -> NodeState:
    report = replace(node.report, stopped=max(node.report.stopped, node.running))
    return replace(node, running=0, stopping=False, report=report)


def _follow(node: NodeState, state: JobState) -> _Reaction:
    rank = state.rank_of(node.name)
    result = _result_for(node, state, rank)
    if result != node.result:
        node = replace(node, result=result)
    is_end = state.phase is Phase.ENDED and state.run_id != node.ignores
    if state.phase is Phase.ENDING or (is_end and state.concerns(node.name)):
        node = replace(node, report=replace(node.report, answered=True))
    if state.calling and (not node.running or state.phase is Phase.RUNNING):
        node = replace(node, report=replace(node.report, ready=state.generation + 1))
    elif node.report.ready > state.generation:
        # It says nothing about the next call.
        node = replace(node, report=replace(node.report, ready=state.generation))
    takes_part = state.phase is Phase.RUNNING and rank >= 0
    if node.running:
        if takes_part and node.running == state.generation and node.result is None:
            return node, ()
        is_success = node.result is not None and node.result.succeeded
        return _stop(node, _reason(state), succeeded=is_success)
    # Never two generations: what this node has said to be stopped it never starts again, whatever
    # old state it may still get to see.
    if takes_part and state.generation > node.report.stopped and node.report.leaving is None:
        return replace(node, running=state.generation), (Start(state.generation),)
    if rank >= 0 and not takes_part:
        # Also for a generation that was never started here: now it never will be.
        stopped = max(node.report.stopped, state.generation)
        node = replace(node, report=replace(node.report, stopped=stopped))
    return _go_if_over(node)


def _result_for(node: NodeState, state: JobState, rank: int) -> JobResult | None:
    """How this node's part ends, if it does."""
    if state.phase is Phase.ENDED and state.run_id != node.ignores and state.concerns(node.name):
        return state.result
    # A node that is needed stays until the others know why it cannot be had; it may be the one
    # that leads, or that has the master.
    is_final = state.phase is not Phase.ENDING and not state.is_doomed
    for refusal in state.refused if is_final else ():
        if refusal.name == node.name:
            return JobResult((refusal.cause,))
    is_known = state.phase is Phase.GATHERING and not state.blamed
    if node.report.leaving is not None and (rank < 0 or is_known):
        # The others know of it, or have no need to.
        return JobResult((node.report.leaving,))
    return None


def _reason(state: JobState) -> str:
    if state.causes:
        return state.causes[0].text.strip().rpartition("\n")[2]
    return state.because or "the job has ended"


def _stop(node: NodeState, reason: str, *, succeeded: bool = False) -> _Reaction:
    if node.stopping:
        return node, ()
    return replace(node, stopping=True), (Stop(node.running, reason, succeeded=succeeded),)


def _go_if_over(node: NodeState) -> _Reaction:
    """Go, once the end is known and nothing runs."""
    if node.running or node.result is None:
        return node, ()
    return replace(node, over=True), (Over(node.result),)


def _react_fenced(node: NodeState) -> _Reaction:
    """Nothing may run under this name any more."""
    if node.running:
        at_once = node.dies_of_loss
        if node.killing or (node.stopping and not at_once):
            return node, ()
        stop = Stop(node.running, "this node lost contact with the others", at_once=at_once)
        return replace(node, stopping=True, killing=at_once), (stop,)
    if node.result is not None:
        return _go_if_over(node)
    report, terms = node.report, node.terms
    # In an elastic job it is a victim of the loss, see below.
    is_told = report.failed == report.stopped and terms.elastic_level < 1 and not terms.is_elastic
    failed = report.cause if is_told else None
    # Who was never part of a generation has nothing to lose, and waits on for the others.
    goes_on = terms.survives_loss or not report.stopped
    if report.leaving is None and failed is None and goes_on:
        return replace(node, over=True), (Rejoin(),)
    lost = Cause("lost", _LOST, node=node.name)
    # A worker that failed while nobody could be told has most likely lost its peers.
    causes = (report.leaving,) if report.leaving else (lost, failed) if failed else (lost,)
    return replace(node, over=True), (Over(JobResult(causes)),)
