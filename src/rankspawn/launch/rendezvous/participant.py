"""What one node does about the state of its job: starts, stops, acknowledges, leaves.

Pure: what happened goes in with the time of this node's clock, decisions for its agent come
out, and what the node has to say to the others is in ``Mine.news``.

Two things make sure that no worker of an old generation runs beside those of a new one. Once
this node has said that a generation is stopped, it never starts it again, whatever old state
it may still get to see. And past ``safe_until``, up to which its lease is certain, nothing
starts under this name at all: what runs is killed, and the node comes back as another member.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rankspawn.launch.rendezvous.job_state import (
    Cause,
    JobState,
    News,
    Phase,
    Policy,
    Result,
)

__all__ = [
    "AskedToLeave",
    "Decision",
    "Event",
    "LeaseEnded",
    "LeaseHeld",
    "Mine",
    "Over",
    "Rejoin",
    "Saw",
    "Start",
    "Stop",
    "Tick",
    "WorkerFailed",
    "WorkersDone",
    "WorkersStopped",
    "step",
]


_LOST = "this node lost contact with the others, and its workers were killed"


@dataclass(frozen=True, slots=True)
class Saw:
    """The job's state in the store."""

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
    """Time went by."""


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

    result: Result


Event = (
    Saw | LeaseHeld | LeaseEnded | Tick | WorkerFailed | WorkersDone | WorkersStopped | AskedToLeave
)
Decision = Start | Stop | Rejoin | Over


@dataclass(frozen=True, slots=True)
class Mine:
    """One node's own side.

    Attributes:
        name: The member that it is.
        policy: The terms of its job.
        ignores: The run that had ended before this node came.
        safe_until: Its lease cannot have ended before this time of its clock.
        running: The generation whose workers run here; 0 for none.
        stopping: They have been told to end.
        killing: They have been told to end at once.
        fenced: The lease may end, or has.
        result: The end of the job, as far as it concerns this node, if it is known.
        over: Nothing more comes.
        news: What it says to the others.
    """

    name: str
    policy: Policy
    ignores: str = ""
    safe_until: float = 0.0
    running: int = 0
    stopping: bool = False
    killing: bool = False
    fenced: bool = False
    result: Result | None = None
    over: bool = False
    news: News = field(default_factory=News)


_Step = tuple[Mine, tuple[Decision, ...]]


def step(mine: Mine, event: Event, now: float) -> _Step:
    """What becomes of this node, and what its agent has to do.

    After any other event the caller feeds the last state that it saw once more: only there is
    it decided whether the node can go.
    """
    if mine.over:
        return mine, ()
    mine = _note(mine, event, now)
    if not mine.fenced and (now >= mine.safe_until or isinstance(event, LeaseEnded)):
        mine = replace(mine, fenced=True)
    if mine.fenced:
        return _step_fenced(mine)
    if isinstance(event, Saw):
        return _follow(mine, event.state)
    if mine.running and mine.news.failed == mine.running:
        return _stop(mine, "a worker of this node failed")
    if mine.running and mine.news.leaving is not None:
        return _stop(mine, mine.news.leaving.text)
    return mine, ()


def _note(mine: Mine, event: Event, now: float) -> Mine:
    """Take up the facts of an event; what follows from them is decided elsewhere."""
    news = mine.news
    match event:
        case LeaseHeld(safe_until) if not mine.fenced:
            return replace(mine, safe_until=safe_until)
        case WorkersStopped(generation) if generation == mine.running:
            return _without_workers(mine)
        case WorkersDone(generation, gone) if generation == mine.running:
            mine = replace(mine, news=replace(news, done=generation))
            return _without_workers(mine) if gone else mine
        case WorkerFailed(generation, cause) if generation == mine.running and not mine.stopping:
            # Workers that fail after they were told to stop are victims, no causes; and so are
            # those that the fence has killed before anybody here looked at the clock.
            if mine.fenced or now >= mine.safe_until:
                return mine
            return replace(mine, news=replace(news, failed=generation, cause=cause))
        case AskedToLeave(cause) if news.leaving is None:
            return replace(mine, news=replace(news, leaving=cause))
    return mine


def _without_workers(mine: Mine) -> Mine:
    news = replace(mine.news, stopped=max(mine.news.stopped, mine.running))
    return replace(mine, running=0, stopping=False, news=news)


def _follow(mine: Mine, state: JobState) -> _Step:
    rank = state.rank_of(mine.name)
    result = _result_for(mine, state, rank)
    if result != mine.result:
        mine = replace(mine, result=result)
    if state.phase is Phase.ENDING:
        mine = replace(mine, news=replace(mine.news, answered=True))
    if state.calling and not mine.running:
        mine = replace(mine, news=replace(mine.news, ready=state.generation + 1))
    is_mine = state.phase is Phase.RUNNING and rank >= 0
    if mine.running:
        if is_mine and mine.running == state.generation and mine.result is None:
            return mine, ()
        is_success = mine.result is not None and mine.result.succeeded
        return _stop(mine, _reason(state), succeeded=is_success)
    if is_mine and state.generation > mine.news.stopped and mine.news.leaving is None:
        return replace(mine, running=state.generation), (Start(state.generation),)
    if rank >= 0 and not is_mine:
        # Also for a generation that was never started here: now it never will be.
        stopped = max(mine.news.stopped, state.generation)
        mine = replace(mine, news=replace(mine.news, stopped=stopped))
    return _settle(mine)


def _result_for(mine: Mine, state: JobState, rank: int) -> Result | None:
    """How this node's part ends, if it does."""
    if state.phase is Phase.ENDED and state.run_id != mine.ignores and state.concerns(mine.name):
        return state.result
    for one in state.dismissed:
        if one.name == mine.name:
            return Result((one.cause,), state.restarts)
    if mine.news.leaving is not None and (rank < 0 or state.phase is Phase.GATHERING):
        # The others know of it, or have no need to.
        return Result((mine.news.leaving,), state.restarts)
    return None


def _reason(state: JobState) -> str:
    if state.causes:
        return state.causes[0].text.strip().rpartition("\n")[2]
    return state.because or "the job has ended"


def _stop(mine: Mine, reason: str, *, succeeded: bool = False) -> _Step:
    if mine.stopping:
        return mine, ()
    return replace(mine, stopping=True), (Stop(mine.running, reason, succeeded=succeeded),)


def _settle(mine: Mine) -> _Step:
    """Go, once the end is known and nothing runs."""
    if mine.running or mine.result is None:
        return mine, ()
    return replace(mine, over=True), (Over(mine.result),)


def _step_fenced(mine: Mine) -> _Step:
    """Nothing may run under this name any more."""
    if mine.running:
        if mine.killing:
            return mine, ()
        stop = Stop(mine.running, "this node lost contact with the others", at_once=True)
        return replace(mine, stopping=True, killing=True), (stop,)
    if mine.result is not None:
        return _settle(mine)
    news = mine.news
    failed = news.cause if news.failed == news.stopped and mine.policy.elastic_level < 1 else None
    # Who was never part of a generation has nothing to lose, and waits on for the others.
    goes_on = mine.policy.survives_loss or not news.stopped
    if news.leaving is None and failed is None and goes_on:
        return replace(mine, over=True), (Rejoin(),)
    lost = Cause("lost", _LOST, node=mine.name)
    # A worker that failed while nobody could be told has most likely lost its peers.
    causes = (news.leaving,) if news.leaving else (lost, failed) if failed else (lost,)
    return replace(mine, over=True), (Over(Result(causes)),)
