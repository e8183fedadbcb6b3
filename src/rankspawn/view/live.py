"""Tables of ranks, drawn by rich, and the board that redraws them in a terminal.

Imported only where rich is installed.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

from rich import box
from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rankspawn.view.ranks import percent_text, size_text, summarize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from rankspawn.view.ranks import RankRow
    from rankspawn.view.screen import Screen

_STYLES = {
    "starting": "dim",
    "loading": "dim",
    "running": "cyan",
    "done": "green",
    "failed": "bold red",
    "stopped": "yellow",
}
# A narrow terminal has a short bar, or room for the numbers only.
_NARROW, _WIDE, _BAR_WIDTHS = 64, 120, (10, 20)
# Title, head, rules, the line on what is left out, and one for the cursor.
_LINES_AROUND = 6
# Columns in which a terminal can show an interrupt or two as ^C, behind the table. Without
# them it goes on to another line, and the table is not found again when it is redrawn.
_LEFT_FREE = 4


def make_table(rows: Sequence[RankRow], seconds: float, width: int, height: int) -> Table:
    """The table of the ranks that fit, one row for each.

    Args:
        rows: By rank.
        seconds: Since the start.
        width: Columns of the terminal.
        height: Lines that there are for it.
    """
    has_gpu = any(row.usage.gpu_memory is not None for row in rows)
    has_steps = any(row.steps is not None and row.steps.fraction is not None for row in rows)
    has_bar = has_steps and width >= _NARROW
    shown = choose_rows(rows, max(1, height - _LINES_AROUND))
    left_out = len(rows) - len(shown)
    table = Table(
        title=summarize(rows, seconds),
        title_justify="left",
        caption=f"{left_out} more ranks are not shown" if left_out else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        expand=True,
    )
    # Only the last column gives way if the terminal is narrow.
    for name, least in _columns(has_gpu=has_gpu):
        is_text = name in ("device", "state")
        table.add_column(
            name, justify="left" if is_text else "right", no_wrap=True, min_width=least
        )
    bar_width = _BAR_WIDTHS[width >= _WIDE]
    if has_bar:
        table.add_column("", no_wrap=True, width=bar_width)
    table.add_column("step or last line", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in shown:
        table.add_row(*_cells(row, has_gpu=has_gpu, bar_width=bar_width if has_bar else 0))
    return table


def _columns(*, has_gpu: bool) -> list[tuple[str, int]]:
    """The columns before the last two: name and least width."""
    columns = [("rank", 4), ("device", 6), ("state", 8), ("CPU", 4), ("memory", 8)]
    return [*columns, ("GPU memory", 10)] if has_gpu else columns


def choose_rows(rows: Sequence[RankRow], most: int) -> list[RankRow]:
    """At most so many rows, by rank: those that failed first, then those that run."""
    if len(rows) <= most:
        return list(rows)
    order = {"failed": 0, "running": 1, "loading": 1, "starting": 1}
    chosen = sorted(rows, key=lambda row: (order.get(row.state, 2), row.rank))[:most]
    return sorted(chosen, key=lambda row: row.rank)


def _cells(row: RankRow, *, has_gpu: bool, bar_width: int) -> list[RenderableType]:
    """A row of the table; without a bar if that has no width."""
    cells: list[RenderableType] = [
        str(row.rank),
        row.device,
        Text(row.state, style=_STYLES.get(row.state, "")),
        percent_text(row.usage.cpu_percent),
        size_text(row.usage.memory),
    ]
    if has_gpu:
        cells.append(size_text(row.usage.gpu_memory))
    if bar_width:
        fraction = None if row.steps is None else row.steps.fraction
        cells.append("" if fraction is None else ProgressBar(1.0, fraction, width=bar_width))
    cells.append(Text.from_ansi(row.said, no_wrap=True, overflow="ellipsis"))
    return cells


class LiveBoard:
    """A board in a terminal: a table at the bottom, lines above it."""

    def __init__(self, screen: Screen) -> None:
        self.first: float = 1.0
        self.interval: float | None = 0.25
        self.screen = screen
        self._was_drawn = False

    @property
    def is_drawn(self) -> bool:
        """Whether this board's table stands there."""
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
    """The place at the bottom of the terminal, which the tables of all groups share.

    Each group has a board, and each board a thread that uses it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[LiveBoard, Table] = {}
        self._file = _File()
        # None while there is no table.
        self._live: Live | None = None

    def holds(self, board: LiveBoard) -> bool:
        """Whether a table of this board stands there."""
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

    @property
    def has_tables(self) -> bool:
        """Without the lock: whoever draws may wait for a terminal."""
        return bool(self._tables)

    @contextmanager
    def _used_by(self, board: LiveBoard) -> Iterator[None]:
        """Have what is drawn in here go to this board's screen, and no other thread draw."""
        with self._lock:
            self._file.screen = board.screen
            try:
                yield
            except OSError:  # nobody is there any more
                self._tables.clear()
                self._live = None
                raise

    def _put(self, board: LiveBoard, rows: Sequence[RankRow], seconds: float) -> Live:
        """Show the board's table among those of the others; what draws them."""
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
        """Draw the tables that are left, or wipe the place if there are none."""
        assert self._live is not None, "somebody has put a table"
        if self._tables:
            self._live.update(Group(*self._tables.values()), refresh=True)
        else:
            live, self._live = self._live, None
            live.transient = True
            live.stop()


class _Console(Console):
    """A console that never hides the cursor: a program that is killed could not bring it back."""

    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002
        return False


class _AsItIs:
    """Lines that rich passes on with their codes and line ends."""

    def __init__(self, lines: bytes) -> None:
        self._text = lines.decode("utf-8", "replace")

    def __rich_console__(self, *_: object) -> Iterator[Segment]:
        yield Segment(self._text)


class _File:
    """The screen of whoever writes, as the text file that rich wants."""

    screen: Screen

    @property
    def encoding(self) -> str:
        return getattr(sys.stdout, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        self.screen.write(text.encode(self.encoding, "replace"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: everything was written at once."""

    def isatty(self) -> bool:
        return True


_stage = _Stage()


def shows_tables() -> bool:
    """Whether any table stands on a terminal now."""
    return _stage.has_tables


def _forget() -> None:
    """Begin anew in a forked child."""
    global _stage  # noqa: PLW0603 - the process is in this state, not an object
    # The lock may have been held by a thread that the fork did not copy.
    _stage = _Stage()


os.register_at_fork(after_in_child=_forget)
