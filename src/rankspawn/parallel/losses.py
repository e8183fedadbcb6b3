"""Why a rank is not to be expected any more: what ranks say of themselves, and the kernel."""

from __future__ import annotations

from rankspawn.errors import CollectiveMismatchError, CollectiveTimeoutError, RankLostError
from rankspawn.parallel.peers import (
    ABSENT,
    BROKEN,
    BY_EXCEPTION,
    BY_LOSS,
    BY_MESSAGE,
    BY_MISMATCH,
    BY_TIMEOUT,
    LEFT,
    Peers,
)

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence


class Losses:
    """The errors of one rank about the others.

    Args:
        peers: The others.
        rank: This rank's place.
        names: What errors call the ranks, by place.
    """

    def __init__(self, peers: Peers, rank: int, names: Sequence[int]) -> None:
        self._peers = peers
        self._rank = rank
        self._names = names

    def timeout(
        self, name: str, missing: Sequence[int], limit: float | None
    ) -> CollectiveTimeoutError:
        """The error that names who has not come."""
        return self._timeout(name, missing, f"in {limit:g} s")

    def find(self, rank: int, name: str) -> Exception | None:
        """Why nothing more is to be expected of a rank; None if it is at work."""
        state = self._peers.state(rank)
        if state == LEFT:
            return self._loss(rank, name, f"has left (process {self._peers.pid(rank)})")
        if state == BROKEN:
            return self._explain_broken(rank, name)
        if not self._peers.is_gone(rank):
            return None
        if self._peers.state(rank) != state:  # it has said why before it ended
            return self.find(rank, name)
        how = "ended before it called init_parallel_env" if state == ABSENT else "is gone"
        return self._loss(rank, name, f"(process {self._peers.pid(rank)}) {how}")

    def _explain_broken(self, rank: int, name: str) -> Exception:
        reason, about = self._peers.reason(rank)
        if reason == BY_TIMEOUT and about != self._rank:
            return self._timeout(name, [about], f"before rank {self._names[rank]} gave up")
        if reason == BY_LOSS and about != self._rank:
            return self._loss(about, name, f"is lost, as rank {self._names[rank]} says")
        other = self._names[about]
        why = {
            BY_TIMEOUT: f"gave up waiting for rank {other}, its timeout was over",
            BY_MISMATCH: f"called something else than rank {other}",
            BY_MESSAGE: f"waited for a message of rank {other}, which was in a collective",
        }
        text = why.get(reason, "left a collective in the middle because of an exception")
        return self._loss(rank, name, text)

    def _loss(self, rank: int, name: str, what: str) -> RankLostError:
        who = self._names[rank]
        return RankLostError(f"rank {who} {what}; this rank waits for it in {name}", who, name)

    def _timeout(self, name: str, missing: Sequence[int], when: str) -> CollectiveTimeoutError:
        names = [self._names[rank] for rank in missing]
        who = f"rank{'' if len(names) == 1 else 's'} {', '.join(map(str, names))}"
        return CollectiveTimeoutError(f"{who} did not come to {name} {when}", (*names,), name)

    def reason_for(self, error: BaseException) -> tuple[int, int]:
        """The word for an error, and the place of the rank that it is about."""
        reason, about = BY_EXCEPTION, -1
        if isinstance(error, RankLostError):
            reason, about = BY_LOSS, error.rank
        elif isinstance(error, CollectiveTimeoutError):
            reason, about = BY_TIMEOUT, min(error.missing, default=-1)
        elif isinstance(error, CollectiveMismatchError):
            reason, about = BY_MISMATCH, error.ranks[1]
        if about not in self._names:  # an engine's error, or about a rank of another machine
            return BY_EXCEPTION, self._rank
        return reason, self._names.index(about)
