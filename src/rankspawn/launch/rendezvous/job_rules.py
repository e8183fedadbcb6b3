"""What becomes of a job as nodes join, leave, fail and die: the rules, and nothing else.

Pure. One node leads: it looks at the job's state and at the members that the store knows, and
``next_state`` gives the state that comes next, or how long to wait for what. The change is made by
compare-and-swap, so it does not matter if two nodes believe to lead, or one sees old facts:
everything that a change waits for ("this member has stopped generation 3", "this member's lease
ended") stays true once it is true.

::

                 enough nodes that answer, and nobody
                 runs workers of the last generation
        GATHERING ─────────────────────────────────► RUNNING ──── all done ────► ENDED
            │   ▲                                      │  │
            │   └── a node failed, died, left, came ───┘  │
            │       (the first two max_restart times)     │ the same, where the job
            ├─ too few for elastic_timeout                │ does not go on after it
            └─ a failure, and nobody was lost             │
                              │                           │
                              ▼                           ▼
                            ENDING ◄──────────────────────┘
                              │  all stop, and say that they are there
                              └────────────────────────────────────────────────► ENDED
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rankspawn.launch.backoff import count_tries
from rankspawn.launch.rendezvous.causes import (
    all_causes,
    find_failures,
    find_lost,
    leaving_server,
    pause_text,
    too_few,
    waiting_text,
)
from rankspawn.launch.rendezvous.job_state import JobState, JobTerms, Member, Phase
from rankspawn.launch.rendezvous.placement import (
    assign_ranks,
    choose_members,
    describe_node,
    eligible_members,
    find_surplus,
    name_some,
    refuse_failed,
    refuse_members,
    tolerated_until,
    unreachable_cause,
)
from rankspawn.launch.session import FINAL, Cause

# How many leases a call may last.
_CALL_LEASES = 1.5
# Who does not answer for so long is worth a word; most answer within milliseconds.
_CALM_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Observed:
    """What the leading node has seen, from one call to the next; a new one begins with none.

    Attributes:
        stage: The run, phase and generation of the last call.
        since: When that stage was first seen.
        present: Who was there.
        changed: When that last changed.
        called: When the nodes were first seen to be called.
        done: Nodes whose work in this generation is done, also if they are gone since.
        free: Those of them on which nothing runs, so that nobody needs them any more.
        lasted: Seconds for which this generation was seen to run; 0 while it does.
    """

    stage: tuple[str, str, int] = ("", "", 0)
    since: float = 0.0
    present: frozenset[str] = frozenset()
    changed: float = 0.0
    called: float | None = None
    done: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    lasted: float = 0.0


@dataclass(frozen=True, slots=True)
class NextState:
    """What the leading node has to do: change the state, or wait.

    Attributes:
        observed: For the next call.
        state: What the state should become; None to leave it.
        wake_at: When to look again even if nothing changes.
        waiting: What the job waits for, for people; empty if for nothing but its workers.
    """

    observed: Observed
    state: JobState | None = None
    wake_at: float | None = None
    waiting: str = ""


def next_state(
    state: JobState | None,
    members: Mapping[str, Member],
    observed: Observed,
    now: float,
    *,
    terms: JobTerms,
    run_id: str,
) -> NextState:
    """The state that the job should have next, or what it waits for.

    Args:
        state: What the store has; None if nothing yet.
        members: Who is in the store, by name, read at the same moment as the state or later:
            a member of the group that is not among them is gone, not still to come.
        observed: What the last call returned.
        now: This node's clock, in seconds.
        terms: This node's, for a run that it begins.
        run_id: A new one, should a run begin.
    """
    if state is None:
        return NextState(observed, JobState(run_id, terms))
    if _is_over(state, members):
        return NextState(observed, JobState(run_id, terms, generation=state.generation))
    observed = _observe(state, members, observed, now)
    # In one step: who is refused goes at once, and would leave the others waiting for it.
    cleaned = _doom(refuse_members(state, members, observed.changed, now), members)
    if cleaned != state:
        return NextState(observed, cleaned)
    return _RULES[state.phase](state, members, observed, now)


def _is_over(state: JobState, members: Mapping[str, Member]) -> bool:
    """Only newcomers are left, who have nothing to do with this run."""
    if not members:
        return False
    if state.phase is Phase.ENDED:
        return all(
            member.ignores == state.run_id or not state.concerns(member.name)
            for member in members.values()
        )
    return bool(state.group) and not any(name in members for name in state.group)


def _observe(
    state: JobState, members: Mapping[str, Member], observed: Observed, now: float
) -> Observed:
    stage = (state.run_id, str(state.phase), state.generation)
    if stage != observed.stage:
        same_work = stage[0::2] == observed.stage[0::2]
        kept = observed if same_work else Observed(since=now)
        kept = replace(kept, called=None, lasted=now - kept.since)
        observed = replace(kept, stage=stage, since=now, changed=now)
    if observed.present != members.keys():
        observed = replace(observed, present=frozenset(members), changed=now)
    if state.calling != (observed.called is not None):
        observed = replace(observed, called=now if state.calling else None)
    if state.phase is Phase.RUNNING:
        finished = {
            name
            for name in state.group
            if name in members and members[name].report.done == state.generation
        }
        free = {name for name in finished if members[name].report.stopped >= state.generation}
        observed = replace(observed, done=observed.done | finished, free=observed.free | free)
    return observed


def _gather(
    state: JobState, members: Mapping[str, Member], observed: Observed, now: float
) -> NextState:
    leaving = leaving_server(members)
    if leaving is not None:
        return NextState(observed, _end(state, [leaving]))
    # Never two generations: a node starts workers of g only after it has seen RUNNING(g). So g+1
    # has to wait until each node of g has said "stopped g", after which it never starts g again,
    # or its lease has ended, before which it kills its own workers (see ``fence``).
    running = [
        members[name]
        for name in state.group
        if name in members and members[name].report.stopped < state.generation
    ]
    if running:
        names = [describe_node(member, state.rank_of(member.name)) for member in running]
        text = f"{state.because}; waiting for the workers of {name_some(names)} to end"
        return NextState(
            observed, wake_at=tolerated_until(state, members, observed.changed), waiting=text
        )
    if state.blamed:
        return NextState(observed, _judge(state, members, observed))
    eligible = eligible_members(state, members)
    if not state.group and (cause := unreachable_cause(eligible)):
        return NextState(observed, _end(state, [cause]))
    if state.is_doomed and len(members) >= state.terms.max_nodes:
        return NextState(observed, _end(state, state.causes))
    deadline = _forming_at(state, eligible, observed)
    if now >= deadline:
        if len(eligible) < state.terms.min_nodes:
            too_late = () if state.is_doomed else (too_few(state, eligible),)
            return NextState(observed, _end(state, [*state.causes, *too_late]))
        return _call(state, eligible, observed, now)
    wake_at = min(deadline, tolerated_until(state, members, observed.changed) or deadline)
    enough = len(eligible) >= state.terms.min_nodes
    is_pause = enough and deadline == observed.since + state.pause
    text = pause_text(state) if is_pause else waiting_text(state, eligible)
    return NextState(observed, wake_at=wake_at, waiting=text)


def _doom(state: JobState, members: Mapping[str, Member]) -> JobState:
    """Note why a job that has not begun never will: nodes that it needs cannot take part."""
    if state.phase is not Phase.GATHERING or state.group:
        return state
    found = {cause.node: cause for cause in state.causes}
    found |= {refusal.name: refusal.cause for refusal in state.refused}
    if found and len(eligible_members(state, members)) >= state.terms.min_nodes:
        found = {}
    return replace(state, causes=tuple(found.values()))


def _call(state: JobState, eligible: Sequence[Member], observed: Observed, now: float) -> NextState:
    """Form a generation of those who answer: one that was just killed still seems to be there."""
    if not state.calling or observed.called is None:
        return NextState(observed, replace(state, calling=True))
    terms = state.terms
    ready = [member for member in eligible if member.report.ready > state.generation]
    complete = len(ready) >= min(len(eligible), terms.max_nodes)
    # By then a dead one's lease has ended. Who is only slow is worth the wait: it would be the
    # reason for the next regroup.
    deadline = observed.called + _CALL_LEASES * terms.lease_seconds
    if len(ready) >= terms.min_nodes and (complete or now >= deadline):
        return NextState(observed, _form(state, ready))
    if now < observed.called + _CALM_SECONDS:
        return NextState(observed, wake_at=observed.called + _CALM_SECONDS)
    answered = {member.name for member in ready}
    silent = [describe_node(member) for member in eligible if member.name not in answered]
    text = f"{name_some(silent)} seems to be there, but does not answer"
    return NextState(observed, wake_at=deadline if now < deadline else None, waiting=text)


def _forming_at(state: JobState, eligible: Sequence[Member], observed: Observed) -> float:
    """When the next generation is formed, or given up, if nothing changes."""
    terms = state.terms
    never_before = observed.since + state.pause
    if not state.group and any(member.returned for member in eligible):
        # The store is younger than the job: a node that has not found it yet may still run
        # workers of before, until its old lease ends.
        never_before += terms.lease_seconds
    if len(eligible) >= terms.max_nodes:
        return never_before
    if len(eligible) < terms.min_nodes:
        return observed.since + state.patience
    if state.hold or not state.group:
        return max(never_before, observed.since + terms.elastic_timeout)
    if {member.name for member in eligible}.issuperset(state.group):
        return never_before
    return max(never_before, observed.changed + terms.settle_seconds)


def _form(state: JobState, eligible: Sequence[Member]) -> JobState:
    chosen = choose_members(eligible, state.group, state.terms.max_nodes)
    hosts = {member.name: member.host for member in chosen}
    group = assign_ranks(chosen, state.group)
    # A run without a group has no starts behind it, as far as its store knows; its nodes may.
    known = chosen if not state.group else ()
    return replace(
        state,
        phase=Phase.RUNNING,
        generation=state.generation + 1,
        group=group,
        hosts=tuple(hosts[name] for name in group),
        restarts=max([state.restarts if state.group else -1, *(m.restarts for m in known)]) + 1,
        used=max([state.used, *(member.used for member in known)]),
        calling=False,
        because="",
        hold=False,
        causes=(),
    )


def _run(
    state: JobState, members: Mapping[str, Member], observed: Observed, now: float
) -> NextState:
    terms = state.terms
    failed = find_failures(state, members)
    if failed and not terms.survives_loss:
        return NextState(observed, _end(state, failed))
    lost = find_lost(state, members, observed.free)
    if failed and not lost:
        return NextState(observed, _gather_all(state, failed, blamed=failed[0].node))
    if observed.done.issuperset(state.group):
        return NextState(observed, replace(state, phase=Phase.ENDED, causes=()))
    if lost:
        if leaving_server(members) is not None or not terms.survives_loss:
            return NextState(observed, _end(state, lost))
        return NextState(observed, _regroup(state, lost))
    if bool(find_surplus(state, members)) != state.calling:
        return NextState(observed, replace(state, calling=not state.calling))
    return _admit(state, members, observed, now)


def _admit(
    state: JobState, members: Mapping[str, Member], observed: Observed, now: float
) -> NextState:
    """Regroup for nodes that came, if there is room; else they wait in reserve."""
    joined = [
        member for member in eligible_members(state, members) if member.name not in state.group
    ]
    tolerated = tolerated_until(state, members, observed.changed)
    full = len(state.group) >= state.terms.max_nodes
    # A newcomer is no reason to take up again what is nearly done.
    if not joined or full or observed.done:
        return NextState(observed, wake_at=tolerated)
    settled = observed.changed + state.terms.settle_seconds
    if now < settled and len(state.group) + len(joined) < state.terms.max_nodes:
        return NextState(observed, wake_at=min(settled, tolerated or settled))
    text = f"{name_some([describe_node(member) for member in joined])} joined"
    return NextState(observed, _regroup(state, [Cause("joined", text)]))


def _judge(state: JobState, members: Mapping[str, Member], observed: Observed) -> JobState:
    """What a failure means, now that each node has said what became of it, or is gone.

    When a node dies, workers of the others fail because they lose their peers, seconds before its
    lease ends. They are victims, then, at every level.
    """
    failed, level = state.causes, state.terms.elastic_level
    lost = find_lost(state, members, observed.free)
    if lost:
        return _regroup(state, lost)
    if level < 0 or any(cause.kind == FINAL for cause in failed):
        return _end(state, failed)
    # A node that has just begun to lead has not seen how long it lasted: then it was short.
    tries = count_tries(state.tries, observed.lasted)
    going_on = _regroup(replace(state, tries=tries), failed, hold=level == 0)
    culprit = members.get(state.blamed)
    if level == 0 and going_on.phase is Phase.GATHERING and culprit is not None:
        return refuse_failed(going_on, culprit)
    return going_on


def _regroup(state: JobState, causes: Sequence[Cause], *, hold: bool = False) -> JobState:
    """Have the nodes gather for another start, if there may be one."""
    most = state.terms.max_restart
    # Nodes that come and go as they should are how an elastic job lives, and no reason to end it.
    is_failure = any(cause.kind not in ("joined", "left") for cause in causes)
    if is_failure and state.used >= most:
        used = f"not restarted: {state.used} of {most} restarts are used up"
        return _end(state, [*causes, Cause("too often", used)])
    return _gather_all(replace(state, used=state.used + is_failure), causes, hold=hold)


def _gather_all(
    state: JobState, causes: Sequence[Cause], *, blamed: str = "", hold: bool = False
) -> JobState:
    return replace(
        state,
        phase=Phase.GATHERING,
        because=causes[0].text.strip().rpartition("\n")[2],
        blamed=blamed,
        hold=hold,
        causes=tuple(causes),
    )


def _end(state: JobState, causes: Sequence[Cause]) -> JobState:
    return replace(state, phase=Phase.ENDING, causes=tuple(causes), blamed="", calling=False)


def _finish(
    state: JobState, members: Mapping[str, Member], observed: Observed, now: float
) -> NextState:
    """Wait for the answers of all that are there, so that the result names who is not."""
    silent = [
        member
        for member in members.values()
        if not member.report.answered and state.concerns(member.name)
    ]
    terms = state.terms
    # When a node dies, workers of the others fail because they lose their peers. So after a
    # failure a silent node is worth the time until its lease ends, which tells the cause.
    is_suspect = state.began_with_failure and any(member.name in state.group for member in silent)
    deadline = observed.since + (terms.lease_seconds if is_suspect else terms.answer_seconds)
    if silent and now < deadline:
        return NextState(observed, wake_at=deadline)
    causes = all_causes(state, members, observed.free, silent)
    return NextState(observed, replace(state, phase=Phase.ENDED, causes=causes))


_Rule = Callable[[JobState, Mapping[str, Member], Observed, float], NextState]
_RULES: Mapping[Phase, _Rule] = {
    Phase.GATHERING: _gather,
    Phase.RUNNING: _run,
    Phase.ENDING: _finish,
    Phase.ENDED: lambda _state, _members, observed, _now: NextState(observed),
}
