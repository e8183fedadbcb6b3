"""torch.distributed as an engine: gloo for memory, NCCL and others for tensors on devices.

An initialised process group is used; else one is made from the rank's variables.
"""

from __future__ import annotations

import datetime
import os
import warnings
from importlib import import_module
from typing import Any

from rankspawn.parallel.buffers import DeviceFlat, Flat, device_type
from rankspawn.parallel.engines import Carrier, SomeRanks
from rankspawn.parallel_env import ParallelEnv, get_rank, get_world_size

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.parallel.engines import Transfers

_OPERATIONS = {
    "sum": "SUM", "avg": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX",
    "band": "BAND", "bor": "BOR", "bxor": "BXOR",
}  # fmt: skip
_WHOLE = ("int8", "uint8", "int32", "int64")
_WIDE = ("float32", "float64")
# What gloo would round after each addition; it is summed with 32 bits, and rounded once.
_NARROW = ("float16", "bfloat16")
# For messages that nobody has taken when the communicator is closed.
_CLOSE_SECONDS = 5.0


class TorchGroups(SomeRanks, Carrier):
    """Some ranks of torch's default process group; see :class:`.engines.Engine`."""

    has_messages: bool = True
    has_timeouts: bool = True

    def __init__(
        self, torch: Any, members: Sequence[int], group: Any = None, *, made: bool = False
    ) -> None:
        super().__init__(torch.distributed, members, group, made=made)
        self._torch = torch
        self._backends = _backends_of(self._dist, group)
        self._others: dict[str, Any] = {}
        self._posted: list[tuple[Any, Any]] = []
        device = _device_of_rank()
        carrier = self._backends.get(device) or next(iter(self._backends.values()))
        self.name: str = f"torch:{carrier}"
        self.has_tags: bool = carrier == "gloo"

    # -- data

    def hold(self, tensor: Any) -> Flat:
        """A tensor on a device, with flat data."""
        if not isinstance(tensor, self._torch.Tensor) or tensor.layout != self._torch.strided:
            raise TypeError(f"{type(tensor).__name__} cannot be exchanged over {self.name}")
        plain = tensor.detach()
        used, write_back = plain, None
        if not plain.is_contiguous():
            used = plain.contiguous()
            write_back = lambda: plain.copy_(used)  # noqa: E731 - as short as it can be
        dtype = str(tensor.dtype).removeprefix("torch.")
        return DeviceFlat(tensor, used.view(-1), dtype, tuple(tensor.shape), "torch", write_back)

    def make_like(self, flat: Flat, shape: Sequence[int]) -> Flat:
        """A new tensor on the same device."""
        data: Any = flat.data
        return self.hold(self._torch.empty(tuple(shape), dtype=data.dtype, device=data.device))

    def _tensor(self, data: Any, dtype: str = "uint8") -> Any:
        """Bytes of memory as a tensor of it, without a copy."""
        if isinstance(data, self._torch.Tensor):
            return data
        with warnings.catch_warnings():
            # What must not be written to is only sent.
            warnings.simplefilter("ignore", UserWarning)
            return self._torch.frombuffer(data, dtype=getattr(self._torch, dtype))

    def _group_for(self, tensor: Any) -> Any:
        """The process group that reaches a tensor where it is; all ranks ask for it together."""
        device = device_type(tensor)
        if device in self._backends:
            return self._group
        if device not in self._others:
            backend = "gloo"
            if device != "cpu":
                backend = self._dist.get_default_backend_for_device(device)
            self._others[device] = self._new_group(self._members, backend)
        return self._others[device]

    def _new_group(self, members: Sequence[int], backend: str | None = None) -> Any:
        # Only those who are in it make it: ranks of one part need not know what others do.
        return self._dist.new_group(
            sorted(members), backend=backend, use_local_synchronization=True
        )

    # -- collectives

    def reduces(self, flat: Flat, op: str) -> bool:
        """Whether gloo or the device's engine has this operation for these numbers."""
        if isinstance(flat, DeviceFlat):
            return op not in ("band", "bor", "bxor")
        if op in ("band", "bor", "bxor"):
            return flat.dtype in _WHOLE
        return flat.dtype in (*_WHOLE, *_WIDE, *_NARROW)

    def all_reduce(self, flat: Flat, op: str, timeout: float | None) -> None:
        """Reduce in place."""
        tensor = self._tensor(flat.data, flat.dtype)
        is_narrow = flat.dtype in _NARROW and not isinstance(flat, DeviceFlat)
        wide = tensor.float() if is_narrow else tensor
        how = getattr(self._dist.ReduceOp, _OPERATIONS[op])
        group = self._group_for(tensor)
        self._wait(self._dist.all_reduce(wide, how, group=group, async_op=True), timeout)
        if op == "avg":
            wide.div_(self.size)
        if wide is not tensor:
            tensor.copy_(wide)

    def broadcast(self, data: Any, src: int, timeout: float | None) -> None:
        """Give all ranks what one has."""
        tensor = self._tensor(data)
        group = self._group_for(tensor)
        work = self._dist.broadcast(tensor, self._members[src], group=group, async_op=True)
        self._wait(work, timeout)

    def all_gather(self, rows: Sequence[Any], data: Any, timeout: float | None) -> None:
        """Give all ranks what all have: one row for each."""
        tensor = self._tensor(data)
        targets = [self._tensor(rows[rank]) for rank in self._in_its_order()]
        group = self._group_for(tensor)
        self._wait(self._dist.all_gather(targets, tensor, group=group, async_op=True), timeout)

    def _carry(
        self, sends: Transfers, receives: Transfers, tag: int, timeout: float | None
    ) -> None:
        self._forget_done()
        works = []
        jobs = [(self._dist.isend, *each) for each in sends]
        jobs += [(self._dist.irecv, *each) for each in receives]
        # The same order of pairs on both sides, which NCCL needs.
        for function, rank, data in jobs:
            tensor = self._tensor(data)
            group = self._group_for(tensor)
            # Kept until its end: its memory is used in another thread.
            works.append((function(tensor, self._members[rank], group=group, tag=tag), tensor))
        for work, _ in works:
            self._wait(work, timeout)

    def post(self, data: memoryview, dst: int, tag: int) -> None:
        """Send a copy of this without waiting until it is taken."""
        self._forget_done()
        tensor = self._tensor(bytearray(data))
        work = self._dist.isend(tensor, self._members[dst], group=self._group_for(tensor), tag=tag)
        self._posted.append((work, tensor))

    def _forget_done(self) -> None:
        self._posted = [each for each in self._posted if not each[0].is_completed()]

    def barrier(self, timeout: float | None) -> None:
        """Wait for all: a sum of nothing much, which has a time limit everywhere."""
        tensor = self._torch.zeros(1, dtype=self._torch.uint8)
        group = self._group_for(tensor)
        self._wait(self._dist.all_reduce(tensor, group=group, async_op=True), timeout)

    def _wait(self, work: Any, timeout: float | None) -> None:
        if timeout is None:
            work.wait()
        else:
            work.wait(datetime.timedelta(seconds=timeout))

    # -- parts, end

    def split(self, groups: Sequence[Sequence[int]], mine: Sequence[int]) -> TorchGroups | None:
        """The engine of this rank's group."""
        if tuple(mine) not in groups:
            return None
        members = [self._members[rank] for rank in mine]
        return TorchGroups(self._torch, members, self._new_group(members))

    def close(self) -> None:
        """Let go of what this engine has made."""
        limit = datetime.timedelta(seconds=_CLOSE_SECONDS)
        for work, _ in self._posted:
            try:
                work.wait(limit)
            except RuntimeError:  # nobody takes it any more
                break
        self._posted.clear()
        if not self._dist.is_initialized():
            return
        if self._made:
            self._dist.destroy_process_group()
        elif self._group is not None:
            self._dist.destroy_process_group(self._group)


