"""How data of any size goes through slots of a fixed size: which bytes of whom, in which round.

Pure arithmetic on views of bytes, and what numbers the calls may be given.
"""

from __future__ import annotations

from operator import index

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def check_rank(rank: int, name: str, size: int) -> int:
    """A rank of a group as Python's own number.

    Raises:
        ValueError: It is none.
    """
    try:
        number = index(rank)
    except TypeError:  # no whole number
        number = -1
    if not 0 <= number < size:
        raise ValueError(f"{name}={rank!r}: ranks of this group are 0 to {size - 1}")
    return number


def check_tag(tag: int) -> None:
    """Refuse what is no tag, before anything is sent.

    Raises:
        TypeError: It is no whole number.
        ValueError: It has more than 63 bits.
    """
    try:
        number = index(tag)
    except TypeError:
        raise TypeError(f"tag={tag!r}: tags are whole numbers") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"tag={tag!r}: tags have 63 bits")


def check_shape(shape: Any) -> tuple[int, ...]:
    """A shape, or the only number of one, as Python's own numbers.

    Raises:
        TypeError: It has other things than whole numbers.
        ValueError: One is less than none.
    """
    try:
        sizes: tuple[int, ...] = (index(shape),)
    except TypeError:
        sizes = (*map(index, shape),)
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape={shape!r}: there are no arrays of less than nothing")
    return sizes


def check_part(color: Any, key: Any) -> None:
    """Refuse what cannot be compared with what other ranks give, before it is announced.

    Raises:
        TypeError: It is something else than a number or a text (color), or a number (key).
    """
    if color is not None and not isinstance(color, str) and not hasattr(color, "__index__"):
        raise TypeError(f"color={color!r}: it is a whole number, a text, or None for no part")
    if not hasattr(key, "__float__"):
        raise TypeError(f"key={key!r}: ranks are ordered by numbers")


def check_timeout(timeout: float | None) -> None:
    """Refuse what is no time, before anybody waits for it.

    Raises:
        TypeError: It is no number.
        ValueError: It is less than none, or no number.
    """
    if timeout is None:
        return
    if not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout={timeout!r}: seconds are a number, or None for no limit")
    if not timeout >= 0:
        raise ValueError(f"timeout={timeout!r}: seconds cannot be less than 0")


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
