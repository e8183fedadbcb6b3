"""What ranks can say to each other: one face for every way in which they do."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, runtime_checkable

from rankspawn.parallel.statistics import Statistics

T = TypeVar("T")


@runtime_checkable
class Communicator(Protocol):
    """A group of ranks as one of them sees it.

    All ranks of the group call the same collectives in the same order. Buffers are NumPy arrays,
    tensors on the CPU, and anything with a buffer of numbers. Each method takes ``timeout``, the
    seconds to wait for others; None is the communicator's own.

    After an error in a collective the communicator is of no use any more, and says so.

    Attributes:
        rank: This rank's number in the group.
        size: How many ranks there are.
        backend: Who carries the data: ``shm``, ``torch:gloo``, ``mpi``, ``alone`` and the like.
    """

    rank: int
    size: int
    backend: str

    def barrier(self, *, timeout: float | None = None) -> None:
        """Wait until all ranks have come here."""

    def all_reduce(self, buffer: T, op: str = "sum", *, timeout: float | None = None) -> T:
        """Reduce what all ranks have, in place; every rank gets the same bits."""

    def reduce(
        self, buffer: T, dst: int = 0, op: str = "sum", *, timeout: float | None = None
    ) -> T:
        """The same for one rank only; the others' buffers stay as they are."""

    def broadcast(self, buffer: T, src: int = 0, *, timeout: float | None = None) -> T:
        """Give all ranks what one has, in place."""

    def all_gather(self, buffer: Any, *, timeout: float | None = None) -> Any:
        """What all ranks have, by rank: a new array with one more dimension in front."""

    def gather(self, buffer: Any, dst: int = 0, *, timeout: float | None = None) -> Any:
        """The same for one rank; None for the others."""

    def scatter(self, array: Any = None, src: int = 0, *, timeout: float | None = None) -> Any:
        """This rank's part of an array that one rank has: ``array[rank]`` of ``size`` entries."""

    def reduce_scatter(self, buffer: Any, op: str = "sum", *, timeout: float | None = None) -> Any:
        """This rank's part of what all have, reduced: ``buffer[rank]`` of ``size`` entries."""

    def all_to_all(self, buffer: Any, *, timeout: float | None = None) -> Any:
        """What all ranks have for this one: entry ``i`` is rank i's ``buffer[rank]``."""

    def send(self, buffer: Any, dst: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Send to one rank; small messages do not wait until it takes them."""

    def recv(self, buffer: T, src: int, tag: int = 0, *, timeout: float | None = None) -> T:
        """Take the first message with this tag from one rank, in place."""

    def broadcast_object(
        self, obj: Any = None, src: int = 0, *, timeout: float | None = None
    ) -> Any:
        """What one rank has, whatever can be pickled."""

    def gather_object(
        self, obj: Any, dst: int = 0, *, timeout: float | None = None
    ) -> list[Any] | None:
        """What all ranks have, by rank, for one of them; None for the others."""

    def all_gather_object(self, obj: Any, *, timeout: float | None = None) -> list[Any]:
        """What all ranks have, by rank."""

    def empty(self, shape: Any, dtype: Any = "float32", *, timeout: float | None = None) -> Any:
        """A NumPy array that all ranks map, so that all_reduce of it copies nothing."""

    def split(
        self, color: int | None, key: int = 0, *, timeout: float | None = None
    ) -> Communicator | None:
        """A communicator of the ranks with the same color, ordered by key and rank.

        None for a rank whose color is None.
        """

    def statistics(self) -> Statistics:
        """What this rank has exchanged so far, and for whom it waited."""

    def close(self) -> None:
        """Leave; whoever still waits for this rank is told. A second call does nothing."""
