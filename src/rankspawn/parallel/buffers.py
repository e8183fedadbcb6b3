"""Whatever holds numbers, as plain bytes: NumPy arrays, tensors on the CPU, any buffer.

No framework is imported: an object of one can only be here if its module is loaded. Data that lies
in one piece is used where it is; of what does not, a copy is exchanged and written back.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib import import_module
from math import prod

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

_FORMATS = {
    "?": "bool",
    "e": "float16",
    "f": "float32",
    "d": "float64",
    **{code: f"int{8 * ctypes.sizeof(kind)}" for code, kind in (
        ("b", ctypes.c_byte), ("h", ctypes.c_short), ("i", ctypes.c_int),
        ("l", ctypes.c_long), ("q", ctypes.c_longlong), ("n", ctypes.c_ssize_t),
    )},
    **{code: f"uint{8 * ctypes.sizeof(kind)}" for code, kind in (
        ("B", ctypes.c_ubyte), ("c", ctypes.c_char), ("H", ctypes.c_ushort), ("I", ctypes.c_uint),
        ("L", ctypes.c_ulong), ("Q", ctypes.c_ulonglong), ("N", ctypes.c_size_t),
    )},
}  # fmt: skip


class Flat:
    """The bytes of a buffer, and what they mean.

    Attributes:
        source: The object that the caller has.
        data: Its bytes.
        dtype: What they are, under NumPy's names; bfloat16 has no name there but is one here.
        itemsize: Bytes of one element.
        shape: Its shape.
        kind: The module whose arrays or tensors go with it.
        write_back: For a copy: puts what came out into the source.
    """

    __slots__ = ("data", "dtype", "itemsize", "kind", "shape", "source", "write_back")

    def __init__(
        self,
        source: Any,
        data: memoryview,
        dtype: str,
        itemsize: int,
        shape: Sequence[int],
        write_back: Callable[[], object] | None = None,
        kind: str = "numpy",
    ) -> None:
        self.source: Any = source
        self.data: memoryview = data
        self.dtype: str = dtype
        self.itemsize: int = itemsize
        self.shape: tuple[int, ...] = tuple(shape)
        self.kind: str = kind
        self.write_back: Callable[[], object] | None = write_back

    @property
    def nbytes(self) -> int:
        """How many bytes."""
        return self.data.nbytes

    @property
    def text(self) -> str:
        """Type and shape, for announcements and errors."""
        return f" of {self.dtype}{list(self.shape)}"

    def copy(self) -> Flat:
        """The same data elsewhere."""
        data = memoryview(bytearray(self.data))
        return Flat(None, data, self.dtype, self.itemsize, self.shape)

    def address(self) -> int:
        """Where its first byte is; 0 if nobody may write there."""
        if self.data.readonly or not self.data.nbytes:
            return 0
        return ctypes.addressof(ctypes.c_char.from_buffer(self.data))


class DeviceFlat(Flat):
    """A tensor on a device, whose data is a flat tensor of the same framework."""

    __slots__ = ()

    def __init__(
        self, source: Any, data: Any, dtype: str, shape: Sequence[int], kind: str,
        write_back: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(source, data, dtype, data.element_size(), shape, write_back, kind)

    @property
    def nbytes(self) -> int:
        """How many bytes."""
        return count_of(self.shape) * self.itemsize

    def copy(self) -> DeviceFlat:
        """The same data elsewhere on the device."""
        data: Any = self.data
        return DeviceFlat(None, data.clone(), self.dtype, self.shape, self.kind)


class OnDeviceError(TypeError):
    """A tensor is on a device, where only its framework can reach it.

    Attributes:
        framework: Whose tensor it is.
    """

    def __init__(self, message: str, framework: str = "") -> None:
        super().__init__(message)
        self.framework: str = framework


def device_type(tensor: Any) -> str:
    """Where a tensor of torch or Paddle is: ``cpu``, ``cuda`` and the like."""
    device = getattr(tensor, "device", None)
    kind = getattr(device, "type", None)
    if kind is not None:
        return str(kind)
    return "cpu" if tensor.place.is_cpu_place() else "device"


def flatten(source: Any, *, writable: bool) -> Flat:
    """The bytes of anything that holds numbers.

    Args:
        source: An array, a tensor on the CPU, or an object with a buffer.
        writable: The result will be written into it.

    Raises:
        TypeError: It holds no numbers, lies on a device, or must not be written to.
    """
    numpy, torch, paddle = (sys.modules.get(name) for name in ("numpy", "torch", "paddle"))
    if isinstance(source, Flat):
        flat = source
    elif numpy is not None and isinstance(source, numpy.ndarray):
        flat = _of_array(numpy, source)
    elif torch is not None and isinstance(source, torch.Tensor):
        flat = _of_torch(torch, source)
    elif paddle is not None and isinstance(source, paddle.Tensor):
        flat = _of_paddle(source)
    else:
        flat = _of_buffer(source)
    if writable and flat.data.readonly:
        raise TypeError(
            f"the {type(source).__name__} must not be written to, but the result goes into it: "
            "give a copy that may be"
        )
    return flat


def numpys_key(source: Any) -> tuple[Any, ...] | None:
    """Type and shape of an array that can be worked on as it is; None for all else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(source) is not numpy.ndarray or not source.flags.carray:
        return None
    return source.dtype, source.shape


