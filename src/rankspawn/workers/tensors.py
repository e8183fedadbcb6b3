"""Tensors of torch and Paddle as large buffers, the way NumPy sends its arrays.

torch itself has two ways: into shared memory, where every worker sees what any of them writes,
or copied into the pickle, at a fraction of the speed. A tensor that the user put into shared
memory stays shared; any other one goes out of band, and is the receiver's own. What has memory in
common with it, such as a view, has so in the receiver.

Paddle's own way is for one receiver, who removes the memory that the next one would look for.

Runs on both sides. Frameworks are looked up, never imported, except where a tensor arrives.
"""

from __future__ import annotations

import sys
from bisect import bisect_right

from rankspawn.workers.pickling import PROTOCOL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rankspawn.workers.pickling import Rules

# What frameworks align the memory of tensors to.
_ALIGNMENT = 64
# What initializes a parameter of Paddle that has no memory yet: functions, which cannot be pickled.
_LAZY = ("_init_func", "_init_op_creator")


def add_reducers(rules: Rules, *, shared_stay_shared: bool = True, torch_too: bool = True) -> None:
    """Have tensors pickled this way; nothing happens if this process has none.

    Args:
        rules: Their reducers apply to tensors which do not go this way.
        shared_stay_shared: False sends copies of torch's tensors in shared memory, too.
        torch_too: False leaves all of torch's to torch.
    """
    others = rules.reducers or {}
    rules.reducers = {**others, **_paddle_reducers(others)}
    if torch_too:
        rules.overlaps = Overlaps()
        rules.reducers |= _torch_reducers(others, rules.overlaps, shared_stay_shared)


class Overlaps:
    """Which tensors of one pickle have memory in common.

    Each of them is sent with its own elements only, however large the memory around it is; unless
    parts of that belong to several. Who they are is known at the end, so that all is then pickled
    once more.
    """

    def __init__(self) -> None:
        # Address, end, where memory of the same owner begins, and the tensor, which must not be
        # freed: another one would get its address.
        self._seen: list[tuple[int, int, int, Any]] = []
        self._pieces: list[_Piece] = []

    def forget(self) -> None:
        """What was found belongs to another pickle."""
        self._seen, self._pieces = [], []

    def find(self, tensor: Any) -> tuple[_Piece, int] | None:
        """Memory that it shares with others, and where it begins there; None if none is known."""
        start, end, _, _ = seen = _extent(tensor)
        index = bisect_right(self._pieces, start, key=_start_of) - 1
        if index >= 0 and end <= self._pieces[index].end:
            return self._pieces[index], start - self._pieces[index].start
        self._seen.append(seen)
        return None

    def are_new(self) -> bool:
        """Whether tensors have memory in common that was not known when they were pickled."""
        pieces: list[_Piece] = []
        for start, end, lowest, tensor in sorted(self._seen, key=lambda seen: seen[:2]):
            if pieces and start < pieces[-1].end:
                pieces[-1].end = max(pieces[-1].end, end)
                pieces[-1].owners.append(tensor)
            else:
                pieces.append(_Piece(max(lowest, start - start % _ALIGNMENT), end, tensor))
        self._seen, self._pieces = [], [piece for piece in pieces if len(piece.owners) > 1]
        return bool(self._pieces)


class _Piece:
    """Some memory that several tensors share; pickle knows it again, and sends it once."""

    def __init__(self, start: int, end: int, owner: Any) -> None:
        self.start = start
        self.end = end
        self.owners: list[Any] = [owner]

    def __reduce__(self) -> tuple[Any, ...]:
        # The receiver's is the same object for all as well, which its buffer alone would not be.
        return memoryview, (_memory_at(self.start, self.end - self.start, self.owners),)


def _start_of(piece: _Piece) -> int:
    return piece.start


def _extent(tensor: Any) -> tuple[int, int, int, Any]:
    """From its first element to its last, which may be far from each other in a view."""
    start = tensor.data_ptr()
    items = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    lowest = start - tensor.storage_offset() * tensor.element_size()
    return start, start + items * tensor.element_size(), lowest, tensor


