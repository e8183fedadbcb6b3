"""Objects of a given type and size, and a way to read all of one.

Values are integers of 64 bits: each of these types sums them as fast as memory allows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

KINDS = ("NumPy", "torch", "bytes", "bytearray", "pandas", "Arrow")
# The least that still is an object of its type.
TINY = 64


def make(kind: str, size: int) -> Any:
    """An object with ``size`` bytes of data, all of it written."""
    numpy = importlib.import_module("numpy")
    array = numpy.arange(size // 8, dtype=numpy.int64)
    makers: dict[str, Callable[[], Any]] = {
        "NumPy": lambda: array,
        "torch": lambda: importlib.import_module("torch").from_numpy(array).clone(),
        "bytes": array.tobytes,
        "bytearray": lambda: bytearray(array),
        "pandas": lambda: importlib.import_module("pandas").DataFrame({"values": array}),
        "Arrow": lambda: importlib.import_module("pyarrow").array(array),
    }
    return makers[kind]()


def read(value: Any) -> int:
    """The sum of all its values."""
    if isinstance(value, bytes | bytearray):
        # A page has 4,096 bytes on every machine that this runs on, or more.
        return sum(memoryview(value)[::4096])
    if type(value).__module__.startswith("pyarrow"):
        return int(importlib.import_module("pyarrow.compute").sum(value).as_py())
    if type(value).__name__ == "DataFrame":
        value = value["values"]
    return int(value.sum())
