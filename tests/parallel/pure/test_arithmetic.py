"""Where things are, how data is cut, what numbers become."""

from __future__ import annotations

import array
import itertools
import pickle
import struct
from typing import Any

import numpy as np
import pytest

from rankspawn import CollectiveMismatchError, CollectiveTimeoutError, RankLostError
from rankspawn.parallel import waiting
from rankspawn.parallel.buffers import flatten
from rankspawn.parallel.layout import (
    CHANNELS,
    DETAILS_AT,
    DETAILS_ROOM,
    INLINE_AT,
    LAST,
    PLACE_AT,
    PLACE_ROOM,
    SIGNATURE_AT,
    SIGNATURE_ROOM,
    SLEEPING,
    TICKS,
    Layout,
    split_evenly,
)
from rankspawn.parallel.pieces import rounds_for, row_width, rows_of
from rankspawn.parallel.reducing import check_operation, reduce_into
from rankspawn.parallel.reductions import shares_of
from rankspawn.parallel.splitting import members_of
from rankspawn.parallel.waiting import Patience
from rankspawn.supervise.outcome import End, Outcome, failures_in


@pytest.mark.parametrize("size", [1, 2, 3, 16, 200])
def test_no_two_things_are_at_the_same_place(size: int) -> None:
    layout = Layout(size)
    ranks = range(size)
    parts = [(0, layout.board), (layout.board, SLEEPING + size)]
    parts += [(layout.entries(parity), 8 * size) for parity in (0, 1)]
    for rank in ranks:
        words = layout.taken(rank, size - 1) + 4 - layout.control(rank)
        parts.append((layout.control(rank), words))
        slot = INLINE_AT + layout.inline
        parts += [(layout.announcement(rank, parity), slot) for parity in (0, 1)]
        at = layout.controls_end
        parts += [(at + layout.stage_offset(rank, parity), layout.stage) for parity in (0, 1)]
    pairs = itertools.product(ranks, ranks)
    parts += [(layout.channel(*pair), 2 * layout.parcel) for pair in pairs]
    parts.sort()
    for (at, length), (following, _) in itertools.pairwise(parts):
        assert at + length <= following
    assert sum(parts[-1]) <= layout.end
    assert layout.chunk // size + 32 <= layout.result_room