def _torch_reducers(
    others: Any, overlaps: Overlaps, shared_stay_shared: bool
) -> dict[type, Callable[[Any], Any]]:
    torch: Any = sys.modules.get("torch")
    parameter: Any = sys.modules.get("torch.nn.parameter")
    if parameter is None or not hasattr(torch, "frombuffer"):  # it is just being imported
        return {}

    def reducer(kind: type) -> Callable[[Any], Any]:
        default = others.get(kind, _reduce_by_default)

        def reduce(tensor: Any) -> Any:
            if not _is_plain(tensor) or (shared_stay_shared and tensor.is_shared()):
                return default(tensor)
            about = tensor.dtype, tuple(tensor.shape), tensor.requires_grad
            is_parameter = kind is parameter.Parameter
            # Elements that are to be changed on reading are sent changed.
            is_as_read = tensor.numel() and not tensor.is_conj() and not tensor.is_neg()
            if is_as_read and (place := overlaps.find(tensor)) is not None:
                return _rebuild, (place[0], *about, is_parameter, place[1], tensor.stride())
            own = tensor.detach().resolve_conj().resolve_neg().contiguous()
            return _rebuild, (_memory_at(own.data_ptr(), own.nbytes, own), *about, is_parameter)

        return reduce

    return {kind: reducer(kind) for kind in (torch.Tensor, parameter.Parameter)}


def _paddle_reducers(others: Any) -> dict[type, Callable[[Any], Any]]:
    """How to pickle Paddle's parameters, and its memory for several receivers; {} without Paddle.

    Args:
        others: What Paddle registered; it applies to the rest, and to memory of other devices.
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
    reducers = {kind: reducer(others[kind]) for kind in kinds if kind.__name__ == "DenseTensor"}
    framework: Any = sys.modules.get("paddle.base.framework")
    if hasattr(framework, "EagerParamBase"):  # or it is just being imported
        reducers[framework.EagerParamBase] = _reduce_paddle_parameter
    return reducers


def _reduce_paddle_parameter(parameter: Any) -> Any:
    """As a tensor, and what makes a parameter of it: of itself it arrives as a plain tensor."""
    state = {name: value for name, value in vars(parameter).items() if name not in _LAZY}
    about = {**state, "name": parameter.name, "trainable": not parameter.stop_gradient}
    return _rebuild_paddle_parameter, (parameter.detach(), about)


def _rebuild_paddle_parameter(tensor: Any, about: dict[str, Any]) -> Any:
    """Runs in the receiver."""
    from paddle.base.framework import (  # type: ignore[import-not-found, unused-ignore]
        EagerParamBase,
    )

    parameter = EagerParamBase(tensor.shape, tensor.dtype, **about)
    parameter.get_tensor()._share_data_with(tensor.get_tensor())
    return parameter


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


def _memory_at(address: int, size: int, owner: Any) -> Any:
    """The bytes, without a copy, and without NumPy, which torch can do without."""
    import ctypes
    from pickle import PickleBuffer

    kind: Any = type("Memory", (ctypes.c_char * size,), {})
    memory = kind.from_address(address)
    memory.owner = owner  # it has to live as long as this
    return PickleBuffer(memory)


def _rebuild(
    memory: Any,
    dtype: Any,
    shape: tuple[int, ...],
    requires_grad: bool,
    is_parameter: bool,
    offset: int = 0,
    stride: tuple[int, ...] | None = None,
) -> Any:
    """Runs in the receiver, and shares the memory it was given."""
    import torch  # type: ignore[import-not-found, unused-ignore]  # only if a tensor was sent

    flat = torch.empty(0, dtype=dtype)
    if stride is not None:  # its elements may be anywhere in there
        count = (len(memory) - offset) // flat.element_size()
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
    elif len(memory):
        flat = torch.frombuffer(memory, dtype=dtype)
    tensor = flat.reshape(shape) if stride is None else flat.as_strided(shape, stride)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)
