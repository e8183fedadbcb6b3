"""What ranks ask of an engine that connects them: torch.distributed, Paddle's, MPI."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from rankspawn.parallel.buffers import Flat

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence


# Data and the other rank, of some transfers at once.
Transfers: TypeAlias = "Sequence[tuple[int, Any]]"


class Engine(Protocol):
    """What a communicator asks of an engine.

    Data are views of bytes in this machine's memory, or flat tensors on a device. Each method that
    waits takes the seconds to do so; None for as long as the engine does.

    Attributes:
        rank: This rank's number in the group.
        size: How many ranks there are.
        name: What ``Communicator.backend`` says.
        has_messages: Two ranks can send each other something.
        has_tags: Messages have tags.
        has_timeouts: It can wait for a limited time.
    """

    rank: int
    size: int
    name: str
    has_messages: bool
    has_tags: bool
    has_timeouts: bool

    def hold(self, tensor: Any) -> Flat:
        """A tensor on a device, with flat data.

        Raises:
            TypeError: It is none that this engine can exchange.
        """

    def make_like(self, flat: Flat, shape: Sequence[int]) -> Flat:
        """A new tensor on the same device."""

    def reduces(self, flat: Flat, op: str) -> bool:
        """Whether it has this operation for these numbers."""

    def all_reduce(self, flat: Flat, op: str, timeout: float | None) -> None:
        """Reduce in place."""

    def broadcast(self, data: Any, src: int, timeout: float | None) -> None:
        """Give all ranks what one has."""

    def all_gather(self, rows: Sequence[Any], data: Any, timeout: float | None) -> None:
        """Give all ranks what all have: one row for each."""

    def exchange(self, sends: Transfers, receives: Transfers, timeout: float | None) -> None:
        """Data to some ranks and from some, in whatever order it comes; all ranks call it."""

    def send(self, data: Any, dst: int, tag: int, timeout: float | None) -> None:
        """A message to one rank, which calls :meth:`recv`."""

    def recv(self, data: Any, src: int, tag: int, timeout: float | None) -> None:
        """A message from one rank."""

    def post(self, data: memoryview, dst: int, tag: int) -> None:
        """Send a copy of this without waiting until it is taken, if that can be."""

    def barrier(self, timeout: float | None) -> None:
        """Wait for all."""

    def split(self, groups: Sequence[Sequence[int]], mine: Sequence[int]) -> Engine | None:
        """The engine of this rank's group; all ranks call it, each with all groups."""

    def close(self) -> None:
        """Let go of what this engine has made."""


class Carrier:
    """Messages of an engine to which one is an exchange with a tag."""

    def exchange(self, sends: Transfers, receives: Transfers, timeout: float | None) -> None:
        """Data to some ranks and from some, in whatever order it comes."""
        self._carry(sends, receives, 0, timeout)

    def send(self, data: Any, dst: int, tag: int, timeout: float | None) -> None:
        """A message to one rank."""
        self._carry([(dst, data)], [], tag, timeout)

    def recv(self, data: Any, src: int, tag: int, timeout: float | None) -> None:
        """A message from one rank."""
        self._carry([], [(src, data)], tag, timeout)

    def _carry(
        self, sends: Transfers, receives: Transfers, tag: int, timeout: float | None
    ) -> None:
        raise NotImplementedError


class SomeRanks:
    """Some ranks of a framework's default group.

    Args:
        dist: The framework's module of collectives.
        members: The default group's ranks, by the number that they have here.
        group: Their group; None for the default one.
        made: The default group was made for this engine, and ends with it.

    Attributes:
        rank: This rank's number among them.
        size: How many there are.
    """

    def __init__(self, dist: Any, members: Sequence[int], group: Any, *, made: bool) -> None:
        self._dist = dist
        self._members = list(members)
        self._group = group
        self._made = made
        self.rank: int = self._members.index(dist.get_rank())
        self.size: int = len(self._members)

    def _in_its_order(self) -> list[int]:
        """The ranks in the framework's own order, which is that of its results."""
        return sorted(range(self.size), key=self._members.__getitem__)
