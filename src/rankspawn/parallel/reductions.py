"""All-reduce and reduce: small data at once, large data in pieces, shared data in place."""

from __future__ import annotations

import contextvars
import sys

from rankspawn.parallel.announcing import Call
from rankspawn.parallel.layout import split_evenly
from rankspawn.parallel.pieces import put, rounds_for
from rankspawn.parallel.reducing import function_of, is_plain, reduce_into

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rankspawn.parallel.blocks import Blocks
    from rankspawn.parallel.buffers import Flat
    from rankspawn.parallel.lockstep import Lockstep


def reduce_small(step: Lockstep, flat: Flat, op: str, dst: int | None) -> None:
    """Each rank makes the whole result, from all ranks' data that came with the announcement.

    Args:
        step: The meetings.
        flat: This rank's data; gets the result.
        op: What to do with it.
        dst: The one rank that gets the result; None for all.
    """
    put(flat.data, step.slot(step.rank, step.parity), 0, step.region.layout.inline)
    step.agree()
    if dst in (None, step.rank) and flat.nbytes:
        parity = step.phase & 1
        parts = [step.slot(rank, parity)[: flat.nbytes] for rank in range(step.size)]
        reduce_into(flat.data, parts, flat.dtype, op)


class Prepared:
    """A small all-reduce of arrays of one type and shape: all but their numbers, made once.

    Attributes:
        call: What is announced.
        body: The reduction, of the array that it is given.
    """

    __slots__ = ("call", "reduce")

    def __init__(self, step: Lockstep, array: Any, op: str, text: str) -> None:
        self.call: Call = Call("all_reduce", f"{text} op={op}", nbytes=array.nbytes)
        numpy = sys.modules["numpy"]
        rooms = [
            [
                numpy.frombuffer(step.slot(rank, parity)[: array.nbytes], array.dtype)
                for rank in range(step.size)
            ]
            for parity in (0, 1)
        ]
        slots = [[room.reshape(array.shape) for room in each] for each in rooms]
        self.reduce: Callable[[Any], None] = _prepare(step, slots, function_of(numpy, op), op)


def _prepare(step: Lockstep, slots: list[list[Any]], function: Any, op: str) -> Any:
    rank, size = step.rank, step.size
    divide = sys.modules["numpy"].divide
    first, second, others = 0, 1, range(2, size)
    run = _without_warnings()

    def combine(target: Any) -> None:
        parts = slots[step.phase & 1]
        function(parts[first], parts[second], out=target)
        for each in others:
            function(target, parts[each], out=target)
        if op == "avg":
            divide(target, size, out=target)

    def reduce(target: Any) -> None:
        slots[(step.phase + 1) & 1][rank][...] = target
        step.agree()
        run(combine, target)

    return reduce


def _without_warnings() -> Callable[[Callable[[Any], None], Any], None]:
    """What runs a function without NumPy's warnings of overflows and the like."""
    numpy = sys.modules["numpy"]
    if int(numpy.__version__.partition(".")[0]) >= 2:
        # These are a variable of the context, and to enter one takes less than to change it.
        context = contextvars.copy_context()
        context.run(numpy.seterr, all="ignore")
        return context.run

    def run(function: Callable[[Any], None], target: Any) -> None:
        with numpy.errstate(all="ignore"):
            function(target)

    return run


def prepare_small(step: Lockstep, array: Any, op: str, text: str, dtype: str) -> Prepared | None:
    """The reduction of such arrays; None if it has to be made in another way."""
    is_small = 0 < array.nbytes <= step.region.layout.inline
    if step.size == 1 or not is_small or not is_plain(op, dtype):
        return None
    return Prepared(step, array, op, text)


