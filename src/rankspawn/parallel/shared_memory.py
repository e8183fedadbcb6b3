"""The communicator of ranks on one machine: collectives through memory that they share."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any, TypeVar

from rankspawn.caller import at_users_line
from rankspawn.parallel import direct
from rankspawn.parallel.announcing import Call
from rankspawn.parallel.blocks import Blocks
from rankspawn.parallel.buffers import Flat, flatten, make, make_like, numpys_key
from rankspawn.parallel.calling import Calling
from rankspawn.parallel.channels import Channels
from rankspawn.parallel.objects import exchange_objects
from rankspawn.parallel.pieces import get, put, put_rows, rounds_for, row_width, rows_of
from rankspawn.parallel.reducing import depends_on_place, reduce_into
from rankspawn.parallel.reductions import Prepared, prepare_small, reduce_large, reduce_small
from rankspawn.parallel.splitting import join_region, make_region, split
from rankspawn.parallel.statistics import Statistics
from rankspawn.parallel.waiting import Sleeper

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rankspawn.parallel.lockstep import Lockstep

T = TypeVar("T")
# All-reductions of small arrays that are kept, by type, shape and operation.
_MOST_PREPARED = 256


class SharedMemory(Calling):
    """Ranks of one machine; see :class:`rankspawn.parallel.communicator.Communicator`.

    Attributes:
        rank: This rank's number in the group.
        size: How many ranks there are.
        backend: ``shm``; ``alone`` in a world of one.
    """

    def __init__(
        self, step: Lockstep, *, backend: str = "shm", timeout: float | None = None
    ) -> None:
        super().__init__(step, backend, timeout)
        self._blocks = Blocks(step)
        self._channels = Channels(step)
        self._barrier = Call("barrier")
        self._reads_directly = self.size > 1
        self._prepared: dict[tuple[object, str], Prepared] = {}

    def meet(self) -> None:
        """Wait until all ranks have made this communicator."""
        self._run(Call("init_parallel_env"), self._step.agree)

    # -- reductions

    @at_users_line
    def barrier(self, *, timeout: float | None = None) -> None:
        """Wait until all ranks have come here."""
        self._run(self._barrier, self._step.agree, timeout)

    @at_users_line
    def all_reduce(self, buffer: T, op: str = "sum", *, timeout: float | None = None) -> T:
        """Reduce what all ranks have, in place; every rank gets the same bits."""
        key = numpys_key(buffer)
        if key is not None:
            prepared = self._prepared.get((key, op))
            if prepared is not None:
                self._run(prepared.call, partial(prepared.reduce, buffer), timeout)
                return buffer
        flat = flatten(buffer, writable=True)
        self._check_operation(flat, op)
        self._reduce(flat, op, None, "all_reduce", timeout)
        if key is not None:
            self._prepare(flat, key, op)
        if flat.write_back is not None:
            flat.write_back()
        return buffer

    def _reduce_at(self, flat: Flat, op: str, dst: int, timeout: float | None) -> None:
        self._reduce(flat, op, dst, "reduce", timeout)

    def _prepare(self, flat: Flat, key: object, op: str) -> None:
        """Have the next all-reduce of such arrays take less: most are made again and again."""
        prepared = prepare_small(self._step, flat.source, op, flat.text, flat.dtype)
        if prepared is not None:
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            self._prepared[key, op] = prepared

    def _reduce(
        self, flat: Flat, op: str, dst: int | None, name: str, timeout: float | None
    ) -> None:
        where = "" if dst is None else f" dst={dst}"
        call = Call(name, f"{flat.text} op={op}{where}", nbytes=flat.nbytes, timeout=timeout)
        step = self._step
        if self.size == 1:
            self._run(call, step.agree)
        elif self._is_small(flat.nbytes) and not depends_on_place(op, flat.dtype):
            self._run(call, lambda: reduce_small(step, flat, op, dst))
        else:
            call.block, call.offset = self._blocks.find(flat)
            self._run(call, lambda: reduce_large(step, self._blocks, call, flat, op, dst))

    def _reduce_rows(self, flat: Flat, out: Flat, op: str, timeout: float | None) -> None:
        def take(parts: list[memoryview], begin: int) -> None:
            reduce_into(out.data[begin : begin + parts[0].nbytes], parts, flat.dtype, op)

        self._exchange_rows("reduce_scatter", f" op={op}", flat, take, timeout)

    # -- data that is moved

    def _give_all(self, flat: Flat, src: int, timeout: float | None) -> None:
        call = Call("broadcast", f"{flat.text} src={src}", nbytes=flat.nbytes, timeout=timeout)

        width = self._width(flat.nbytes, flat.itemsize)

        def fill(room: memoryview, number: int) -> None:
            if self.rank == src:
                put(flat.data, room, number, width)

        def drain(rooms: list[memoryview], number: int) -> None:
            if self.rank != src:
                get(flat.data, rooms[src], number, width)

        if self._reads_directly and flat.nbytes >= direct.SMALLEST:
            call.offset = flat.address() if self.rank == src else 0
            step = self._step
            self._reads_directly = self._run(
                call, lambda: direct.broadcast_large(step, flat, src, width)
            )
        else:
            self._exchange(call, flat.nbytes, width, fill, drain)

    def _gather(self, flat: Flat, out: Flat | None, dst: int | None, timeout: float | None) -> None:
        name, where = ("all_gather", "") if dst is None else ("gather", f" dst={dst}")
        call = Call(name, flat.text + where, nbytes=flat.nbytes, timeout=timeout)
        rows = [] if out is None else rows_of(out.data, self.size)
        width = self._width(flat.nbytes, flat.itemsize)

        def fill(room: memoryview, number: int) -> None:
            put(flat.data, room, number, width)

        def drain(rooms: list[memoryview], number: int) -> None:
            for row, room in zip(rows, rooms, strict=False):
                get(row, room, number, width)

        self._exchange(call, flat.nbytes, width, fill, drain)

    def _deal(self, flat: Flat | None, src: int, timeout: float | None) -> Any:
        call = Call("scatter", f" src={src}", timeout=timeout)
        if flat is not None:
            details = repr((flat.kind, flat.dtype, flat.itemsize, flat.shape)).encode()
            call = Call(
                "scatter", f" src={src}", nbytes=flat.nbytes, details=details, timeout=timeout
            )
        return self._run(call, lambda: self._scatter(flat, src))

    def _scatter(self, flat: Flat | None, src: int) -> Any:
        from ast import literal_eval

        step, layout = self._step, self._step.region.layout
        small = flat is not None and flat.nbytes <= layout.inline
        if flat is not None and small:
            put(flat.data, step.slot(self.rank, step.parity), 0, layout.inline)
        step.agree()
        told = step.told()[src]
        kind, dtype, itemsize, shape = literal_eval(told.details.decode())
        out = make(kind, dtype, shape[1:]) if flat is None else make_like(flat, shape[1:])
        if told.nbytes <= layout.inline:
            rows = rows_of(step.slot(src, step.phase & 1)[: told.nbytes], self.size)
            out.data[:] = rows[self.rank]
            return out.source
        width = row_width(layout.chunk, self.size, itemsize)
        for number in range(rounds_for(out.nbytes, width)):
            if flat is not None:
                mine = step.stage(self.rank, step.parity)
                put_rows(rows_of(flat.data, self.size), mine, number, width)
            parity = step.meet()
            get(out.data, step.stage(src, parity)[self.rank * width :], number, width)
        return out.source

    def _swap_rows(self, flat: Flat, out: Flat, timeout: float | None) -> None:
        rows = rows_of(out.data, self.size)

        def take(parts: list[memoryview], begin: int) -> None:
            for row, part in zip(rows, parts, strict=True):
                row[begin : begin + part.nbytes] = part

        self._exchange_rows("all_to_all", "", flat, take, timeout)

    def _exchange_rows(
        self,
        name: str,
        what: str,
        flat: Flat,
        take: Callable[[list[memoryview], int], None],
        timeout: float | None,
    ) -> None:
        """Rounds in which each rank has a part for each; ``take`` gets this rank's of all."""
        rows, each = rows_of(flat.data, self.size), flat.nbytes // self.size
        width = row_width(self._width(flat.nbytes, flat.itemsize), self.size, flat.itemsize)

        def fill(room: memoryview, number: int) -> None:
            put_rows(rows, room, number, width)

        def drain(rooms: list[memoryview], number: int) -> None:
            begin, at = number * width, self.rank * width
            length = min(width, each - begin)
            if length > 0:
                take([room[at : at + length] for room in rooms], begin)

        call = Call(name, flat.text + what, nbytes=flat.nbytes, timeout=timeout)
        self._exchange(call, each, width, fill, drain)

    # -- messages, objects

    def _send(self, flat: Flat, dst: int, tag: int, timeout: float | None) -> None:
        call = Call("send", f"{flat.text} dst={dst} tag={tag}", nbytes=flat.nbytes, timeout=timeout)
        self._alone(call, lambda: self._channels.send(call, flat, dst, tag))

    def _receive(self, flat: Flat, src: int, tag: int, timeout: float | None) -> None:
        call = Call("recv", f"{flat.text} src={src} tag={tag}", nbytes=flat.nbytes, timeout=timeout)
        self._alone(call, lambda: self._channels.receive(call, flat, src, tag))

    def _give_object(self, mine: bytes, src: int, timeout: float | None) -> bytearray:
        return self._objects("broadcast_object", f" src={src}", mine, [src], timeout)[src]

    def _gather_objects(
        self, mine: bytes, dst: int | None, timeout: float | None
    ) -> list[bytearray]:
        wanted = range(self.size) if dst in (None, self.rank) else ()
        name, where = ("all_gather_object", "") if dst is None else ("gather_object", f" dst={dst}")
        found = self._objects(name, where, mine, wanted, timeout)
        return [found[rank] for rank in wanted]

    def _objects(
        self, name: str, what: str, mine: bytes, wanted: Iterable[int], timeout: float | None
    ) -> dict[int, bytearray]:
        call = Call(name, what, nbytes=len(mine), timeout=timeout)
        return self._run(call, lambda: exchange_objects(self._step, mine, wanted))

    # -- memory, parts, end

    @at_users_line
    def empty(self, shape: Any, dtype: Any = "float32", *, timeout: float | None = None) -> Any:
        """A NumPy array that all ranks map, so that all_reduce of it copies nothing."""
        wanted = self._blocks.plan(shape, dtype)
        call = Call("empty", f" of {wanted.text}", timeout=timeout)
        return self._run(call, lambda: self._blocks.make(wanted))

    def _split(self, mine: bytes, timeout: float | None) -> SharedMemory | None:
        call = Call("split", nbytes=len(mine), timeout=timeout)
        step = self._run(call, lambda: split(self._step, mine))
        if step is None:
            return None
        return type(self)(step, backend=self.backend, timeout=self._timeout)

    def statistics(self) -> Statistics:
        """What this rank has exchanged so far, and for whom it waited."""
        return self._step.tally.read()

    def leave(self) -> None:
        """Say that the function of this rank has returned, unless a thread of it goes on."""
        if self._closed or os.getpid() != self._pid:
            return
        others = [each for each in threading.enumerate() if not each.daemon]
        if others == [threading.current_thread()]:
            for part in self._parts:
                if isinstance(part, SharedMemory):
                    part.leave()
            self._step.leave()

    def close(self) -> None:
        """Leave; whoever still waits for this rank is told. A second call does nothing."""
        if self._closed or os.getpid() != self._pid:  # a fork has no part in this
            return
        for part in self._parts:
            part.close()
        self._closed = True
        self._prepared.clear()
        self._step.leave()
        self._channels.release()
        self._step.close()


def alone() -> SharedMemory:
    """A world of one."""
    return SharedMemory(join_region(make_region(1), 0, Sleeper()), backend="alone")
