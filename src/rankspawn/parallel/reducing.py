"""Sums, products and the like of what ranks bring, element by element and in the order of ranks.

With NumPy if it is there. Without it small buffers are worked on one by one. Sums of 16-bit floats
are made with 32 bits and rounded once.
"""

from __future__ import annotations

import ctypes
import operator
from functools import cache
from functools import reduce as fold

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

OPERATIONS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
_NAMES = {
    "sum": "add",
    "avg": "add",
    "prod": "multiply",
    "min": "minimum",
    "max": "maximum",
    "band": "bitwise_and",
    "bor": "bitwise_or",
    "bxor": "bitwise_xor",
}
_BITWISE = ("band", "bor", "bxor")
_CODES = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i",
    "uint32": "I", "int64": "q", "uint64": "Q", "float32": "f", "float64": "d",
}  # fmt: skip
# Bytes of each row that are reduced at once: they stay in the cache until they are in all rows.
_PIECE = 128 << 10
# Elements that are worked on at once where more than the result needs room: they fit into a cache.
_BLOCK = 1 << 16


@cache
def check_operation(op: str, dtype: str) -> None:
    """Make sure that there is such an operation for such numbers.

    Raises:
        ValueError: There is no such operation.
        TypeError: There is none for these numbers.
    """
    if op not in OPERATIONS:
        raise ValueError(f"op={op!r} is unknown: there are {', '.join(OPERATIONS)}")
    kind = _kind(dtype)
    if kind == "other":
        raise TypeError(f"{dtype} cannot be reduced")
    if op in _BITWISE and kind in ("float", "complex"):
        raise TypeError(f"op={op!r} is for whole numbers, not for {dtype}")
    if op == "avg" and kind in ("int", "bool"):
        raise TypeError(f"op='avg' is for floats, not for {dtype}: the mean need not be one")
    if op in ("min", "max") and kind == "complex":
        raise TypeError(f"op={op!r} is not for {dtype}, which has no order")


def _kind(dtype: str) -> str:
    name = dtype.lstrip("<>=|")
    if name != dtype:  # not in this machine's order: NumPy's short names
        return {"f": "float", "i": "int", "u": "int", "c": "complex"}.get(name[:1], "other")
    # NumPy has none of 8 bits, and of complex numbers none of 32.
    for beginning in ("float8", "complex32", "bool", "int", "uint", "float", "bfloat16", "complex"):
        if name.startswith(beginning):
            plain = {"uint": "int", "bfloat16": "float", "float8": "other", "complex32": "other"}
            return plain.get(beginning, beginning)
    return {"longdouble": "float", "clongdouble": "complex"}.get(name, "other")


@cache
def depends_on_place(op: str, dtype: str) -> bool:
    """Whether the last bit may depend on where in memory the numbers are.

    Products of complex numbers are fused in the vector unit and not beside it. Then one rank
    has to make the result for all.
    """
    return op == "prod" and _kind(dtype) == "complex"


def is_plain(op: str, dtype: str) -> bool:
    """Whether NumPy makes it of two arrays as they are, the same bits wherever they lie."""
    return dtype not in ("bfloat16", "float16") and not depends_on_place(op, dtype)


def function_of(numpy: Any, op: str) -> Any:
    """NumPy's function for an operation; of a mean, for the sum."""
    return getattr(numpy, _NAMES[op])


def reduce_into(out: memoryview, parts: Sequence[memoryview], dtype: str, op: str) -> None:
    """Reduce what all ranks brought, by rank, into ``out``, which may be the first of them."""
    try:
        import numpy
    except ImportError:
        _reduce_plainly(out, parts, dtype, op)
        return
    with numpy.errstate(all="ignore"):
        if dtype in ("bfloat16", "float16"):
            _reduce_wide(numpy, out, parts, dtype, op)
            return
        arrays = [numpy.frombuffer(part, dtype) for part in parts]
        target = numpy.frombuffer(out, dtype)
        function = function_of(numpy, op)
        if len(arrays) == 1:
            target[:] = arrays[0]
        else:
            function(arrays[0], arrays[1], out=target)
        for array in arrays[2:]:
            function(target, array, out=target)
        if op == "avg":
            numpy.divide(target, len(arrays), out=target)


