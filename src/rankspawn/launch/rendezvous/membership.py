"""What becomes of a job as nodes join, leave, fail and die: the rules, and nothing else.

Pure. One node leads: it looks at the job's state and at the members that the store knows, and
the verdict is the state that comes next, or how long to wait for what. The change is made by
compare-and-swap, so it does not matter if two nodes believe to lead, or one sees old facts:
everything that a change waits for ("this member has stopped generation 3", "this member's lease
ended") stays true once it is true.

::

                 enough nodes that answer, and nobody
                 runs workers of the last generation
        GATHERING ─────────────────────────────────► RUNNING ──── all done ────► ENDED
            │   ▲                                      │  │
            │   └── a node failed, died, left, came ───┘  │
            │       (max_restart times)                   │ the same, where the job
            └─ too few for elastic_timeout                │ does not go on after it
                              │                           │
                              ▼                           ▼
                            ENDING ◄──────────────────────┘
                              │  all stop, and say that they are there
                              └────────────────────────────────────────────────► ENDED

**Never two generations at once.** A node starts workers of generation g only after it has seen
RUNNING(g). The step to RUNNING(g+1) is taken only when each node of g has said "stopped g",
after which it never starts g again, or its lease has ended; and a node kills its own workers
before its lease can have ended (see ``keeping``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rankspawn.launch.rendezvous.causes import (
    all_causes,
    began_with_failure,
    find_failures,
    find_leavers,
    find_vanished,
    leaving_server,
    too_few,
    waiting_text,
)
from rankspawn.launch.rendezvous.dismissals import dismiss_blamed, patience_ends, send_away
from rankspawn.launch.rendezvous.job_state import (
    Cause,
    JobState,
    Member,
    Phase,
    Policy,
)
from rankspawn.launch.rendezvous.placement import (
    assign_ranks,
    choose_members,
    describe_node,
    eligible_members,
    name_some,
    unreachable_cause,
)

__all__ = ["Memory", "Verdict", "look"]

# How many leases a call may last.
_CALL_LEASES = 1.5
# Who does not answer for so long is worth a word; most answer within milliseconds.
_CALM_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What the leading node remembers from one look to the next; a new one begins with none.

    Attributes:
        stage: The run, phase and generation of the last look.
        since: When that stage was first seen.
        present: Who was there.
        changed: When that last changed.
        called: When the nodes were first seen to be called.
        done: Nodes whose work in this generation is done, also if they are gone since.
        free: Those of them on which nothing runs, so that nobody needs them any more.
    """

    stage: tuple[str, str, int] = ("", "", 0)
    since: float = 0.0
    present: frozenset[str] = frozenset()
    changed: float = 0.0
    called: float | None = None
    done: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the leading node has to do.

    Attributes:
        memory: For the next look.
        state: What the state should become; None to leave it.
        wake_at: When to look again even if nothing changes.
        waiting: What the job waits for, for people; empty if for nothing but its workers.
    """

    memory: Memory
    state: JobState | None = None
    wake_at: float | None = None
    waiting: str = ""


def look(
    state: JobState | None,
    members: Mapping[str, Member],
    memory: Memory,
    now: float,
    *,
    policy: Policy,
    run_id: str,
) -> Verdict:
    """Decide what comes next.

    Args:
        state: What the store has; None if nothing yet.
        members: Who is in the store, by name, read at the same moment as the state or later:
            a member of the group that is not among them is gone, not still to come.
        memory: Of the last look.
        now: This node's clock, in seconds.
        policy: This node's, for a run that it begins.
        run_id: A new one, should a run begin.
    """
    if state is None:
        return Verdict(memory, JobState(run_id, policy))
    if _is_over(state, members):
        return Verdict(memory, JobState(run_id, policy, generation=state.generation))
    memory = _remember(state, members, memory, now)
    cleaned = send_away(state, members, memory.changed, now)
    if cleaned != state:
        return Verdict(memory, cleaned)
    return _RULES[state.phase](state, members, memory, now)


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


def _remember(state: JobState, members: Mapping[str, Member], memory: Memory, now: float) -> Memory:
    stage = (state.run_id, str(state.phase), state.generation)
    if stage != memory.stage:
        same_work = stage[0::2] == memory.stage[0::2]
        kept = memory if same_work else Memory()
        memory = Memory(stage, now, frozenset(members), now, done=kept.done, free=kept.free)
    if memory.present != members.keys():
        memory = replace(memory, present=frozenset(members), changed=now)
    if state.calling != (memory.called is not None):
        memory = replace(memory, called=now if state.calling else None)
    if state.phase is Phase.RUNNING:
        finished = {
            name
            for name in state.group
            if name in members and members[name].news.done == state.generation
        }
        free = {name for name in finished if members[name].news.stopped >= state.generation}
        memory = replace(memory, done=memory.done | finished, free=memory.free | free)
    return memory


def _gather(state: JobState, members: Mapping[str, Member], memory: Memory, now: float) -> Verdict:
    leaving = leaving_server(members)
    if leaving is not None:
        return Verdict(memory, _end(state, [leaving]))
    running = [
        members[name]
        for name in state.group
        if name in members and members[name].news.stopped < state.generation
    ]
    if running:
        names = [describe_node(one, state.rank_of(one.name)) for one in running]
        text = f"{state.because}; waiting for the workers of {name_some(names)} to end"
        return Verdict(memory, wake_at=patience_ends(state, members, memory.changed), waiting=text)
    if state.blamed:
        return Verdict(memory, dismiss_blamed(state, members))
    eligible = eligible_members(state, members)
    if not state.group and (cause := unreachable_cause(eligible)):
        return Verdict(memory, _end(state, [cause]))
    deadline = _forming_at(state, eligible, memory)
    if deadline is not None and now >= deadline:
        if len(eligible) < state.policy.min_nodes:
            return Verdict(memory, _end(state, [*state.causes, too_few(state, eligible)]))
        return _call(state, eligible, memory, now)
    times = (deadline, patience_ends(state, members, memory.changed))
    wake_at = min((time for time in times if time is not None), default=None)
    return Verdict(memory, wake_at=wake_at, waiting=waiting_text(state, eligible, deadline))


def _call(state: JobState, eligible: Sequence[Member], memory: Memory, now: float) -> Verdict:
    """Form a generation of those who answer: one that was just killed still seems to be there."""
    if not state.calling or memory.called is None:
        return Verdict(memory, replace(state, calling=True))
    policy = state.policy
    ready = [member for member in eligible if member.news.ready > state.generation]
    complete = len(ready) >= min(len(eligible), policy.max_nodes)
    # By then a dead one's lease has ended. Who is only slow is worth the wait: it would be the
    # reason for the next regroup.
    deadline = memory.called + _CALL_LEASES * policy.lease_seconds
    if len(ready) >= policy.min_nodes and (complete or now >= deadline):
        return Verdict(memory, _form(state, ready))
    if now < memory.called + _CALM_SECONDS:
        return Verdict(memory, wake_at=memory.called + _CALM_SECONDS)
    answered = {member.name for member in ready}
    silent = [describe_node(one) for one in eligible if one.name not in answered]
    text = f"{name_some(silent)} seems to be there, but does not answer"
    return Verdict(memory, wake_at=deadline if now < deadline else None, waiting=text)


def _forming_at(state: JobState, eligible: Sequence[Member], memory: Memory) -> float | None:
    """When the next generation is formed, or given up, if nothing changes; None for never."""
    policy = state.policy
    never_before = memory.since
    if not state.group and any(one.returned for one in eligible):
        # The store is younger than the job: a node that has not found it yet may still run
        # workers of before, until its old lease ends.
        never_before += policy.lease_seconds
    if len(eligible) >= policy.max_nodes:
        return never_before
    if len(eligible) < policy.min_nodes:
        # Before its first generation a job waits for as long as its user does.
        return memory.since + policy.elastic_timeout if state.group else None
    if state.hold or not state.group:
        return max(never_before, memory.since + policy.elastic_timeout)
    if {one.name for one in eligible}.issuperset(state.group):
        return never_before
    return memory.changed + policy.settle_seconds


def _form(state: JobState, eligible: Sequence[Member]) -> JobState:
    chosen = choose_members(eligible, state.group, state.policy.max_nodes)
    hosts = {member.name: member.host for member in chosen}
    group = assign_ranks(chosen, state.group)
    return replace(
        state,
        phase=Phase.RUNNING,
        generation=state.generation + 1,
        group=group,
        hosts=tuple(hosts[name] for name in group),
        restarts=state.restarts + bool(state.group),
        calling=False,
        because="",
        hold=False,
        causes=(),
    )


def _run(state: JobState, members: Mapping[str, Member], memory: Memory, now: float) -> Verdict:
    policy = state.policy
    failed = find_failures(state, members)
    if failed:
        if policy.elastic_level < 0:
            return Verdict(memory, _end(state, failed))
        blamed = failed[0].node if policy.elastic_level == 0 else ""
        return Verdict(memory, _regroup(state, failed, blamed=blamed, hold=bool(blamed)))
    if memory.done.issuperset(state.group):
        return Verdict(memory, replace(state, phase=Phase.ENDED, causes=()))
    lost = find_vanished(state, members, memory.free) + find_leavers(state, members, memory.free)
    if lost:
        if leaving_server(members) is not None or not policy.survives_loss:
            return Verdict(memory, _end(state, lost))
        return Verdict(memory, _regroup(state, lost))
    return _admit(state, members, memory, now)


def _admit(state: JobState, members: Mapping[str, Member], memory: Memory, now: float) -> Verdict:
    """Regroup for nodes that came, if there is room; else they wait in reserve."""
    joined = [one for one in eligible_members(state, members) if one.name not in state.group]
    patience = patience_ends(state, members, memory.changed)
    full = len(state.group) >= state.policy.max_nodes
    # A newcomer is no reason to end a job, or to take up again what is nearly done.
    if not joined or full or memory.done or state.restarts >= state.policy.max_restart:
        return Verdict(memory, wake_at=patience)
    settled = memory.changed + state.policy.settle_seconds
    if now < settled and len(state.group) + len(joined) < state.policy.max_nodes:
        return Verdict(memory, wake_at=min(settled, patience or settled))
    text = f"{name_some([describe_node(one) for one in joined])} joined"
    return Verdict(memory, _regroup(state, [Cause("joined", text)]))


def _regroup(
    state: JobState, causes: Sequence[Cause], *, blamed: str = "", hold: bool = False
) -> JobState:
    policy = state.policy
    if state.restarts >= policy.max_restart:
        used = f"not restarted: {state.restarts} of {policy.max_restart} restarts are used up"
        return _end(state, [*causes, Cause("too often", used)])
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


def _finish(state: JobState, members: Mapping[str, Member], memory: Memory, now: float) -> Verdict:
    """Wait for the answers of all that are there, so that the result names who is not."""
    silent = [one for one in members.values() if not one.news.answered and state.concerns(one.name)]
    policy = state.policy
    # When a node dies, workers of the others fail because they lose their peers. So after a
    # failure a silent node is worth the time until its lease ends, which tells the cause.
    is_suspect = began_with_failure(state) and any(one.name in state.group for one in silent)
    deadline = memory.since + (policy.lease_seconds if is_suspect else policy.answer_seconds)
    if silent and now < deadline:
        return Verdict(memory, wake_at=deadline)
    causes = all_causes(state, members, memory.free, silent)
    return Verdict(memory, replace(state, phase=Phase.ENDED, causes=causes))


_Rule = Callable[[JobState, Mapping[str, Member], Memory, float], Verdict]
_RULES: Mapping[Phase, _Rule] = {
    Phase.GATHERING: _gather,
    Phase.RUNNING: _run,
    Phase.ENDING: _finish,
    Phase.ENDED: lambda _state, _members, memory, _now: Verdict(memory),
}
