"""Tensors of torch and Paddle as large buffers, the way NumPy sends its arrays.

torch itself has two ways: into shared memory, where every worker sees what any of them writes,
or copied into the pickle, at a fraction of the speed. A tensor that the user put into shared
memory stays shared; any other one goes out of band, and is the receiver's own.

Paddle's own way is for one receiver, who removes the memory that the next one would look for.

Runs on both sides. Frameworks are looked up, never imported, except where a tensor arrives.
"""

from __future__ import annotations

import sys

from rankspawn.workers.pickling import PROTOCOL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def tensor_reducers(
    others: dict[type, Callable[[Any], Any]], *, shared_stay_shared: bool
) -> dict[type, Callable[[Any], Any]]:
    """How to pickle tensors; nothing if this process has none.

    Args:
        others: Reducers that apply to tensors which do not go this way.
        shared_stay_shared: False sends copies of tensors in shared memory, too.
    """
    torch: Any = sys.modules.get("torch")
    parameter: Any = sys.modules.get("torch.nn.parameter")
    if parameter is None or not hasattr(torch, "frombuffer"):  # it is just being imported
        return {}

    def reducer(kind: type) -> Callable[[Any], Any]:
        default = others.get(kind, _reduce_by_default)

        def reduce(tensor: Any) -> Any:
            if not _is_plain(tensor) or (shared_stay_shared and tensor.is_shared()):
                return default(tensor)
            return _rebuild, (
                _memory_of(tensor.detach().resolve_conj().resolve_neg().contiguous()),
                tensor.dtype,
                tuple(tensor.shape),
                tensor.requires_grad,
                kind is parameter.Parameter,
            )

        return reduce

    return {kind: reducer(kind) for kind in (torch.Tensor, parameter.Parameter)}


def paddle_reducers(others: dict[type, Callable[[Any], Any]]) -> dict[type, Callable[[Any], Any]]:
    """How to pickle the memory of Paddle's tensors for several receivers; nothing without Paddle.

    Args:
        others: What Paddle registered; it applies to all but the memory, and to other devices.
    """

    def reducer(default: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def reduce(memory: Any) -> Any:
            # NumPy has no floats of 8 bits, and Paddle gives it others in their place.
            if not memory._place().is_cpu_place() or "float8" in str(memory._dtype()):
                return default(memory)
            import numpy as np  # Paddle needs it

            return _rebuild_paddle, (np.array(memory),)

        return reduce

    kinds = [kind for kind in others if kind.__module__.partition(".")[0] == "paddle"]
    return {kind: reducer(others[kind]) for kind in kinds if kind.__name__ == "DenseTensor"}


def _rebuild_paddle(array: Any) -> Any:
    """Runs in the receiver."""
    import paddle  # type: ignore[import-not-found, unused-ignore]  # only if a tensor was sent

    memory = paddle.base.core.DenseTensor()
    memory.set(array, paddle.CPUPlace())
    return memory


def _reduce_by_default(tensor: Any) -> Any:
    return tensor.__reduce_ex__(PROTOCOL)


def _is_plain(tensor: Any) -> bool:
    """Its elements, and whether it needs a gradient, are all there is to it."""
    return bool(
        tensor.device.type == "cpu"
        and str(tensor.layout) == "torch.strided"
        and tensor.is_leaf
        and not tensor.is_quantized
        and not tensor._backward_hooks
        and not tensor.__dict__
    )


def _memory_of(tensor: Any) -> Any:
    """The elements as bytes, without a copy, and without NumPy, which torch can do without."""
    import ctypes
    from pickle import PickleBuffer

    kind: Any = type("Memory", (ctypes.c_char * tensor.nbytes,), {})
    memory = kind.from_address(tensor.data_ptr())
    memory.owner = tensor  # it has to live as long as this
    return PickleBuffer(memory)


def _rebuild(
    memory: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool, is_parameter: bool
) -> Any:
    """Runs in the receiver, and shares the memory it was given."""
    import torch  # type: ignore[import-not-found, unused-ignore]  # only if a tensor was sent

    flat = torch.frombuffer(memory, dtype=dtype) if len(memory) else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)
