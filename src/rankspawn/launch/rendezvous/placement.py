"""Which nodes take part, which are refused, which rank each gets, and who is missing.

Pure. A given rank is honoured whenever it is below the number of nodes; the master's node is
node 0; whoever had a rank keeps it if it is still there, also if it comes back under another name;
the others fill the gaps in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rankspawn.launch.rendezvous.job_state import JobState, JobTerms, Member, Phase, Refusal
from rankspawn.launch.session import Cause
from rankspawn.plan.topology import is_loopback

# Lists of nodes in messages end here: a thousand addresses help nobody.
_NAMED_AT_MOST = 8


def describe_node(member: Member, rank: int = -1) -> str:
    """How a message calls a node: ``node 2 (10.0.0.3, abcdef)``."""
    return (
        f"node {rank} ({member.host}, {member.name})"
        if rank >= 0
        else (f"node {member.name} ({member.host})")
    )


def name_some(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    some = ", ".join(names[:_NAMED_AT_MOST])
    more = len(names) - _NAMED_AT_MOST
    return f"{some} and {more} more" if more > 0 else some


def eligible_members(state: JobState, members: Mapping[str, Member]) -> list[Member]:
    """Those who could be part of the next generation, in the order in which they came."""
    refused = {refusal.name for refusal in state.refused} | {state.blamed}
    staying = [
        member
        for member in sorted(members.values(), key=_arrival)
        if member.name not in refused and member.report.leaving is None
    ]
    objected = {refusal.name for refusal in find_objections(state, staying)}
    twins = {twin.name for twin, _ in find_twins(state, staying)}
    return [
        member for member in staying if member.name not in objected and member.name not in twins
    ]


def find_objections(state: JobState, staying: Iterable[Member]) -> list[Refusal]:
    """Members that can never take part, with the reason; those of the group never are."""
    there = {member.name: member for member in staying}
    group_names = set(state.group)
    group = _representatives([there[name] for name in state.group if name in there])
    server = next((member for member in there.values() if member.serves), None)
    flags = state.terms.flags
    found = []
    for member in there.values():
        if member.name in group_names:
            continue
        unable = member.report.unable
        if unable is not None:
            found.append(Refusal(member.name, replace(unable, node=member.name)))
            continue
        text = (
            _other_flags(member, flags)
            or (_impossible_rank(member, server, state) if state.concerns(member.name) else "")
            or _unreachable_text(find_unreachable([*group, member]) if group else None)
        )
        if text:
            cause = Cause("refused", text, node=member.name)
            found.append(Refusal(member.name, cause))
    return found


def _other_flags(member: Member, flags: str) -> str:
    if not member.flags or member.flags == flags:
        return ""
    theirs, ours = _split_flags(member.flags), _split_flags(flags)
    other = " ".join(flag for flag in theirs if flag not in ours)
    wanted = " ".join(flag for flag in ours if flag not in theirs)
    return (
        f"{describe_node(member)} was started with {other}, but the job has {wanted}: "
        "give the same flags on every node"
    )


def _split_flags(flags: str) -> list[str]:
    """Each flag with its value."""
    return [f"--{flag.strip()}" for flag in flags.split("--") if flag]


def _impossible_rank(member: Member, server: Member | None, state: JobState) -> str:
    if member.given_rank < 0:
        return ""
    most = state.terms.max_nodes
    who = f"{describe_node(member)} was given --rank {member.given_rank}, but"
    if member.given_rank >= most:
        return f"{who} the job has at most {most} nodes, ranks 0 to {most - 1}"
    if member.serves and member.given_rank > 0:
        return (
            f"{who} the master runs on it, and node 0 is the master's node: give it --rank 0 or "
            "none, or name another node with --master"
        )
    if server is not None and not member.serves and member.given_rank == 0:
        return f"{who} node 0 is the master's node, {server.host}: give it another rank or none"
    return ""


def find_twins(state: JobState, staying: Iterable[Member]) -> list[tuple[Member, Member]]:
    """Members whose given rank an earlier one has, each with that one.

    A node that was killed and started again meets its former self until that one's lease ends,
    so this alone is no reason to refuse anybody.
    """
    first: dict[int, Member] = {}
    found = []
    given = [member for member in staying if member.given_rank >= 0]
    given.sort(key=lambda member: (member.name not in state.group, _arrival(member)))
    for member in given:
        holder = first.setdefault(member.given_rank, member)
        if holder is not member:
            found.append((member, holder))
    return found


def find_unreachable(members: Sequence[Member]) -> tuple[Member, Member] | None:
    """A member with a loopback address, and one on another machine that cannot reach it."""
    for member in members:
        if is_loopback(member.host):
            for other in members:
                if other.machine != member.machine:
                    return member, other
            # All others are on its machine, so the same holds for any further one.
            return None
    return None


def _representatives(group: Sequence[Member]) -> list[Member]:
    """As good as the whole group for :func:`find_unreachable`, however large that is."""
    some = [member for member in group if is_loopback(member.host)][:1] or list(group[:1])
    some += [member for member in group if member.machine != some[0].machine][:1] if some else []
    return some


def _unreachable_text(found: tuple[Member, Member] | None) -> str:
    if found is None:
        return ""
    member, other = found
    return (
        f"{describe_node(member)} gives {member.host} as its address, which means another machine "
        f"on {describe_node(other)}: give the address at which the other nodes reach it, with "
        "--host, or with --master if the master runs on it"
    )


def unreachable_cause(members: Sequence[Member]) -> Cause | None:
    """Why these members can never work together, if they cannot."""
    found = find_unreachable(members)
    if found is None:
        return None
    text = _unreachable_text(found)
    return Cause("refused", text, node=found[0].name)


def refuse_members(
    state: JobState, members: Mapping[str, Member], changed: float, now: float
) -> JobState:
    """The same state, with those refused who can never take part.

    Args:
        state: The job's.
        members: Who is there.
        changed: When that last changed.
        now: The same clock now.
    """
    if state.phase in (Phase.ENDING, Phase.ENDED):
        return state
    kept = tuple(refusal for refusal in state.refused if refusal.name in members)
    known = {refusal.name for refusal in kept}
    others = [member for member in members.values() if member.name not in known]
    fresh = find_objections(state, others)
    if now >= changed + _tolerance(state.terms):
        fresh += [_refuse_twin(twin, holder) for twin, holder in find_twins(state, others)]
    if now >= changed + _tolerance(state.terms) or all_answered(state, members):
        fresh += [_refuse_surplus(state, member) for member in _surplus(state, others)]
    first: dict[str, Refusal] = {}
    for refusal in fresh:
        first.setdefault(refusal.name, refusal)
    return replace(state, refused=kept + tuple(first.values()))


def find_surplus(state: JobState, members: Mapping[str, Member]) -> list[Member]:
    """Members that come to a complete job of fixed size, and have not been refused yet.

    The same job was started twice; or its nodes have died, and this is the next run's first.
    """
    refused = {refusal.name for refusal in state.refused}
    return _surplus(state, [member for member in members.values() if member.name not in refused])


def all_answered(state: JobState, members: Mapping[str, Member]) -> bool:
    """Whether all nodes of the newest generation have answered a call, so that none is dead."""
    if not state.calling or state.phase is not Phase.RUNNING:
        return False
    return all(
        name in members and members[name].report.ready > state.generation for name in state.group
    )


def _surplus(state: JobState, members: Iterable[Member]) -> list[Member]:
    """Members that come to a complete job of fixed size."""
    if state.phase is not Phase.RUNNING:
        return []
    return [member for member in members if not state.concerns(member.name)]


def _tolerance(terms: JobTerms) -> float:
    """Seconds for which a member is tolerated that may only have come too early."""
    # Longer than a lease, with which the former selves of restarted nodes go.
    return 1.5 * terms.lease_seconds


def tolerated_until(state: JobState, members: Mapping[str, Member], changed: float) -> float | None:
    """When somebody is to be refused who is tolerated now; None if there is nobody."""
    refused = {refusal.name for refusal in state.refused}
    others = [member for member in members.values() if member.name not in refused]
    if find_twins(state, others) or _surplus(state, others):
        return changed + _tolerance(state.terms)
    return None


def refuse_failed(state: JobState, member: Member) -> JobState:
    """The same state, with a node refused whose worker has failed."""
    if member.report.cause is None:
        return state
    return replace(state, refused=(*state.refused, Refusal(member.name, member.report.cause)))


def _refuse_twin(twin: Member, holder: Member) -> Refusal:
    """The refusal of a node whose given rank another one has."""
    text = (
        f"{describe_node(twin)} and {describe_node(holder)} were both given --rank "
        f"{twin.given_rank}: give each node its own, or none"
    )
    return Refusal(twin.name, Cause("refused", text, node=twin.name))


def _refuse_surplus(state: JobState, member: Member) -> Refusal:
    """The refusal of a node that comes to a complete job of fixed size."""
    text = (
        f"{describe_node(member)} came too late: all {len(state.group)} nodes of the job are there "
        f"({name_some(state.hosts)}), and their number is fixed. To run the job twice at a time, "
        "give the second another port in --master, or with etcd another --job_id"
    )
    return Refusal(member.name, Cause("refused", text, node=member.name))


def choose_members(eligible: Sequence[Member], previous: Sequence[str], count: int) -> list[Member]:
    """At most ``count`` of them: the master's node, then who was there before, then by arrival."""
    before = set(previous)
    ordered = sorted(
        eligible,
        key=lambda member: (
            not member.serves,
            member.name not in before,
            not member.returned,
            _arrival(member),
        ),
    )
    return ordered[:count]


