"""What went wrong with which node, and what a job waits for, in words.

Pure; the rules that use it are in ``job_rules``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rankspawn.launch.rendezvous.job_state import JobState, Member
from rankspawn.launch.rendezvous.placement import describe_missing, name_some
from rankspawn.launch.session import Cause, JobResult
from rankspawn.plan.topology import is_loopback, plain


def find_failures(state: JobState, members: Mapping[str, Member]) -> list[Cause]:
    """Failed workers of this generation, in the order in which the store heard of them."""
    failed = [
        members[name]
        for name in state.group
        if name in members and members[name].report.failed == state.generation
    ]
    failed.sort(key=lambda member: member.updated)
    return [
        _of(member, member.report.cause) for member in failed if member.report.cause is not None
    ]


def find_vanished(
    state: JobState, members: Mapping[str, Member], done: frozenset[str]
) -> list[Cause]:
    """Nodes of the newest generation whose leases ended before their work."""
    how = f"vanished: no sign of life for {state.terms.lease_seconds:g} s"
    return [
        _gone("vanished", state, name, how)
        for name in state.group
        if name not in members and name not in done
    ]


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
    lost = [cause for cause in find_vanished(state, members, free) if cause.node not in named]
    causes = [*lost, *told] if state.began_with_failure else [*told, *lost]
    causes += [
        _gone("silent", state, member.name, "does not answer")
        for member in silent
        if member.name in state.group
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
    return Cause(kind, text, node=name)


def find_lost(state: JobState, members: Mapping[str, Member], done: frozenset[str]) -> list[Cause]:
    """Nodes of the newest generation that are gone, or want to go, before their work is done."""
    return find_vanished(state, members, done) + _find_leavers(state, members, done)


def _find_leavers(
    state: JobState, members: Mapping[str, Member], done: frozenset[str]
) -> list[Cause]:
    there = [members[name] for name in state.group if name in members and name not in done]
    return [
        _of(member, member.report.leaving) for member in there if member.report.leaving is not None
    ]


def _of(member: Member, cause: Cause) -> Cause:
    """A cause with whose it is, which the rules rely on."""
    return replace(cause, node=member.name)


def leaving_server(members: Mapping[str, Member]) -> Cause | None:
    """Why the node with the embedded master leaves; the job cannot go on without it."""
    return next((member.report.leaving for member in members.values() if member.serves), None)


def explain_absence(result: JobResult, address: str, sent_away: Sequence[str] = ()) -> JobResult:
    """The same result, with what is known here of why somebody did not come, or does not answer.

    Args:
        result: How the job ended.
        address: Where the nodes meet.
        sent_away: Where those came from who had another token.
    """
    silence = (
        f": nothing was heard from {address}, where the nodes meet; its machine, the network "
        "between or this machine may have failed"
    )
    host = plain(address.rpartition("/")[2].rpartition(":")[0])
    alone = (
        f"; {address} is on each machine its own: for nodes on several, give an address at which "
        "all reach one of them with --master; for more time on one machine give --join_timeout"
    )
    # Not proof enough to end the job at once: anybody could have come.
    strangers = (
        f"; {name_some(sent_away)} came with another token, or for another job, and was sent away: "
        "give the same --job_id and the same RANKSPAWN_JOB_TOKEN on every node"
    )

    def more(cause: Cause) -> str:
        if cause.kind == "too few":
            if sent_away:
                return strangers
            return alone if is_loopback(host) and "--join_timeout" in cause.text else ""
        return silence if cause.kind == "lost" else ""

    causes = (replace(cause, text=cause.text + more(cause)) for cause in result.causes)
    return replace(result, causes=tuple(causes))


def too_few(state: JobState, eligible: Sequence[Member]) -> Cause:
    """The cause of the end of a job that waited in vain for nodes."""
    terms = state.terms
    if not state.group:
        came = name_some([member.host for member in eligible]) or "none"
        text = (
            f"{len(eligible)} of at least {terms.min_nodes} nodes came within "
            f"{terms.join_timeout:g} s ({came}), missing: "
            f"{describe_missing(terms, eligible, terms.min_nodes)}; see --join_timeout"
        )
        return Cause("too few", text)
    text = (
        f"{len(eligible)} of at least {terms.min_nodes} nodes were left, and none took the place "
        f"of a lost one within {terms.elastic_timeout:g} s"
    )
    return Cause("too few", text)


def pause_text(state: JobState) -> str:
    """Why there is a pause before the next start, and how long it is."""
    return f"{state.because}; the next start is in {state.pause:g} s"


def waiting_text(state: JobState, eligible: Sequence[Member]) -> str:
    """Who is there, who is missing, and what comes of it.

    Without a countdown: each change of it goes to every node.
    """
    terms = state.terms
    here = name_some([member.host for member in eligible]) or "none"
    why = state.causes[0].text if state.is_doomed else state.because
    because = f"{why}; " if why else ""
    text = f"{because}{len(eligible)} of {terms.max_nodes} nodes are here ({here})"
    if len(eligible) < terms.max_nodes:
        text += f", missing: {describe_missing(terms, eligible, terms.max_nodes)}"
    if len(eligible) >= terms.min_nodes:
        return f"{text}; starting with these after {terms.elastic_timeout:g} s"
    return f"{text}; giving up after {state.patience:g} s"
