"""Arrays in shared memory: each rank has its own, all ranks map all of them.

A block is a file without a name with one row per rank. What lies at the same place of each row can
be reduced where it is: each rank reduces its share, and writes the result into all rows.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

from rankspawn.descriptors import anonymous_file
from rankspawn.parallel.buffers import count_of, need_numpy
from rankspawn.parallel.layout import rounded
from rankspawn.parallel.pieces import check_shape
from rankspawn.parallel.reducing import reduce_rows
from rankspawn.parallel.reductions import shares_of
from rankspawn.parallel.region import address_of, no_room, take_room

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import Any

    from rankspawn.parallel.announcing import Call
    from rankspawn.parallel.buffers import Flat
    from rankspawn.parallel.lockstep import Lockstep

_ADDRESS_ROOM = 256


class _Rows(mmap.mmap):
    """A mapped block; as long as an array of it is used."""

    begin: int
    row: int


class Wanted:
    """An array to be made.

    Attributes:
        text: Its type and shape.
    """

    def __init__(self, numpy: Any, shape: Any, dtype: Any) -> None:
        self.numpy = numpy
        self.shape: tuple[int, ...] = check_shape(shape)
        self.dtype: Any = numpy.dtype(dtype)
        if self.dtype.hasobject:
            raise TypeError("Python objects cannot be in shared memory")
        self.nbytes: int = count_of(self.shape) * self.dtype.itemsize
        self.text: str = f"{self.dtype.name}{list(self.shape)}"


class Blocks:
    """The blocks of one communicator."""

    def __init__(self, step: Lockstep) -> None:
        self._step = step
        self._count = 0
        self._rows: weakref.WeakValueDictionary[int, _Rows] = weakref.WeakValueDictionary()

    def plan(self, shape: Any, dtype: Any) -> Wanted:
        """What is to be made, checked."""
        return Wanted(need_numpy("comm.empty() gives an array"), shape, dtype)

    def make(self, wanted: Wanted) -> Any:
        """This rank's array in a new block; the call was announced.

        Raises:
            MemoryError: There is no room, on any rank.
        """
        step, row = self._step, rounded(max(1, wanted.nbytes))
        fd = -1
        step.agree()
        try:
            if step.rank == 0:
                fd, said = _make_file(row * step.size)
                step.slot(0, step.parity)[:_ADDRESS_ROOM] = said.encode().ljust(_ADDRESS_ROOM)
            said = bytes(step.slot(0, step.meet())[:_ADDRESS_ROOM]).decode().strip()
            if not said.startswith("!") and step.rank != 0:
                fd = step.open_from(0, said)
            # All have it open, or know that there is none.
            step.meet()
            if said.startswith("!"):
                return self._refuse(said[1:])
            rows = _map(fd, row * step.size)
        finally:
            if fd >= 0:
                os.close(fd)
        return self._array(rows, row, wanted)

    def _refuse(self, reason: str) -> Any:
        raise MemoryError(reason)

    def _array(self, rows: _Rows, row: int, wanted: Wanted) -> Any:
        rows.row = row
        rows.begin = ctypes.addressof(ctypes.c_char.from_buffer(rows))
        self._count += 1
        self._rows[self._count] = rows
        own = memoryview(rows)[self._step.rank * row :][: wanted.nbytes]
        if not wanted.nbytes:
            return wanted.numpy.empty(wanted.shape, wanted.dtype)
        return wanted.numpy.frombuffer(own, wanted.dtype).reshape(wanted.shape)

    def find(self, flat: Flat) -> tuple[int, int]:
        """The block that data lies in, and where in its row; 0 if in none."""
        if not self._rows or flat.write_back is not None:
            return 0, 0
        address = flat.address()
        for number, rows in list(self._rows.items()):
            begin = rows.begin + self._step.rank * rows.row
            if begin <= address and address + flat.nbytes <= begin + rows.row:
                return number, address - begin
        return 0, 0

    def reduce(self, call: Call, flat: Flat, op: str, dst: int | None) -> None:
        """Reduce this rank's share of what all have at the same place, into all rows or one."""
        rows, size = self._rows[call.block], self._step.size
        whole = memoryview(rows)
        begin, end = shares_of(flat.nbytes, flat.itemsize, size)[self._step.rank]
        starts = [rank * rows.row + call.offset for rank in range(size)]
        parts = [whole[start + begin : start + end] for start in starts]
        if end > begin:
            reduce_rows(parts, flat.dtype, flat.itemsize, op, dst)


def _map(fd: int, nbytes: int) -> _Rows:
    try:
        return _Rows(fd, nbytes)
    except OSError as error:
        raise no_room(nbytes, error) from error


def _make_file(nbytes: int) -> tuple[int, str]:
    """A file with room, and what the others are told: its address, or why there is none."""
    fd = -1
    try:
        fd = anonymous_file("rankspawn-block")
        os.fchmod(fd, 0o600)
        take_room(fd, 0, nbytes)
    except (OSError, MemoryError) as error:
        if fd >= 0:
            os.close(fd)
        return -1, f"!{no_room(nbytes, error) if isinstance(error, OSError) else error}"
    return fd, address_of(fd)
