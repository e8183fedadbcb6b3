"""The communicator of ranks that another engine connects.

An engine moves bytes and reduces what it has operations for. All else is made of that here: types
and operations that it does not know are gathered and reduced by each rank, in the order of ranks.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

from rankspawn.caller import at_users_line
from rankspawn.parallel.agreeing import agree_on_calls
from rankspawn.parallel.buffers import DeviceFlat, Flat, make, make_like, need_numpy
from rankspawn.parallel.engine_messages import EngineMessages
from rankspawn.parallel.objects import pickled, unpickled
from rankspawn.parallel.reducing import depends_on_place, reduce_into
from rankspawn.parallel.splitting import members_of
from rankspawn.parallel.statistics import Statistics

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.parallel.agreeing import Agreement
    from rankspawn.parallel.communicator import Communicator
    from rankspawn.parallel.engines import Engine

T = TypeVar("T")
# Bytes of each rank that are gathered at once, to be reduced.
_PIECE = 1 << 20
# Of a number of bytes that others are told.
_WORD = 8


class OverEngine(EngineMessages):
    """Ranks over an engine; see :class:`rankspawn.parallel.communicator.Communicator`.

    Attributes:
        rank: This rank's number in the group.
        size: How many ranks there are.
        backend: ``torch:gloo``, ``mpi`` and the like.
    """

    # -- reductions

    @at_users_line
    def barrier(self, *, timeout: float | None = None) -> None:
        """Wait until all ranks have come here."""
        self._run("barrier", "", 0, timeout, self._engine.barrier)

    @at_users_line
    def all_reduce(self, buffer: T, op: str = "sum", *, timeout: float | None = None) -> T:
        """Reduce what all ranks have, in place; every rank gets the same bits."""
        flat = self._hold(buffer, writable=True)
        self._check_operation(flat, op)
        self._run(
            "all_reduce",
            f"{flat.text} op={op}",
            flat.nbytes,
            timeout,
            lambda wait: self._reduce(flat, op, wait),
        )
        if flat.write_back is not None:
            flat.write_back()
        return buffer

    def _reduce_at(self, flat: Flat, op: str, dst: int, timeout: float | None) -> None:
        used = flat if self.rank == dst else flat.copy()
        self._run(
            "reduce",
            f"{flat.text} op={op} dst={dst}",
            flat.nbytes,
            timeout,
            lambda wait: self._reduce(used, op, wait),
        )

    def _reduce(self, flat: Flat, op: str, wait: float | None) -> None:
        if not flat.nbytes:
            return
        if self._engine.reduces(flat, op):
            self._engine.all_reduce(flat, op, wait)
            return
        width = _PIECE // flat.itemsize * flat.itemsize
        for begin in range(0, flat.nbytes, width):
            piece = flat.data[begin : begin + width]
            rows = _rows(memoryview(bytearray(piece.nbytes * self.size)), self.size)
            self._engine.all_gather(rows, piece, wait)
            reduce_into(piece, rows, flat.dtype, op)
        if depends_on_place(op, flat.dtype):  # then one rank's result is that of all
            self._engine.broadcast(flat.data, 0, wait)

    def _reduce_rows(self, flat: Flat, out: Flat, op: str, timeout: float | None) -> None:
        def body(wait: float | None) -> None:
            if isinstance(flat, DeviceFlat):
                copy = flat.copy()
                self._reduce(copy, op, wait)
                out.data[:] = _rows(copy.data, self.size)[self.rank]
            elif out.nbytes:
                parts = _rows(memoryview(bytearray(flat.nbytes)), self.size)
                self._swap(_rows(flat.data, self.size), parts, wait)
                reduce_into(out.data, parts, flat.dtype, op)

        self._run("reduce_scatter", f"{flat.text} op={op}", flat.nbytes, timeout, body)

    # -- data that is moved

    def _give_all(self, flat: Flat, src: int, timeout: float | None) -> None:
        self._run(
            "broadcast",
            f"{flat.text} src={src}",
            flat.nbytes,
            timeout,
            lambda wait: self._give(flat, src, wait),
        )

    def _give(self, flat: Flat, src: int, wait: float | None) -> None:
        if flat.nbytes:
            self._engine.broadcast(flat.data, src, wait)

    def _gather(self, flat: Flat, out: Flat | None, dst: int | None, timeout: float | None) -> None:
        rows = [] if out is None else _rows(out.data, self.size)

        def body(wait: float | None) -> None:
            if dst is not None:
                self._collect(flat.data, rows, dst, wait)
            elif flat.nbytes:
                self._engine.all_gather(rows, flat.data, wait)

        name, where = ("all_gather", "") if dst is None else ("gather", f" dst={dst}")
        self._run(name, flat.text + where, flat.nbytes, timeout, body)

    def _collect(self, data: Any, rows: Sequence[Any], dst: int, wait: float | None) -> None:
        """Have all ranks' data in the rows of one; they may be of different lengths."""
        if self.rank != dst:
            self._engine.exchange([(dst, data)] if len(data) else [], [], wait)
            return
        if len(data):
            rows[dst][:] = data
        receives = [(rank, row) for rank, row in enumerate(rows) if rank != dst and len(row)]
        self._engine.exchange([], receives, wait)

    def _deal(self, flat: Flat | None, src: int, timeout: float | None) -> Any:
        nbytes = 0 if flat is None else flat.nbytes
        return self._run(
            "scatter", f" src={src}", nbytes, timeout, lambda wait: self._scatter(flat, src, wait)
        )

    def _scatter(self, flat: Flat | None, src: int, wait: float | None) -> Any:
        mine = b"" if flat is None else pickled((flat.kind, flat.dtype, flat.shape[1:]))
        kind, dtype, shape = unpickled(self._give_bytes(mine, src, wait))
        out = make(kind, dtype, shape) if flat is None else make_like(flat, shape)
        if not out.nbytes:
            return out.source
        if flat is None:
            self._engine.exchange([], [(src, out.data)], wait)
        else:
            rows = _rows(flat.data, self.size)
            out.data[:] = rows[src]
            self._engine.exchange(
                [(rank, row) for rank, row in enumerate(rows) if rank != src], [], wait
            )
        return out.source

    def _swap_rows(self, flat: Flat, out: Flat, timeout: float | None) -> None:
        rows, parts = _rows(flat.data, self.size), _rows(out.data, self.size)
        self._run(
            "all_to_all",
            flat.text,
            flat.nbytes,
            timeout,
            lambda wait: self._swap(rows, parts, wait),
        )

    def _swap(self, rows: Sequence[Any], parts: Sequence[Any], wait: float | None) -> None:
        if not len(rows[0]):
            return
        parts[self.rank][:] = rows[self.rank]
        others = [rank for rank in range(self.size) if rank != self.rank]
        self._engine.exchange(
            [(rank, rows[rank]) for rank in others], [(rank, parts[rank]) for rank in others],
            wait,
        )  # fmt: skip

    # -- objects

    def _give_object(self, mine: bytes, src: int, timeout: float | None) -> bytearray:
        return self._run(
            "broadcast_object",
            f" src={src}",
            len(mine),
            timeout,
            lambda wait: self._give_bytes(mine, src, wait),
        )

    def _gather_objects(
        self, mine: bytes, dst: int | None, timeout: float | None
    ) -> Sequence[bytes | bytearray]:
        def body(wait: float | None) -> Sequence[bytes | bytearray]:
            if dst is None:
                return self._gather_bytes(mine, wait)
            sizes = self._gather_sizes(len(mine), wait)
            found = [bytearray(size) for size in sizes] if self.rank == dst else []
            rows = [memoryview(each) for each in found]
            self._collect(memoryview(mine), rows, dst, wait)
            return found

        name, where = ("all_gather_object", "") if dst is None else ("gather_object", f" dst={dst}")
        return self._run(name, where, len(mine), timeout, body)

    def _give_bytes(self, mine: bytes, src: int, wait: float | None) -> bytearray:
        """What one rank has; the others learn first how much it is."""
        word = bytearray(len(mine).to_bytes(_WORD, "little"))
        self._engine.broadcast(memoryview(word), src, wait)
        data = bytearray(mine) if self.rank == src else bytearray(int.from_bytes(word, "little"))
        if data:
            self._engine.broadcast(memoryview(data), src, wait)
        return data

    def _gather_sizes(self, mine: int, wait: float | None) -> list[int]:
        words = _rows(memoryview(bytearray(_WORD * self.size)), self.size)
        self._engine.all_gather(words, memoryview(mine.to_bytes(_WORD, "little")), wait)
        return [int.from_bytes(word, "little") for word in words]

    def _gather_bytes(self, mine: bytes, wait: float | None) -> list[bytes]:
        """What all ranks have, each as long as the longest on its way."""
        sizes = self._gather_sizes(len(mine), wait)
        longest = max(sizes)
        rows = _rows(memoryview(bytearray(longest * self.size)), self.size)
        if longest:
            self._engine.all_gather(rows, memoryview(mine.ljust(longest, b"\0")), wait)
        return [bytes(row[:size]) for row, size in zip(rows, sizes, strict=True)]

    # -- memory, parts, end

    @at_users_line
    def empty(self, shape: Any, dtype: Any = "float32", *, timeout: float | None = None) -> Any:
        """A NumPy array; nothing is shared, so it is as good as any other."""
        self._check_timeout(timeout)
        return need_numpy("comm.empty() gives an array").empty(shape, dtype)

    def _split(self, mine: bytes, timeout: float | None) -> Communicator | None:
        def body(wait: float | None) -> tuple[list[int], Engine | None]:
            wishes = [unpickled(each) for each in self._gather_bytes(mine, wait)]
            found = [tuple(members_of(wishes, rank)) for rank in range(self.size)]
            # Each group once, in the order of its first rank, on all ranks the same.
            groups = [group for group in dict.fromkeys(found) if group]
            members = members_of(wishes, self.rank)
            return members, self._engine.split(
                [group for group in groups if len(group) > 1], members
            )

        members, engine = self._run("split", "", len(mine), timeout, body)
        if not members:
            return None
        if engine is None:
            from rankspawn.parallel.shared_memory import alone

            return alone()
        return over_engine(engine, self._timeout)

    def statistics(self) -> Statistics:
        """What this rank has exchanged so far, and for whom of its machine it waited."""
        own, found = self._tally.read(), self._agreement
        if found is None or found.local is None:  # engines do not say
            return own
        local = found.local.statistics()
        waited = {found.members[rank]: seconds for rank, seconds in local.waited_for.items()}
        return Statistics(own.calls, own.bytes, own.seconds, local.waited, waited)

    def close(self) -> None:
        """Leave. A second call does nothing."""
        if self._closed or os.getpid() != self._pid:  # a fork has no part in this
            return
        self._closed = True
        for part in self._parts:
            part.close()
        if self._agreement is not None:
            self._agreement.close()
        self._engine.close()


def over_engine(engine: Engine, timeout: float | None = None) -> OverEngine:
    """The communicator of an engine's ranks, who agree on each call; all of them call it."""
    return OverEngine(engine, timeout, agree(engine))


def agree(engine: Engine) -> Agreement | None:
    """What an engine's ranks do before each call; all of them call it."""
    return agree_on_calls(engine, OverEngine(engine).all_gather_object)


def _rows(data: Any, size: int) -> list[Any]:
    """Views of one equal part per rank."""
    each = len(data) // size
    return [data[rank * each : (rank + 1) * each] for rank in range(size)]
