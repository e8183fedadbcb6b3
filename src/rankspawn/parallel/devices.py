"""Tensors on devices: ranks that share memory exchange them over their framework's collectives.

Which framework that is, the first tensor says; before it nothing of it is used.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from rankspawn.parallel.buffers import OnDeviceError, device_type
from rankspawn.parallel.shared_memory import SharedMemory

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankspawn.parallel.communicator import Communicator
    from rankspawn.parallel.over_engine import OverEngine

_COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "gather", "reduce_scatter", "all_to_all",
)  # fmt: skip
# Only two ranks call them, and all have to be there to connect.
_MESSAGES = ("send", "recv")


class MemoryAndDevices(SharedMemory):
    """Ranks of one machine, also those that have tensors on devices."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._frameworks: dict[str, OverEngine] = {}

    def by_framework(self, name: str, may_connect: bool) -> OverEngine:
        """The same ranks over a framework; all of them ask for it together, the first time."""
        found = self._frameworks.get(name)
        if found is None:
            if not may_connect:
                raise RuntimeError(
                    "a message is the first exchange of tensors on devices: let all ranks call a "
                    f"collective with such tensors before, so that {name}.distributed is connected"
                )
            found = self._frameworks[name] = self._connect(name)
        return found

    def _connect(self, name: str) -> OverEngine:
        from rankspawn.parallel.over_engine import over_engine
        from rankspawn.parallel_env import get_rank

        members = self.all_gather_object(get_rank())
        if name == "torch":
            from rankspawn.parallel import torch_groups

            return over_engine(torch_groups.connect(name, self._timeout, members), self._timeout)
        from rankspawn.parallel import paddle_groups

        return over_engine(paddle_groups.connect(name, members))

    def close(self) -> None:
        """Leave; whoever still waits for this rank is told. A second call does nothing."""
        if not self._closed:
            for each in self._frameworks.values():
                each.close()
        super().close()


def _also_on_devices(name: str, may_connect: bool) -> Callable[..., Any]:
    """A collective of shared memory that hands tensors on devices over."""
    plain = getattr(SharedMemory, name)

    @wraps(plain)
    def call(self: MemoryAndDevices, *args: Any, **kwargs: Any) -> Any:
        try:
            return plain(self, *args, **kwargs)
        except OnDeviceError as error:
            if self.size == 1:
                raise
            framework = error.framework
        # Nothing was announced yet when the tensor was looked at.
        return getattr(self.by_framework(framework, may_connect), name)(*args, **kwargs)

    return call


for _name in (*_COLLECTIVES, *_MESSAGES):
    setattr(MemoryAndDevices, _name, _also_on_devices(_name, _name in _COLLECTIVES))


def is_on_device(tensor: Any) -> bool:
    """Whether it is a tensor that only its framework can reach."""
    return framework_of(tensor) is not None and device_type(tensor) != "cpu"


def framework_of(tensor: Any) -> str | None:
    """Whose tensor it is; no framework is loaded to find out."""
    for name in ("torch", "paddle"):
        module = sys.modules.get(name)
        if module is not None and isinstance(tensor, module.Tensor):
            return name
    return None


def reduce_on_devices(
    comm: Communicator, tensors: Sequence[Any], op: str, weight: float | None = None
) -> None:
    """Reduce tensors on devices over the ranks, in place, with one message for each type.

    Args:
        comm: The ranks.
        tensors: What each of them has, in the same order.
        op: ``sum`` or ``avg``.
        weight: What this rank's are multiplied by before.
    """
    if comm.size == 1:
        return
    kinds = [(framework_of(each), str(each.dtype), device_type(each)) for each in tensors]
    for kind in dict.fromkeys(kinds):
        same = [each.detach() for each, found in zip(tensors, kinds, strict=True) if found == kind]
        module = sys.modules[str(kind[0])]
        join = module.cat if kind[0] == "torch" else module.concat
        bucket = join([each.reshape([-1]) for each in same])
        if weight is not None:
            bucket = bucket * weight if weight else module.zeros_like(bucket)
        comm.all_reduce(bucket, op)
        at = 0
        for each in same:
            count = each.numel() if kind[0] == "torch" else each.size
            each.copy_(bucket[at : at + count].reshape(each.shape), False)
            at += count