def reduce_rows(
    parts: Sequence[memoryview], dtype: str, itemsize: int, op: str, dst: int | None
) -> None:
    """Reduce what lies in shared memory where it is, into all parts or into one of them."""
    width = _PIECE // itemsize * itemsize
    # The first two are read before the result is written; of more, one that is still to be read
    # must not be the place of the result.
    place = 0 if dst is None else dst
    spare = memoryview(bytearray(width)) if place > 1 else None
    for begin in range(0, parts[0].nbytes, width):
        pieces = [part[begin : begin + width] for part in parts]
        target = pieces[place] if spare is None else spare[: pieces[0].nbytes]
        reduce_into(target, pieces, dtype, op)
        if spare is not None:
            pieces[place][:] = target
        elif dst is None:
            for piece in pieces[1:]:
                piece[:] = target


def _reduce_wide(
    numpy: Any, out: memoryview, parts: Sequence[memoryview], dtype: str, op: str
) -> None:
    """The same for floats of 16 bits, with 32."""
    function = function_of(numpy, op)
    for begin in range(0, out.nbytes, 2 * _BLOCK):
        end = begin + 2 * _BLOCK
        total = _widened(numpy, parts[0][begin:end], dtype)
        for part in parts[1:]:
            function(total, _widened(numpy, part[begin:end], dtype), out=total)
        if op == "avg":
            numpy.divide(total, len(parts), out=total)
        if dtype == "float16":
            numpy.frombuffer(out[begin:end], numpy.float16)[:] = total
        else:
            numpy.frombuffer(out[begin:end], numpy.uint16)[:] = _narrowed(numpy, total)


def _widened(numpy: Any, part: memoryview, dtype: str) -> Any:
    if dtype == "float16":
        return numpy.frombuffer(part, numpy.float16).astype(numpy.float32)
    bits = numpy.frombuffer(part, numpy.uint16).astype(numpy.uint32)
    return (bits << 16).view(numpy.float32)


def _narrowed(numpy: Any, total: Any) -> Any:
    """The nearest bfloat16, of two as near the even one; what is not a number stays so."""
    bits = total.view(numpy.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return numpy.where(numpy.isnan(total), (bits >> 16) | 0x40, rounded).astype(numpy.uint16)


def scale(data: memoryview, dtype: str, factor: float) -> None:
    """Multiply floats by a factor, in place; by 0, what is not a number as well."""
    from rankspawn.parallel.buffers import need_numpy

    if not factor:  # of no samples, whose mean may be anything
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(data)), 0, data.nbytes)
        return

    numpy = need_numpy("numbers are to be weighed")
    if dtype in ("bfloat16", "float16"):
        for begin in range(0, data.nbytes, 2 * _BLOCK):
            part = data[begin : begin + 2 * _BLOCK]
            wide = _widened(numpy, part, dtype) * numpy.float32(factor)
            narrow = wide.astype(numpy.float16) if dtype == "float16" else _narrowed(numpy, wide)
            part[:] = memoryview(narrow.view(numpy.uint8))
        return
    array = numpy.frombuffer(data, dtype)
    numpy.multiply(array, factor, out=array, casting="unsafe")


def is_float(dtype: str) -> bool:
    """Whether it has fractions, so that it can be weighed."""
    return _kind(dtype) in ("float", "complex")


def _reduce_plainly(out: memoryview, parts: Sequence[memoryview], dtype: str, op: str) -> None:
    code = _CODES.get(dtype)
    if code is None:
        from rankspawn.parallel.buffers import need_numpy

        need_numpy(f"{dtype} is no type of Python's own")
        return
    target = out.cast(code)  # type: ignore[call-overload]  # one of the codes that there are
    columns = zip(*(part.cast(code) for part in parts), strict=True)  # type: ignore[call-overload]
    combine = _plain_function(dtype, op)
    if op == "avg":
        for place, column in enumerate(columns):
            target[place] = fold(combine, column) / len(parts)
        return
    for place, column in enumerate(columns):
        target[place] = fold(combine, column)


def _plain_function(dtype: str, op: str) -> Callable[[Any, Any], Any]:
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "sum": operator.add,
        "avg": operator.add,
        "prod": operator.mul,
        "min": min,
        "max": max,
        "band": operator.and_,
        "bor": operator.or_,
        "bxor": operator.xor,
    }
    function = functions[op]
    if dtype == "bool":
        return lambda a, b: bool(function(a, b))
    if _kind(dtype) != "int" or op not in ("sum", "prod"):
        return function
    bits = int(dtype.lstrip("uint"))
    low = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    # Too large a number wraps around, as in NumPy.
    return lambda a, b: ((function(a, b) - low) & ((1 << bits) - 1)) + low