def _of_array(numpy: ModuleType, array: Any) -> Flat:
    if hasattr(array, "mask"):
        raise TypeError("a masked array is two, numbers and a mask: give its .filled() copy")
    source, array = array, array.view(numpy.ndarray)  # of a matrix, say, all slices are matrices
    dtype = array.dtype
    name = _name_of(dtype)
    if array.flags.c_contiguous:
        data = memoryview(array.reshape(-1).view(numpy.uint8))
        return Flat(source, data, name, dtype.itemsize, array.shape)
    # Not in one piece. `reshape` would copy in silence, and the result would be lost.
    copy = numpy.ascontiguousarray(array)
    data = memoryview(copy.reshape(-1).view(numpy.uint8))
    if not array.flags.writeable:
        data = data.toreadonly()
    return Flat(source, data, name, dtype.itemsize, array.shape, lambda: numpy.copyto(array, copy))


@cache
def _name_of(dtype: Any) -> str:
    """What NumPy calls a type, which it takes some microseconds to find out."""
    if dtype.hasobject:
        raise TypeError("an array of Python objects holds no numbers: use the _object forms")
    return str(dtype.name if dtype.isnative else dtype.str)


def _of_torch(torch: ModuleType, tensor: Any) -> Flat:
    if tensor.layout is not torch.strided:
        raise _sparse()
    if device_type(tensor) != "cpu":
        raise OnDeviceError(
            f"a tensor on {tensor.device} is not in this machine's memory: exchange its .cpu() "
            "copy, or use torch.distributed for it",
            "torch",
        )
    plain = tensor.detach()
    used, write_back = plain, None
    if not plain.is_contiguous() or plain.is_conj() or plain.is_neg():
        used = plain.resolve_conj().resolve_neg().contiguous()
        write_back = lambda: plain.copy_(used)  # noqa: E731 - as short as it can be
    size = used.element_size()
    data = _at(used.data_ptr(), used.numel() * size, used)
    name = str(tensor.dtype).removeprefix("torch.")
    return Flat(tensor, data, name, size, tuple(tensor.shape), write_back, "torch")


def _sparse() -> TypeError:
    return TypeError(
        "a sparse tensor does not lie in one piece: give a dense copy; for gradients, make the "
        "layer without sparse=True"
    )


def _of_paddle(tensor: Any) -> Flat:
    if device_type(tensor) != "cpu":
        raise OnDeviceError(
            f"a tensor on {tensor.place} is not in this machine's memory: exchange a .cpu() copy, "
            "or use paddle.distributed",
            "paddle",
        )
    if not tensor.is_dense():
        raise _sparse()
    used, write_back = tensor, None
    if not tensor.is_contiguous():
        used = tensor.detach().contiguous()
        write_back = lambda: tensor.detach().copy_(used, True)  # noqa: E731 - the same
    size = used.element_size()
    data = _at(used.data_ptr(), used.size * size, used)
    name = str(tensor.dtype).rpartition(".")[2]
    return Flat(tensor, data, name, size, tuple(tensor.shape), write_back, "paddle")


def _of_buffer(source: Any) -> Flat:
    try:
        view = memoryview(source)
    except (TypeError, BufferError):
        kind = type(source)
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__} has no buffer of numbers: give a NumPy array, "
            "a tensor on the CPU or an object with a buffer, or use the _object forms"
        ) from None
    dtype = _FORMATS.get(view.format.lstrip("@="))
    if dtype is None:
        raise TypeError(f"a buffer of the format {view.format!r} holds no plain numbers")
    if not view.c_contiguous:
        raise TypeError("this buffer does not lie in one piece: give a copy that does")
    # A view of no elements cannot be cast if it has several dimensions.
    data = view.cast("B") if view.nbytes else memoryview(bytearray())
    return Flat(source, data, dtype, view.itemsize, view.shape or ())


def _at(address: int, nbytes: int, owner: Any) -> memoryview:
    if not nbytes:
        return memoryview(bytearray())
    array = (ctypes.c_ubyte * nbytes).from_address(address)
    array._owner = owner  # type: ignore[attr-defined]  # as long as there is a view of them
    return memoryview(array).cast("B")


def make_like(flat: Flat, shape: Sequence[int]) -> Flat:
    """A new array or tensor of the same kind and type.

    Raises:
        RuntimeError: It would be a NumPy array, and NumPy is not installed.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(flat.source, numpy.ndarray):
        return flatten(numpy.empty(tuple(shape), flat.source.dtype), writable=True)
    return make(flat.kind, flat.dtype, shape)


def make(kind: str, dtype: str, shape: Sequence[int]) -> Flat:
    """A new array or tensor of a kind and type that another rank may have announced."""
    if kind == "torch":
        torch = import_module("torch")
        return flatten(torch.empty(tuple(shape), dtype=getattr(torch, dtype)), writable=True)
    if kind == "paddle":
        # Not `empty`, which may hand out what is not there before it is written.
        paddle = import_module("paddle")
        return flatten(paddle.zeros(list(shape), dtype=dtype).cpu(), writable=True)
    numpy = need_numpy("the result is an array")
    return flatten(numpy.empty(tuple(shape), dtype), writable=True)


def check_can_be_made(flat: Flat) -> None:
    """Refuse what others could not make from its announcement, before it is announced.

    Raises:
        TypeError: The name of its type does not say what it is, as that of texts.
    """
    try:
        made = make(flat.kind, flat.dtype, (0,)).dtype
    except TypeError:
        made = ""
    if made != flat.dtype:
        raise TypeError(f"scatter takes numbers and times, not {flat.dtype}: send it as an object")


def need_numpy(why: str) -> Any:
    """The module, or an error that says how to have it."""
    try:
        import numpy
    except ImportError:
        raise RuntimeError(
            f"{why}: that needs NumPy, which is not installed (pip install 'rankspawn[parallel]')"
        ) from None
    return numpy


def count_of(shape: Sequence[int]) -> int:
    """How many elements."""
    return prod(shape)
