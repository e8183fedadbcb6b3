"""Tables that are redrawn in a terminal, with rich. Imported only where rich is installed."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.segment import Segment

from rankspawn.view.table import make_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from rankspawn.view.ranks import RankRow
    from rankspawn.view.screen import Screen


# Columns in which a terminal can show an interrupt or two as ^C, behind the table. Without
# them it goes on to another line, and the table is not found again when it is redrawn.
_LEFT_FREE = 4


class LiveBoard:
    """A table at the bottom, lines above it."""

    def __init__(self, screen: Screen) -> None:
        self.first = 1.0
        self.interval: float | None = 0.25
        self.screen = screen
        self._was_drawn = False

    @property
    def is_drawn(self) -> bool:
        """The table stands there."""
        return _stage.holds(self)

    def show_lines(self, lines: bytes) -> None:
        """Show whole lines above the table."""
        _stage.show_lines(self, lines)

    def draw(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Redraw the table."""
        _stage.put(self, rows, seconds)
        self._was_drawn = True

    def wipe(self) -> None:
        """Remove the table; the next ``draw`` brings it back."""
        _stage.remove(self)

    def finish(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Leave the last table."""
        if self._was_drawn:
            _stage.leave(self, rows, seconds)


class _Stage:
    """The place at the bottom of the terminal, for the tables of all groups that run.

    Each group has a board, and each board a thread that uses it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[LiveBoard, Table] = {}
        self._file = _File()
        # There is one while a table is.
        self._live: Live | None = None

    def holds(self, board: LiveBoard) -> bool:
        """A table of this board stands there."""
        return board in self._tables

    def show_lines(self, board: LiveBoard, lines: bytes) -> None:
        """Show whole lines above all tables."""
        with self._used_by(board):
            if self._live is None:
                board.screen.write(lines)
            else:
                self._live.console.print(_AsItIs(lines), soft_wrap=True, end="")

    def put(self, board: LiveBoard, rows: Sequence[RankRow], seconds: float) -> None:
        """Show the board's table, in place of the one before."""
        with self._used_by(board):
            self._put(board, rows, seconds)

    def remove(self, board: LiveBoard) -> None:
        """Remove the board's table."""
        with self._used_by(board):
            if self._tables.pop(board, None) is not None:
                self._redraw()

    def leave(self, board: LiveBoard, rows: Sequence[RankRow], seconds: float) -> None:
        """Show the board's table for good, above those that are still redrawn."""
        with self._used_by(board):
            live = self._put(board, rows, seconds)
            table = self._tables.pop(board)
            if self._tables:
                self._redraw()
                live.console.print(table)
            else:
                self._live = None
                live.stop()

    @contextmanager
    def _used_by(self, board: LiveBoard) -> Iterator[None]:
        with self._lock:
            self._file.screen = board.screen
            try:
                yield
            except OSError:  # nobody is there any more
                self._tables.clear()
                self._live = None
                raise

    def _put(self, board: LiveBoard, rows: Sequence[RankRow], seconds: float) -> Live:
        if self._live is None:
            console = _Console(file=cast("IO[str]", self._file), force_terminal=True)
            # Neither a thread of rich's nor its hands on the program's own streams.
            self._live = Live(
                console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        columns, lines = board.screen.size()
        width = max(1, columns - _LEFT_FREE)
        self._live.console.size = ConsoleDimensions(width, lines)
        count = len(self._tables.keys() | {board})
        self._tables[board] = make_table(rows, seconds, width, lines // count)
        self._redraw()
        return self._live

    def _redraw(self) -> None:
        assert self._live is not None, "somebody has put a table"
        if self._tables:
            self._live.update(Group(*self._tables.values()), refresh=True)
        else:
            live, self._live = self._live, None
            live.transient = True
            live.stop()


class _Console(Console):
    """Leaves the cursor alone: a program that is killed could not bring it back."""

    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002
        return False


class _AsItIs:
    """Text that rich passes on with its codes and line ends."""

    def __init__(self, lines: bytes) -> None:
        self._text = lines.decode("utf-8", "replace")

    def __rich_console__(self, *_: object) -> Iterator[Segment]:
        yield Segment(self._text)


class _File:
    """The screen of whoever writes, as a text file."""

    screen: Screen

    @property
    def encoding(self) -> str:
        return getattr(sys.stdout, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        self.screen.write(text.encode(self.encoding, "replace"))
        return len(text)

    def flush(self) -> None:
        """Everything is written at once."""

    def isatty(self) -> bool:
        return True


_stage = _Stage()


def _forget() -> None:
    """In a fork, which has none of the threads that may have been at work here."""
    global _stage  # noqa: PLW0603 - the process is in this state, not an object
    _stage = _Stage()


os.register_at_fork(after_in_child=_forget)
