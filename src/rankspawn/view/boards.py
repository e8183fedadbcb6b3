"""Boards: places for lines and, with ``progress``, for a view of all ranks.

A board is used by one thread. The one that redraws a terminal needs rich, and is in ``live``.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from typing import Any, Protocol

from rankspawn.view.ranks import plain_lines

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.view.ranks import RankRow
    from rankspawn.view.screen import Screen

HINT = "for a live table install rich: pip install 'rankspawn[progress]'"

# How a cell of a notebook shows text that keeps its columns, and how many of them it has.
_PAGE = '<pre style="line-height: 1.2; font-family: monospace">{code}</pre>'
_NOTEBOOK_WIDTH = 110


class Board(Protocol):
    """A place that shows lines as they come, and now and then all ranks.

    Attributes:
        first: Seconds before the ranks are shown at all; what ends sooner needs no view.
        interval: Seconds between two views of them; None if they are not shown.
    """

    first: float
    interval: float | None

    @property
    def is_drawn(self) -> bool:
        """Whether a view stands there that has to be redrawn or wiped."""

    def show_lines(self, lines: bytes) -> None:
        """Show whole lines, above the view if there is one."""

    def draw(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Show the ranks as they are after so many seconds."""

    def wipe(self) -> None:
        """Remove the view: the program itself wants to print."""

    def finish(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Leave the last view as it is, if there was any."""


def open_board(screen: Screen, *, progress: bool, in_notebook: bool) -> Board:
    """The best board that this place allows: a notebook, a terminal, a pipe or a file."""
    if not progress:
        return LinesBoard(screen)
    if in_notebook:
        return NotebookBoard(screen)
    # A dumb terminal cannot move its cursor.
    if not screen.is_terminal or os.environ.get("TERM") in ("dumb", "unknown"):
        return PlainBoard(screen)
    if not has_rich():
        return PlainBoard(screen, HINT)
    from rankspawn.view.live import LiveBoard

    return LiveBoard(screen)


def has_rich() -> bool:
    """Whether rich, an optional dependency, is installed; it is not imported for this."""
    return "rich" in sys.modules or find_spec("rich") is not None


class LinesBoard:
    """A board for lines, without a view of the ranks."""

    first: float = 0.0
    interval: float | None = None
    is_drawn = False

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def show_lines(self, lines: bytes) -> None:
        """Show whole lines."""
        self._screen.write(lines)

    def draw(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Do nothing; never called, since there is no interval."""

    def wipe(self) -> None:
        """Do nothing: there is no view."""

    def finish(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Do nothing: there is no view."""


class PlainBoard(LinesBoard):
    """A board for logs and pipes: some lines every few seconds. Needs no rich.

    Args:
        screen: Where to write.
        hint: A line that is shown once, below the first view.
    """

    first: float = 5.0
    interval: float | None = 5.0

    def __init__(self, screen: Screen, hint: str = "") -> None:
        super().__init__(screen)
        self._hint = hint

    def draw(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Add a line per rank; lines stay, so there is nothing to wipe or to finish."""
        lines = plain_lines(rows, seconds)
        if self._hint:
            lines.append(self._hint)
            self._hint = ""
        text = "".join(f"rankspawn: {line}\n" for line in lines)
        self._screen.write(text.encode("utf-8", "replace"))


class NotebookBoard(LinesBoard):
    """A board in a cell of a notebook: lines in its output, a table that is replaced in place."""

    first: float = 1.0
    interval: float | None = 0.5

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._handle: Any = None

    def draw(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Show the table, or replace it; it is in nobody's way and needs no wiping."""
        bundle = {"text/plain": "\n".join(plain_lines(rows, seconds))}
        with suppress(ImportError):  # without rich the plain lines are shown
            bundle["text/html"] = _as_html(rows, seconds)
        if self._handle is None:
            display = import_module("IPython.display").display
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def finish(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Leave the last table."""
        if self._handle is not None:
            self.draw(rows, seconds)


def _as_html(rows: Sequence[RankRow], seconds: float) -> str:
    """The table as HTML; ImportError without rich."""
    from rich.console import Console

    from rankspawn.view.live import make_table

    # Into nothing: rich would recognize the notebook and show the table as a new output.
    console = Console(file=StringIO(), record=True, width=_NOTEBOOK_WIDTH, force_jupyter=False)
    console.print(make_table(rows, seconds, width=_NOTEBOOK_WIDTH, height=sys.maxsize))
    return console.export_html(inline_styles=True, code_format=_PAGE)
