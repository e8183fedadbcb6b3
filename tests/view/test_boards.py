"""Which board shows the ranks where, and what the plain one shows."""

from __future__ import annotations

from typing import Any

import pytest

from rankspawn.view import boards
from rankspawn.view.boards import HINT, LinesBoard, PlainBoard, open_board
from rankspawn.view.ranks import RankRow
from rankspawn.view.screen import DescriptorScreen


@pytest.mark.parametrize(("term", "is_live"), [("xterm", True), ("dumb", False)])
def test_the_best_board_for_a_place(
    term: str, is_live: bool, terminal: int, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", term)
    tty, no_tty = DescriptorScreen(terminal), DescriptorScreen(pipe[1])
    board = open_board(tty, progress=True, in_notebook=False)
    assert (type(board).__name__ == "LiveBoard") == is_live
    assert type(open_board(no_tty, progress=True, in_notebook=False)) is PlainBoard
    assert type(open_board(tty, progress=False, in_notebook=True)) is LinesBoard
    tty.close()
    no_tty.close()


def test_without_rich_there_are_lines_and_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "has_rich", lambda: False)

    class Terminal:
        is_terminal = True
        taken = 0
        text = b""

        def write(self, data: bytes) -> None:
            self.text += data

    screen: Any = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    board = open_board(screen, progress=True, in_notebook=False)
    for _ in range(2):
        board.draw([RankRow(0, "cpu", "running", line="hello")], 5)
    assert screen.text.decode().splitlines() == [
        "rankspawn: rank 0 (cpu) running after 5 s, hello",
        f"rankspawn: {HINT}",
        "rankspawn: rank 0 (cpu) running after 5 s, hello",
    ]