def connect(wanted: str, timeout: float | None, members: Sequence[int] = ()) -> TorchGroups:
    """Torch's default process group, made if there is none, or some of its ranks.

    Args:
        wanted: ``torch``, or with a colon and what carries the data.
        timeout: Seconds to wait for others.
        members: The default group's ranks by their numbers here; none for all of them.

    Raises:
        RuntimeError: torch is not installed, the ranks' addresses are not known, or there is a
            process group of another kind.
    """
    torch = _import_torch(wanted)
    made = not torch.distributed.is_initialized()
    if made:
        if members and len(members) < get_world_size():
            raise RuntimeError(
                "some ranks have tensors on a device, and torch.distributed is not initialised: "
                "call torch.distributed.init_process_group on all ranks first"
            )
        _initialise(torch, wanted, timeout)
    everyone = range(torch.distributed.get_world_size())
    is_part = bool(members) and list(members) != list(everyone)
    group = None
    if is_part:
        group = torch.distributed.new_group(sorted(members), use_local_synchronization=True)
    engine = TorchGroups(torch, members or everyone, group, made=made)
    carrier = wanted.partition(":")[2]
    if carrier and carrier not in _backends_of(torch.distributed, None).values():
        raise RuntimeError(
            f"backend={wanted!r}, but torch.distributed is initialised: {engine.name}"
        )
    return engine


def _import_torch(wanted: str) -> Any:
    try:
        torch = import_module("torch")
        import_module("torch.distributed")
    except ImportError as error:
        raise RuntimeError(
            f"backend={wanted!r} needs torch, which cannot be imported ({error}): pip install torch"
        ) from error
    if not torch.distributed.is_available():
        raise RuntimeError(f"backend={wanted!r}: this torch was built without torch.distributed")
    return torch


def _initialise(torch: Any, wanted: str, timeout: float | None) -> None:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise RuntimeError(
            f"torch.distributed is not initialised, and {' and '.join(missing)} are not set, which "
            "say where its ranks meet: start them with rankspawn.spawn or rankrun"
        )
    device, dist = _device_of_rank(), torch.distributed
    if wanted == "torch:nccl":
        device = "cuda"
    backend = "gloo"
    if wanted != "torch:gloo" and device != "cpu":
        # Both: objects and arrays are in memory, whatever the tensors are on.
        backend = f"cpu:gloo,{device}:{dist.get_default_backend_for_device(device)}"
    options = {} if timeout is None else {"timeout": datetime.timedelta(seconds=timeout)}
    dist.init_process_group(backend, rank=get_rank(), world_size=get_world_size(), **options)


def _device_of_rank() -> str:
    """The kind of device that this rank was given, under torch's name."""
    told = ParallelEnv().device_type
    return {"gpu": "cuda"}.get(told, told)


def _backends_of(dist: Any, group: Any) -> dict[str, str]:
    """What carries the tensors of each kind of device."""
    pairs = [each.split(":") for each in str(dist.get_backend_config(group)).split(",")]
    return {pair[0]: pair[-1] for pair in pairs}
