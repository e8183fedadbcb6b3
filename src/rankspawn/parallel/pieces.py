"""How data of any size goes through slots of a fixed size: which bytes of whom, in which round.

Pure arithmetic on views of bytes.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence


def rounds_for(nbytes: int, width: int) -> int:
    """How many pieces of this width; one for no bytes at all, which have to be announced too."""
    return max(1, -(-nbytes // width))


def put(data: memoryview, room: memoryview, number: int, width: int) -> None:
    """Write the piece with this number into a slot."""
    piece = data[number * width : (number + 1) * width]
    room[: piece.nbytes] = piece


def get(data: memoryview, room: memoryview, number: int, width: int) -> None:
    """Read the piece with this number from a slot."""
    piece = data[number * width : (number + 1) * width]
    piece[:] = room[: piece.nbytes]


def rows_of(data: memoryview, size: int) -> list[memoryview]:
    """The bytes as one equal part per rank."""
    each = data.nbytes // size
    return [data[rank * each : (rank + 1) * each] for rank in range(size)]


def row_width(width: int, size: int, itemsize: int) -> int:
    """Bytes of each rank's part of a slot that is shared by all: whole elements."""
    return max(itemsize, width // size // itemsize * itemsize)


def put_rows(rows: Sequence[memoryview], room: memoryview, number: int, width: int) -> None:
    """Write the piece with this number of every rank's part into a slot."""
    for rank, row in enumerate(rows):
        put(row, room[rank * width :], number, width)