def test_the_parts_of_an_announcement_do_not_overlap() -> None:
    assert SIGNATURE_AT + SIGNATURE_ROOM < PLACE_AT + 1
    assert PLACE_AT + PLACE_ROOM <= DETAILS_AT
    assert DETAILS_AT + DETAILS_ROOM <= INLINE_AT
    assert TICKS + 8 <= CHANNELS
    assert LAST + 4 <= SLEEPING


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 1000, 5 << 30])
def test_shares_cover_everything_once(count: int) -> None:
    for size in (1, 2, 7, 8):
        shares = split_evenly(count, size)
        assert [begin for begin, _ in shares] == [0, *(end for _, end in shares[:-1])]
        assert shares[-1][1] == count
        assert max(end - begin for begin, end in shares) <= -(-count // size)
    assert shares_of(24, 8, 2) == [(0, 8), (8, 24)]


def test_large_data_is_cut_without_a_limit_of_31_or_32_bits() -> None:
    assert rounds_for(5 << 30, 1 << 20) == 5 << 10
    assert rounds_for(0, 1 << 20) == 1
    assert split_evenly(5 << 30, 3)[2] == ((5 << 30) * 2 // 3, 5 << 30)
    assert row_width(1 << 20, 3, 8) * 3 <= 1 << 20
    assert [row.nbytes for row in rows_of(memoryview(bytes(12)), 3)] == [4, 4, 4]


def test_members_are_ordered_by_key_and_rank() -> None:
    wishes: list[tuple[int | None, int]] = [(1, 5), (0, 0), (1, 2), (None, 0), (1, 2)]

    assert members_of(wishes, 0) == [2, 4, 0]
    assert members_of(wishes, 1) == [1]
    assert members_of(wishes, 3) == []


def bfloat16(values: Any) -> bytes:
    """The nearest, by way of Python's own rounding of fractions."""
    bits = np.asarray(values, "f4").view("u4")
    rounded = (bits.astype("u8") + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return bytes(rounded.astype("u2"))


@pytest.mark.parametrize("op", ["sum", "avg", "max", "prod"])
def test_bfloat16_is_reduced_with_more_bits_and_rounded_once(op: str) -> None:
    source = np.random.default_rng(3)
    parts = [bfloat16(source.standard_normal(100_000)) for _ in range(3)]
    wide = [(np.frombuffer(part, "u2").astype("u4") << 16).view("f4") for part in parts]
    functions = {"sum": np.add, "avg": np.add, "max": np.maximum, "prod": np.multiply}
    expected = functions[op](functions[op](wide[0], wide[1]), wide[2])
    if op == "avg":
        expected = expected / np.float32(3)
    out = bytearray(200_000)

    reduce_into(memoryview(out), [memoryview(part) for part in parts], "bfloat16", op)

    assert bytes(out) == bfloat16(expected)


def test_what_is_not_a_number_stays_so() -> None:
    nan, inf = struct.pack("<H", 0x7F81), struct.pack("<H", 0x7F80)
    out = bytearray(2)
    reduce_into(memoryview(out), [memoryview(nan), memoryview(inf)], "bfloat16", "sum")
    assert np.isnan((np.frombuffer(out, "u2").astype("u4") << 16).view("f4"))[0]


@pytest.mark.parametrize(
    ("op", "dtype", "error"),
    [
        ("mean", "float32", ValueError),
        ("avg", "int64", TypeError),
        ("bor", "float32", TypeError),
        ("max", "complex64", TypeError),
        ("sum", "datetime64[ns]", TypeError),
        ("sum", "void64", TypeError),
    ],
)
def test_operations_that_make_no_sense_are_refused(
    op: str, dtype: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        check_operation(op, dtype)


def test_foreign_byte_order_is_reduced_too() -> None:
    numbers = np.arange(4.0).astype(">f8")
    flat = flatten(numbers, writable=True)
    check_operation("sum", flat.dtype)
    reduce_into(flat.data, [flat.data, flat.data], flat.dtype, "sum")
    assert numbers.tolist() == [0, 2, 4, 6]


def test_what_does_not_lie_in_one_piece_is_copied_and_written_back() -> None:
    table = np.zeros((4, 6))
    flat = flatten(table[:, ::2], writable=True)
    flat.data[:] = np.ones(12).tobytes()
    assert flat.write_back is not None
    flat.write_back()
    assert table.sum() == 12
    assert table[:, 1::2].sum() == 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"abc", "must not be written to"),
        (np.broadcast_to(np.ones(1), 3), "must not be written to"),
        ([1, 2], "builtins.list has no buffer of numbers"),
        (np.array([object()]), "use the _object forms"),
        (memoryview(bytearray(8))[::2], "does not lie in one piece"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(source: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        flatten(source, writable=True)


def test_buffers_of_pythons_own_have_numpys_types() -> None:
    assert flatten(array.array("l", [1]), writable=True).dtype == "int64"
    assert flatten(array.array("f", [1]), writable=True).dtype == "float32"
    assert flatten(bytearray(3), writable=True).text == " of uint8[3]"
    assert flatten(np.ones(()), writable=True).shape == ()


ERRORS = [
    CollectiveMismatchError("who and what", (0, 1), ("a", "b")),
    RankLostError("who", 3, "barrier"),
    CollectiveTimeoutError("who", (1, 2), "barrier"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: Exception) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_a_rank_that_lost_another_one_is_not_the_cause() -> None:
    lost = Outcome(0, 10, End.RAISED, 1, when_ns=5, reached_function=True, follows=True)
    dead = Outcome(1, 11, End.DIED, -9, when_ns=7, reached_function=True)

    assert [index for index, _ in failures_in({0: lost, 1: dead})] == [1, 0]


def test_patience_rests_while_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Patience(1)
    word = memoryview(bytearray(4)).cast("I")
    assert patience.is_rewarded(word, 0, 0)
    monkeypatch.setattr(waiting, "_TOO_LONG", 1000.0)
    for _ in range(20):
        assert not patience.is_rewarded(word, 0, 1)
    word[0] = 1
    assert patience.is_rewarded(word, 0, 1)  # it has not been discouraged
    for rest in (50, 100, 200):
        monkeypatch.setattr(waiting, "_TOO_LONG", -1.0)
        assert patience.is_rewarded(word, 0, 1)
        monkeypatch.setattr(waiting, "_TOO_LONG", 1000.0)
        assert not any(patience.is_rewarded(word, 0, 1) for _ in range(rest))
    assert patience.is_rewarded(word, 0, 1)
