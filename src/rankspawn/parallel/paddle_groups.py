"""paddle.distributed as an engine: gloo on the CPU, NCCL and others on devices.

An initialised environment is used; else one is made from the rank's variables. Paddle's gloo ends
the process when it is given a type that it does not know, so only those that it knows get there.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rankspawn.parallel.buffers import DeviceFlat, Flat, need_numpy
from rankspawn.parallel.engines import SomeRanks

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.parallel.engines import Transfers

_OPERATIONS = {"sum": "SUM", "avg": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}
_TYPES = ("float32", "float64", "int32", "int64", "uint8", "int8")
_WITHOUT_ROWS = "over paddle.distributed tensors on a device can be reduced, broadcast and gathered"


class PaddleGroups(SomeRanks):
    """Some ranks of Paddle's default group; see :class:`.engines.Engine`."""

    # Its functions have neither.
    has_tags: bool = False
    has_timeouts: bool = False

    def __init__(
        self, paddle: Any, members: Sequence[int], group: Any = None, *, made: bool = False
    ) -> None:
        super().__init__(paddle.distributed, members, group, made=made)
        self._paddle = paddle
        # Over its gloo messages arrive among two ranks, and were seen not to among four, as if both
        # sides counted all their messages and had to be at the same number.
        self.has_messages: bool = self.size == 2 or self._dist.get_backend(group) != "GLOO"
        self.name: str = f"paddle:{self._dist.get_backend(group).lower()}"

    # -- data

    def hold(self, tensor: Any) -> Flat:
        """A tensor on a device, with flat data."""
        if not isinstance(tensor, self._paddle.Tensor):
            raise TypeError(f"{type(tensor).__name__} cannot be exchanged over {self.name}")
        plain = tensor.detach()
        used = plain.contiguous().flatten()
        dtype = str(tensor.dtype).rpartition(".")[2]

        def write_back() -> None:
            plain.copy_(used.reshape(plain.shape), True)

        return DeviceFlat(tensor, used, dtype, tuple(tensor.shape), "paddle", write_back)

    def make_like(self, flat: Flat, shape: Sequence[int]) -> Flat:
        """A new tensor on the same device."""
        return self.hold(self._paddle.zeros(list(shape), dtype=flat.dtype))

    def _tensor(self, data: Any, dtype: str = "uint8") -> Any:
        """A tensor with the same data, where Paddle has its tensors."""
        if isinstance(data, self._paddle.Tensor):
            return data
        numpy = need_numpy("Paddle takes arrays")
        return self._paddle.to_tensor(numpy.frombuffer(data, dtype))

    def _put(self, tensor: Any, data: Any) -> None:
        """What came out, into the memory that it is for."""
        if tensor is not data:
            data[:] = memoryview(tensor.numpy()).cast("B")

    # -- collectives

    def reduces(self, flat: Flat, op: str) -> bool:
        """Whether Paddle has this operation for these numbers."""
        if op not in _OPERATIONS:
            return False
        return isinstance(flat, DeviceFlat) or flat.dtype in _TYPES

    def all_reduce(self, flat: Flat, op: str, timeout: float | None) -> None:
        """Reduce in place."""
        del timeout
        tensor = self._tensor(flat.data, flat.dtype)
        how = getattr(self._dist.ReduceOp, _OPERATIONS[op])
        self._dist.all_reduce(tensor, how, group=self._group)
        if op == "avg":
            tensor.scale_(1 / self.size) if self._is_exact() else tensor.divide_(
                self._paddle.to_tensor(self.size, dtype=tensor.dtype)
            )
        self._put(tensor, flat.data)

    def _is_exact(self) -> bool:
        """Whether a division can be a multiplication without another rounding."""
        return self.size & (self.size - 1) == 0

    def broadcast(self, data: Any, src: int, timeout: float | None) -> None:
        """Give all ranks what one has."""
        del timeout
        tensor = self._tensor(data)
        self._dist.broadcast(tensor, self._members[src], group=self._group)
        if self.rank != src:
            self._put(tensor, data)

    def all_gather(self, rows: Sequence[Any], data: Any, timeout: float | None) -> None:
        """Give all ranks what all have: one row for each."""
        del timeout
        found: list[Any] = []
        self._dist.all_gather(found, self._tensor(data), group=self._group)
        for rank, tensor in zip(self._in_its_order(), found, strict=True):
            if isinstance(rows[rank], self._paddle.Tensor):
                raise TypeError(_WITHOUT_ROWS)
            self._put(tensor, rows[rank])

    def exchange(self, sends: Transfers, receives: Transfers, timeout: float | None) -> None:
        """Data to some ranks and from some: each rank in turn gives all of its data to all.

        Not by messages, which do not arrive; see ``has_messages``.
        """
        lengths = [0] * self.size
        for to, data in sends:
            lengths[to] = self._length(data)
        told = bytearray(8 * self.size * self.size)
        row = b"".join(each.to_bytes(8, "little") for each in lengths)
        width = len(row)
        rows = [memoryview(told)[rank * width :][:width] for rank in range(self.size)]
        self.all_gather(rows, memoryview(row), timeout)
        wanted = dict(receives)
        for source, view in enumerate(rows):
            ends = [0]
            for to in range(self.size):
                ends.append(ends[-1] + int.from_bytes(view[8 * to : 8 * to + 8], "little"))
            if not ends[-1]:
                continue
            room = bytearray(ends[-1])
            if source == self.rank:
                for to, data in sends:
                    room[ends[to] : ends[to + 1]] = data
            self.broadcast(memoryview(room), source, timeout)
            if source in wanted:
                wanted[source][:] = memoryview(room)[ends[self.rank] : ends[self.rank + 1]]

    def _length(self, data: Any) -> int:
        if isinstance(data, self._paddle.Tensor):
            raise TypeError(_WITHOUT_ROWS)
        return len(data)

    def send(self, data: Any, dst: int, tag: int, timeout: float | None) -> None:
        """A message to one rank; Paddle waits until it is received."""
        del tag, timeout
        self._dist.send(self._tensor(data), self._members[dst], group=self._group)

    def recv(self, data: Any, src: int, tag: int, timeout: float | None) -> None:
        """A message from one rank."""
        del tag, timeout
        tensor = self._tensor(data)
        self._dist.recv(tensor, self._members[src], group=self._group)
        self._put(tensor, data)

    def post(self, data: memoryview, dst: int, tag: int) -> None:
        """Send this; Paddle waits until it is received."""
        self.send(data, dst, tag, None)

    def barrier(self, timeout: float | None) -> None:
        """Wait for all."""
        del timeout
        self._dist.barrier(group=self._group)

    # -- parts, end

    def split(self, groups: Sequence[Sequence[int]], mine: Sequence[int]) -> PaddleGroups | None:
        """The engine of this rank's group."""
        if self._group is not None:
            raise RuntimeError("paddle.distributed makes groups out of all ranks only: split those")
        found = None
        # Paddle numbers its groups, so all ranks have to make all of them.
        for group in groups:
            members = [self._members[rank] for rank in group]
            made = self._dist.new_group(sorted(members))
            if tuple(group) == tuple(mine):
                found = PaddleGroups(self._paddle, members, made)
        return found

    def close(self) -> None:
        """Let go of what this engine has made."""
        if self._made and self._dist.is_initialized():
            self._dist.destroy_process_group()


def connect(wanted: str, members: Sequence[int] = ()) -> PaddleGroups:
    """Paddle's default group, made if there is none, or some of its ranks.

    Args:
        wanted: ``paddle``, or with a colon and what carries the data.
        members: The default group's ranks by their numbers here; none for all of them.

    Raises:
        RuntimeError: Paddle is not installed, or there is a group of another kind.
    """
    try:
        paddle: Any = import_module("paddle")
        import_module("paddle.distributed")
    except ImportError as error:
        raise RuntimeError(
            f"backend={wanted!r} needs paddlepaddle, which cannot be imported ({error}): pip "
            "install paddlepaddle"
        ) from error
    made = not paddle.distributed.is_initialized()
    if made:
        paddle.distributed.init_parallel_env()
    everyone = range(paddle.distributed.get_world_size())
    if members and list(members) != list(everyone):
        raise RuntimeError("paddle.distributed exchanges tensors on a device among all ranks only")
    engine = PaddleGroups(paddle, everyone, made=made)
    if ":" in wanted and engine.name != wanted:
        raise RuntimeError(f"backend={wanted!r}, but paddle.distributed has made {engine.name}")
    return engine
