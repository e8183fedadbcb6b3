"""Which members are sent away, and when.

Pure; the rules that use it are in ``membership``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rankspawn.launch.rendezvous.causes import refuse_surplus, refuse_twin
from rankspawn.launch.rendezvous.job_state import Dismissal, JobState, Member, Phase, Policy
from rankspawn.launch.rendezvous.placement import find_objections, find_twins

__all__ = ["dismiss_blamed", "patience_ends", "send_away"]


def send_away(
    state: JobState, members: Mapping[str, Member], changed: float, now: float
) -> JobState:
    """The same state, with those dismissed who can never take part.

    Args:
        state: The job's.
        members: Who is there.
        changed: When that last changed.
        now: The same clock now.
    """
    if state.phase in (Phase.ENDING, Phase.ENDED):
        return state
    kept = tuple(one for one in state.dismissed if one.name in members)
    known = {one.name for one in kept}
    others = [one for one in members.values() if one.name not in known]
    fresh = find_objections(state, others)
    if now >= changed + _patience(state.policy):
        fresh += [refuse_twin(twin, holder) for twin, holder in find_twins(state, others)]
        fresh += [refuse_surplus(state, one) for one in _surplus(state, others)]
    first: dict[str, Dismissal] = {}
    for one in fresh:
        first.setdefault(one.name, one)
    return replace(state, dismissed=kept + tuple(first.values()))


def _surplus(state: JobState, members: Iterable[Member]) -> list[Member]:
    """Members that come to a complete job of fixed size."""
    if state.phase is not Phase.RUNNING:
        return []
    return [one for one in members if not state.concerns(one.name)]


def _patience(policy: Policy) -> float:
    """Longer than a lease, with which the former selves of restarted nodes go."""
    return 1.5 * policy.lease_seconds


def patience_ends(state: JobState, members: Mapping[str, Member], changed: float) -> float | None:
    """When somebody is to be sent away who is tolerated now; None if there is nobody."""
    sent_away = {one.name for one in state.dismissed}
    others = [one for one in members.values() if one.name not in sent_away]
    if find_twins(state, others) or _surplus(state, others):
        return changed + _patience(state.policy)
    return None


def dismiss_blamed(state: JobState, members: Mapping[str, Member]) -> JobState:
    """Send away the node whose worker failed first, unless another one is gone.

    When a node dies, workers of the others fail because they lose their peers; then those are
    victims, and their nodes stay.
    """
    blamed = members.get(state.blamed)
    somebody_gone = any(name not in members for name in state.group)
    if blamed is None or somebody_gone or blamed.news.cause is None:
        return replace(state, blamed="")
    dismissed = (*state.dismissed, Dismissal(blamed.name, blamed.news.cause))
    return replace(state, blamed="", dismissed=dismissed)