def assign_ranks(chosen: Sequence[Member], previous: Sequence[str]) -> tuple[str, ...]:
    """The names of the chosen members by rank."""
    slots: list[str | None] = [None] * len(chosen)
    former = {name: rank for rank, name in enumerate(previous)}

    def claim(member: Member, rank: int) -> bool:
        if not 0 <= rank < len(slots) or slots[rank] is not None:
            return False
        slots[rank] = member.name
        return True

    left = list(chosen)
    claims = (
        lambda member: 0 if member.serves else -1,
        lambda member: member.given_rank,
        lambda member: former.get(member.name, -1),
        lambda member: member.former_rank,
    )
    for wish in claims:
        left = [member for member in left if not claim(member, wish(member))]
    # A given rank that is too high now still decides the order.
    late = len(previous) + len(chosen)
    left.sort(
        key=lambda member: (member.given_rank, former.get(member.name, late), _arrival(member))
    )
    names = iter(left)
    return tuple(slot if slot is not None else next(names).name for slot in slots)


def describe_missing(terms: JobTerms, present: Sequence[Member], wanted: int) -> str:
    """Who has not come yet, as exactly as it can be known."""
    hosts = {member.host for member in present}
    absent = [host for host in terms.expected if host not in hosts]
    if absent:
        return name_some(absent)
    given = {member.given_rank for member in present if member.given_rank >= 0}
    free = [member for member in present if member.given_rank < 0]
    ranks = [rank for rank in range(wanted) if rank not in given]
    # The master's node is node 0 without having been told.
    if any(member.serves for member in free) and 0 in ranks:
        ranks.remove(0)
        free = [member for member in free if not member.serves]
    if given - {0} and not free:
        return f"rank {name_some([str(rank) for rank in ranks])}"
    count = wanted - len(present)
    return f"{count} more node{'s' if count != 1 else ''}"


def _arrival(member: Member) -> tuple[int, str]:
    return member.order, member.name
