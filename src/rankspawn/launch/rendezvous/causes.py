"""What went wrong with which node, and what a job waits for, in words.

Pure; the rules that use it are in ``membership``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rankspawn.launch.rendezvous.job_state import Cause, Dismissal, JobState, Member, Result
from rankspawn.launch.rendezvous.placement import describe_missing, describe_node, name_some

__all__ = [
    "all_causes",
    "began_with_failure",
    "find_failures",
    "find_leavers",
    "find_vanished",
    "leaving_server",
    "name_silent_store",
    "refuse_surplus",
    "refuse_twin",
    "too_few",
    "waiting_text",
]


def refuse_twin(twin: Member, holder: Member) -> Dismissal:
    """For a node whose given rank another one has."""
    text = (
        f"{describe_node(twin)} and {describe_node(holder)} were both given --rank "
        f"{twin.given_rank}: give each node its own, or none"
    )
    return Dismissal(twin.name, Cause("refused", text, node=twin.name, host=twin.host))


def refuse_surplus(state: JobState, member: Member) -> Dismissal:
    """For a node that comes to a complete job of fixed size."""
    text = (
        f"{describe_node(member)} came too late: all {len(state.group)} nodes of the job are there "
        f"({name_some(state.hosts)}), and their number is fixed"
    )
    return Dismissal(member.name, Cause("refused", text, node=member.name, host=member.host))


def find_failures(state: JobState, members: Mapping[str, Member]) -> list[Cause]:
    """Failed workers of this generation, in the order in which the store heard of them."""
    failed = [
        members[name]
        for name in state.group
        if name in members and members[name].news.failed == state.generation
    ]
    failed.sort(key=lambda one: one.updated)
    return [_of(state, one, one.news.cause) for one in failed if one.news.cause is not None]


def find_vanished(
    state: JobState, members: Mapping[str, Member], done: frozenset[str]
) -> list[Cause]:
    """Nodes of the newest generation whose leases ended before their work."""
    how = f"vanished: no sign of life for {state.policy.lease_seconds:g} s"
    return [
        _gone("vanished", state, name, how)
        for name in state.group
        if name not in members and name not in done
    ]


def began_with_failure(state: JobState) -> bool:
    """The job ends because of a failed worker, as far as is known."""
    return bool(state.causes) and state.causes[0].kind == "failed"


def all_causes(
    state: JobState, members: Mapping[str, Member], free: frozenset[str], silent: Sequence[Member]
) -> tuple[Cause, ...]:
    """What went wrong, the root cause first: a lost node before the failures that it explains.

    Args:
        state: The job's, which ends.
        members: Who is there.
        free: Nodes that nobody needs any more.
        silent: Those who are there, but have not answered.
    """
    told = [*state.causes, *find_failures(state, members)]
    named = {cause.node for cause in told}
    lost = [one for one in find_vanished(state, members, free) if one.node not in named]
    causes = [*lost, *told] if began_with_failure(state) else [*told, *lost]
    causes += [
        _gone("silent", state, one.name, "does not answer")
        for one in silent
        if one.name in state.group
    ]
    known: dict[str, Cause] = {}
    for cause in causes:
        known.setdefault(cause.node or cause.kind, cause)
    return tuple(known.values())


def _gone(kind: str, state: JobState, name: str, how: str) -> Cause:
    """A cause about a node of the newest generation that cannot be asked any more."""
    rank = state.rank_of(name)
    host = state.hosts[rank] if 0 <= rank < len(state.hosts) else ""
    text = f"node {rank} ({host}, {name}) {how}"
    return Cause(kind, text, node=name, node_rank=rank, host=host)


def find_leavers(
    state: JobState, members: Mapping[str, Member], done: frozenset[str]
) -> list[Cause]:
    """Why nodes of the newest generation want to leave before their work is done."""
    there = [members[name] for name in state.group if name in members and name not in done]
    return [_of(state, one, one.news.leaving) for one in there if one.news.leaving is not None]


def _of(state: JobState, member: Member, cause: Cause) -> Cause:
    """A cause with whose it is, which the rules rely on."""
    rank = state.rank_of(member.name)
    return replace(cause, node=member.name, node_rank=rank, host=member.host)


def leaving_server(members: Mapping[str, Member]) -> Cause | None:
    """Why the node with the embedded master leaves; the job cannot go on without it."""
    return next((one.news.leaving for one in members.values() if one.serves), None)


def name_silent_store(result: Result, address: str) -> Result:
    """The same result, with what did not answer where that is the cause."""
    silence = (
        f": nothing was heard from {address}, where the nodes meet; its machine, the network "
        "between or this machine may have failed"
    )
    causes = (
        replace(one, text=one.text + silence) if one.kind == "lost" else one
        for one in result.causes
    )
    return replace(result, causes=tuple(causes))


def too_few(state: JobState, eligible: Sequence[Member]) -> Cause:
    """For a job that waited in vain for a replacement."""
    policy = state.policy
    text = (
        f"{len(eligible)} of at least {policy.min_nodes} nodes were left, and none took the place "
        f"of a lost one within {policy.elastic_timeout:g} s"
    )
    return Cause("too few", text)


def waiting_text(state: JobState, eligible: Sequence[Member], deadline: float | None) -> str:
    """Who is there, who is missing, and what comes of it.

    Without a countdown: each change of it goes to every node.
    """
    policy = state.policy
    here = name_some([member.host for member in eligible])
    because = f"{state.because}; " if state.because else ""
    text = f"{because}{len(eligible)} of {policy.max_nodes} nodes are here ({here})"
    if len(eligible) < policy.max_nodes:
        text += f", missing: {describe_missing(policy, eligible, policy.max_nodes)}"
    if deadline is None:
        return text
    verb = "starting with these" if len(eligible) >= policy.min_nodes else "giving up"
    return f"{text}; {verb} after {policy.elastic_timeout:g} s"