def reduce_large(
    step: Lockstep, blocks: Blocks, call: Call, flat: Flat, op: str, dst: int | None
) -> None:
    """The same for data of any size; in place if all ranks' data lies in the same shared block."""
    width = step.region.layout.chunk // flat.itemsize * flat.itemsize
    stage = _stage_half if step.size == 2 else _stage_all
    if not call.block:
        stage(step, flat, 0, width)
    step.agree()
    told = step.told()
    place = (call.block, call.offset)
    if call.block and all((each.block, each.offset) == place for each in told):
        blocks.reduce(call, flat, op, dst)
        step.meet()
        return
    if any(each.block for each in told):  # some have published nothing yet
        stage(step, flat, 0, width)
        step.meet()
    reduce = _reduce_pair if step.size == 2 else _reduce_staged
    reduce(step, flat, op, dst, width)


def _stage_all(step: Lockstep, flat: Flat, number: int, width: int) -> None:
    put(flat.data, step.stage(step.rank, step.parity), number, width)


def _stage_half(step: Lockstep, flat: Flat, number: int, width: int) -> None:
    """Publish of a piece what the other one of two ranks reduces."""
    piece = flat.data[number * width : (number + 1) * width]
    begin, end = shares_of(piece.nbytes, flat.itemsize, 2)[1 - step.rank]
    step.stage(step.rank, step.parity)[begin:end] = piece[begin:end]


def _reduce_pair(step: Lockstep, flat: Flat, op: str, dst: int | None, width: int) -> None:
    """Two ranks: each reduces one half of a piece, in the stage of the other, who finds it there.

    In bare loops of NumPy that took a third of the time of a stage of one's own. One meeting
    publishes the next piece and the results of the one before. The first piece is there already.
    """
    count, other, wanted = rounds_for(flat.nbytes, width), 1 - step.rank, dst in (None, step.rank)
    for number in range(count + 1):
        parity = step.phase & 1
        if number > 0 and wanted:
            piece = flat.data[(number - 1) * width : number * width]
            begin, end = shares_of(piece.nbytes, flat.itemsize, 2)[other]
            piece[begin:end] = step.stage(step.rank, 1 - parity)[begin:end]
        if number == count:
            return
        piece = flat.data[number * width : (number + 1) * width]
        begin, end = shares_of(piece.nbytes, flat.itemsize, 2)[step.rank]
        mine, theirs = piece[begin:end], step.stage(other, parity)[begin:end]
        if end > begin:
            pair = (mine, theirs) if step.rank == 0 else (theirs, mine)
            reduce_into(theirs, pair, flat.dtype, op)
            if wanted:
                mine[:] = theirs
        if number + 1 < count:
            _stage_half(step, flat, number + 1, width)
        step.meet()


def _reduce_staged(step: Lockstep, flat: Flat, op: str, dst: int | None, width: int) -> None:
    """Piece by piece: each rank reduces its share of a piece, and all read the shares.

    What one meeting publishes is the next piece and the shares of the one before, so there is one
    for each piece. The first piece is there already.
    """
    ranks, result_at = range(step.size), step.region.layout.result_at
    count = rounds_for(flat.nbytes, width)
    for number in range(count + 1):
        stages = [step.stage(rank, step.phase & 1) for rank in ranks]
        if number > 0 and dst in (None, step.rank):
            piece = flat.data[(number - 1) * width : number * width]
            shares = shares_of(piece.nbytes, flat.itemsize, step.size)
            for stage, (begin, end) in zip(stages, shares, strict=True):
                piece[begin:end] = stage[result_at : result_at + end - begin]
        if number == count:
            return
        mine = step.stage(step.rank, step.parity)
        length = min(width, flat.nbytes - number * width)
        begin, end = shares_of(length, flat.itemsize, step.size)[step.rank]
        if end > begin:
            target = mine[result_at : result_at + end - begin]
            reduce_into(target, [stage[begin:end] for stage in stages], flat.dtype, op)
        if number + 1 < count:
            put(flat.data, mine, number + 1, width)
        step.meet()


def shares_of(nbytes: int, itemsize: int, size: int) -> list[tuple[int, int]]:
    """Which bytes of a piece each rank reduces."""
    parts = split_evenly(nbytes // itemsize, size)
    return [(begin * itemsize, end * itemsize) for begin, end in parts]
