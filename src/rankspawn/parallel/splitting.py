"""A communicator of some of the ranks: who is in it, and the memory that they share."""

from __future__ import annotations

import os

from rankspawn.descriptors import anonymous_file
from rankspawn.parallel.lockstep import Lockstep
from rankspawn.parallel.objects import exchange_objects, unpickled
from rankspawn.parallel.peers import Peers
from rankspawn.parallel.region import Region, address_of
from rankspawn.parallel.statistics import Tally

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.parallel.waiting import Sleeper

# More than an address needs.
_ADDRESS_ROOM = 128


def members_of(wishes: Sequence[tuple[int | None, int]], rank: int) -> list[int]:
    """The ranks of one rank's part, in their new order; none if it wants no part.

    Args:
        wishes: Color and key of each rank.
        rank: Whose part.
    """
    color = wishes[rank][0]
    if color is None:
        return []
    same = [each for each, (wish, _) in enumerate(wishes) if wish is not None and wish == color]
    return sorted(same, key=lambda each: (wishes[each][1], each))


def split(step: Lockstep, mine: bytes) -> Lockstep | None:
    """The meetings of this rank's part; see ``Communicator.split``.

    The first member makes the memory, and the others open it at that process. All meet once more:
    then it is there for all members, or none goes on.
    """
    wishes = exchange_objects(step, mine, range(step.size))
    members = members_of([unpickled(wishes[rank]) for rank in range(step.size)], step.rank)
    fd = -1
    try:
        if members and members[0] == step.rank:
            fd = make_file()
            room = step.slot(step.rank, step.parity)
            room[:_ADDRESS_ROOM] = address_of(fd).encode().ljust(_ADDRESS_ROOM)
        parity = step.meet()
        if members and members[0] != step.rank:
            address = bytes(step.slot(members[0], parity)[:_ADDRESS_ROOM]).decode()
            fd = step.open_from(members[0], address)
    except BaseException:
        if fd >= 0:
            os.close(fd)
        raise
    part = None
    if members:
        region = Region(fd, len(members))
        region.list_processes([step.peers.pid(rank) for rank in members])
        whole = step.tally
        tally = Tally([whole.places[rank] for rank in members], whole.shown)
        part = join_region(region, members.index(step.rank), step.sleeper, tally=tally)
    try:
        step.meet()
    except BaseException:
        if part is not None:
            part.leave()
            part.close()
        raise
    return part


def make_file() -> int:
    """A file that this user's processes may share."""
    fd = anonymous_file("rankspawn-part")
    os.fchmod(fd, 0o600)
    return fd


def make_region(size: int) -> Region:
    """Memory of its own, for the first rank of a group."""
    return Region(make_file(), size)


def join_region(
    region: Region,
    rank: int,
    sleeper: Sleeper,
    names: Sequence[int] | None = None,
    tally: Tally | None = None,
) -> Lockstep:
    """Take part as this rank; the region is closed if that is not possible.

    Args:
        region: The memory.
        rank: This rank's place in it.
        sleeper: How to wait.
        names: What the ranks are called in errors, by place; None for their places.
        tally: What it counts in, if others see that elsewhere; None to show it in this memory.
    """
    peers = Peers(region, rank)
    try:
        peers.claim()
    except BaseException:
        peers.close()
        region.close()
        raise
    return Lockstep(region, rank, peers, sleeper, names, tally)
