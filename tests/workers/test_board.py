"""Where programs say how far they are: who may write there, and what is read of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rankspawn.workers.board import STEPS_VARIABLE, Board, Page, open_page, read_page


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board()
    yield board
    board.close()


def opened(address: str, monkeypatch: pytest.MonkeyPatch) -> Page | None:
    monkeypatch.setenv(STEPS_VARIABLE, address)
    return open_page()


def test_each_has_a_page(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in (0, 3):
        page = opened(board.address(index, is_looked_at=index == 3), monkeypatch)
        assert page is not None
        assert page.is_looked_at == (index == 3)
        page.put_steps(b"%d: a record" % (index + 1))
        page.close()
    assert board.read(0).startswith(b"1: a record")
    assert board.read(1) == b""
    assert read_page(board.fileno(), 3).startswith(b"4: a record")
    assert board.read(4) == b""
    board.close()
    assert board.read(0) == b""


def test_what_a_rank_starts_is_no_rank(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    address = board.address(0, is_looked_at=False)
    os.pwrite(board.fileno(), (os.getpid() + 1).to_bytes(8, "little"), 0)
    assert opened(address, monkeypatch) is None


def test_there_is_none(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STEPS_VARIABLE, raising=False)
    assert open_page() is None
    assert opened("nonsense", monkeypatch) is None
    words = board.address(0, is_looked_at=False).split(":")
    words[3] = str(int(words[3]) + 1)  # another file by now
    assert opened(":".join(words), monkeypatch) is None
