"""The collectives as users call them: what is the same whatever carries the data.

Arguments are checked, data is held and copied back where it does not lie in one piece, and results
get their kind and shape. How it gets to the others, the methods at the end say, which memory and
engines have each for themselves.
"""

from __future__ import annotations

from typing import Any, TypeVar

from rankspawn.caller import at_users_line
from rankspawn.parallel.buffers import Flat, check_can_be_made, flatten, make_like
from rankspawn.parallel.objects import pickled, unpickled
from rankspawn.parallel.pieces import check_part, check_tag
from rankspawn.parallel.reducing import check_operation
from rankspawn.parallel.usage import Usage

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.parallel.communicator import Communicator

T = TypeVar("T")


class Collectives(Usage):
    """What users call; see :class:`rankspawn.parallel.communicator.Communicator`."""

    def __init__(self, rank: int, size: int, backend: str, timeout: float | None) -> None:
        super().__init__(rank, size, backend, timeout)
        self._parts: list[Communicator] = []

    # -- reductions

    @at_users_line
    def reduce(
        self, buffer: T, dst: int = 0, op: str = "sum", *, timeout: float | None = None
    ) -> T:
        """The same for one rank only; the others' buffers stay as they are."""
        dst = self._check_rank(dst, "dst")
        flat = self._hold(buffer, writable=self.rank == dst)
        self._check_operation(flat, op)
        self._reduce_at(flat, op, dst, timeout)
        if flat.write_back is not None and self.rank == dst:
            flat.write_back()
        return buffer

    @at_users_line
    def reduce_scatter(self, buffer: Any, op: str = "sum", *, timeout: float | None = None) -> Any:
        """This rank's part of what all have, reduced: ``buffer[rank]`` of ``size`` entries."""
        flat = self._hold(buffer, writable=False)
        self._check_rows(flat, "reduce_scatter")
        self._check_operation(flat, op)
        out = self._make_like(flat, flat.shape[1:])
        self._reduce_rows(flat, out, op, timeout)
        return out.source

    # -- data that is moved

    @at_users_line
    def broadcast(self, buffer: T, src: int = 0, *, timeout: float | None = None) -> T:
        """Give all ranks what one has, in place."""
        src = self._check_rank(src, "src")
        flat = self._hold(buffer, writable=self.rank != src)
        self._give_all(flat, src, timeout)
        if flat.write_back is not None and self.rank != src:
            flat.write_back()
        return buffer

    @at_users_line
    def all_gather(self, buffer: Any, *, timeout: float | None = None) -> Any:
        """What all ranks have, by rank: a new array with one more dimension in front."""
        flat = self._hold(buffer, writable=False)
        out = self._make_like(flat, (self.size, *flat.shape))
        self._gather(flat, out, None, timeout)
        return out.source

    @at_users_line
    def gather(self, buffer: Any, dst: int = 0, *, timeout: float | None = None) -> Any:
        """The same for one rank; None for the others."""
        dst = self._check_rank(dst, "dst")
        flat = self._hold(buffer, writable=False)
        out = self._make_like(flat, (self.size, *flat.shape)) if self.rank == dst else None
        self._gather(flat, out, dst, timeout)
        return None if out is None else out.source

    @at_users_line
    def scatter(self, array: Any = None, src: int = 0, *, timeout: float | None = None) -> Any:
        """This rank's part of an array that one rank has: ``array[rank]`` of ``size`` entries."""
        src = self._check_rank(src, "src")
        flat: Flat | None = None
        if self.rank == src:
            flat = flatten(array, writable=False)
            self._check_rows(flat, "scatter")
            check_can_be_made(flat)
        return self._deal(flat, src, timeout)

    @at_users_line
    def all_to_all(self, buffer: Any, *, timeout: float | None = None) -> Any:
        """What all ranks have for this one: entry ``i`` is rank i's ``buffer[rank]``."""
        flat = self._hold(buffer, writable=False)
        self._check_rows(flat, "all_to_all")
        out = self._make_like(flat, flat.shape)
        self._swap_rows(flat, out, timeout)
        return out.source

    # -- messages

    @at_users_line
    def send(self, buffer: Any, dst: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Send to one rank; small messages do not wait until it takes them."""
        dst = self._check_message(dst, "dst", tag)
        self._send(self._hold(buffer, writable=False), dst, tag, timeout)

    @at_users_line
    def recv(self, buffer: T, src: int, tag: int = 0, *, timeout: float | None = None) -> T:
        """Take the first message with this tag from one rank, in place."""
        src = self._check_message(src, "src", tag)
        flat = self._hold(buffer, writable=True)
        self._receive(flat, src, tag, timeout)
        if flat.write_back is not None:
            flat.write_back()
        return buffer

    # -- objects

    @at_users_line
    def broadcast_object(
        self, obj: Any = None, src: int = 0, *, timeout: float | None = None
    ) -> Any:
        """What one rank has, whatever can be pickled."""
        src = self._check_rank(src, "src")
        mine = pickled(obj) if self.rank == src else b""
        return unpickled(self._give_object(mine, src, timeout))

    @at_users_line
    def gather_object(
        self, obj: Any, dst: int = 0, *, timeout: float | None = None
    ) -> list[Any] | None:
        """What all ranks have, by rank, for one of them; None for the others."""
        dst = self._check_rank(dst, "dst")
        found = self._gather_objects(pickled(obj), dst, timeout)
        return [unpickled(each) for each in found] if self.rank == dst else None

    @at_users_line
    def all_gather_object(self, obj: Any, *, timeout: float | None = None) -> list[Any]:
        """What all ranks have, by rank."""
        return [unpickled(each) for each in self._gather_objects(pickled(obj), None, timeout)]

    # -- parts

    @at_users_line
    def split(
        self, color: int | None, key: int = 0, *, timeout: float | None = None
    ) -> Communicator | None:
        """A communicator of the ranks with the same color, ordered by key and rank.

        None for a rank whose color is None.
        """
        check_part(color, key)
        part = self._split(pickled((color, key)), timeout)
        if part is not None:
            self._parts.append(part)
        return part

    # -- how data is held; engines have tensors on devices as well

    def _hold(self, source: Any, *, writable: bool) -> Flat:
        return flatten(source, writable=writable)

    def _make_like(self, flat: Flat, shape: Sequence[int]) -> Flat:
        return make_like(flat, shape)

    def _check_operation(self, flat: Flat, op: str) -> None:
        check_operation(op, flat.dtype)

    def _check_message(self, rank: int, name: str, tag: int) -> int:
        check_tag(tag)
        return self._check_peer(rank, name)

    # -- how it gets to the others

    def _reduce_at(self, flat: Flat, op: str, dst: int, timeout: float | None) -> None:
        """Reduce into one rank's; what the others have stays."""
        raise NotImplementedError

    def _reduce_rows(self, flat: Flat, out: Flat, op: str, timeout: float | None) -> None:
        """Reduce this rank's row of what all have."""
        raise NotImplementedError

    def _give_all(self, flat: Flat, src: int, timeout: float | None) -> None:
        """One rank's, for all."""
        raise NotImplementedError

    def _gather(self, flat: Flat, out: Flat | None, dst: int | None, timeout: float | None) -> None:
        """What all have, for one that has room for it, or for all."""
        raise NotImplementedError

    def _deal(self, flat: Flat | None, src: int, timeout: float | None) -> Any:
        """A row of what one has for each; the others do not know its type and shape."""
        raise NotImplementedError

    def _swap_rows(self, flat: Flat, out: Flat, timeout: float | None) -> None:
        """A row of each for each."""
        raise NotImplementedError

    def _send(self, flat: Flat, dst: int, tag: int, timeout: float | None) -> None:
        """A message to one."""
        raise NotImplementedError

    def _receive(self, flat: Flat, src: int, tag: int, timeout: float | None) -> None:
        """A message from one."""
        raise NotImplementedError

    def _give_object(self, mine: bytes, src: int, timeout: float | None) -> bytes | bytearray:
        """The bytes of one, for all."""
        raise NotImplementedError

    def _gather_objects(
        self, mine: bytes, dst: int | None, timeout: float | None
    ) -> Sequence[bytes | bytearray]:
        """The bytes of all, for one or for all; none for the others."""
        raise NotImplementedError

    def _split(self, mine: bytes, timeout: float | None) -> Communicator | None:
        """The part that this rank has asked for, as all have."""
        raise NotImplementedError
