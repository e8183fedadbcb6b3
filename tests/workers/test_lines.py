"""Whole lines out of pieces, and what is left of bars and colours. No processes in here."""

from __future__ import annotations

import pytest

from rankspawn.workers.lines import LONGEST, LineAssembler, clean


def lines_of(*pieces: bytes) -> list[bytes]:
    assembler = LineAssembler()
    found = [line for piece in pieces for line in assembler.feed(piece)]
    return [*found, *assembler.finish()]


def test_pieces_become_lines() -> None:
    assert lines_of(b"one\ntw", b"o\n\nth", b"ree") == [b"one", b"two", b"", b"three"]


def test_byte_by_byte() -> None:
    text = "grüße\n\x1b[31mred\x1b[0m\n".encode()
    assert lines_of(*[text[at : at + 1] for at in range(len(text))]) == text.splitlines()


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"a\rb\rc\n", [b"c"]),
        (b"windows\r\n", [b"windows"]),
        (b"\r 0%\r 50%\r100%\n", [b"100%"]),
        (b"\r 50%|#  |\r          \r", []),  # a bar that wipes itself
        (b"50%\r", [b"50%"]),  # a bar that returns after drawing
        (b"\r10%", [b"10%"]),
        (b"loading\rdone", [b"done"]),
    ],
)
def test_a_redrawn_line_shows_its_last_state(printed: bytes, shown: list[bytes]) -> None:
    assert lines_of(printed) == shown
    pieces = [printed[at : at + 1] for at in range(len(printed))]
    assert lines_of(*pieces) == shown


def test_bars_below_each_other_do_not_flood() -> None:
    outer, inner = b"\router 1/2", b"\n\rinner %d/100\x1b[A"
    assembler = LineAssembler()
    shown = assembler.feed(outer)
    for at in range(100):
        shown += assembler.feed(inner % at)
    assert shown == [b"outer 1/2"]
    assert assembler.has_news
    assert assembler.take_state() == b"inner 99/100"
    assert not assembler.has_news


def test_a_bar_that_runs_for_hours_is_not_kept() -> None:
    assembler = LineAssembler()
    for at in range(10_000):
        assert assembler.feed(b"\r%d of many" % at) == []
    assert len(assembler._rest) < 100
    assert assembler.last == b"9999 of many"
    assert assembler.finish() == [b"9999 of many"]


def test_a_state_that_was_told_is_not_told_again() -> None:
    assembler = LineAssembler()
    assembler.feed(b"\r100%")
    assert assembler.take_state() == b"100%"
    assert assembler.feed(b"\n") == []
    assembler.feed(b"\r5%")
    assembler.take_state()
    assert assembler.finish() == []


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"\x1b[32mgreen\x1b[0m", b"\x1b[32mgreen\x1b[0m"),
        (b"\x1b[32mgreen", b"\x1b[32mgreen\x1b[0m"),  # and nobody else's
        (b"\x1b[1;31mred\x1b[m", b"\x1b[1;31mred\x1b[m"),
        (b"up\x1b[Aand\x1b[2Kaway\x1b[10;20H", b"upandaway"),
        (b"\x1b]0;a title\x07text", b"text"),
        (b"\x1b[?25lhidden cursor\x1b[?25h", b"hidden cursor"),
        (b"\x1b7saved\x1b8", b"saved"),
        (b"bell\x07, back\x08, form\x0c", b"bell, back, form"),
        (b"a\tb", b"a\tb"),
        (b"cut \x1b", b"cut "),
    ],
)
def test_only_colours_are_left_of_codes(line: bytes, shown: bytes) -> None:
    assert clean(line) == shown


def test_a_line_without_end_is_shown_in_pieces() -> None:
    assembler = LineAssembler()
    shown = [line for _ in range(40) for line in assembler.feed(b"x" * 65536)]
    assert [len(line) for line in shown] == [LONGEST, LONGEST]
