"""The view in a cell of a notebook: shown once, then replaced in its place."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from io import StringIO
from typing import Any

from rankspawn.view.ranks import plain_lines

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.view.ranks import RankRow
    from rankspawn.view.screen import Screen

_PAGE = '<pre style="line-height: 1.2; font-family: monospace">{code}</pre>'
_WIDTH = 110


class NotebookBoard:
    """Lines go to the cell's output, the table into one place of it."""

    is_drawn = False

    def __init__(self, screen: Screen) -> None:
        self.first = 1.0
        self.interval: float | None = 0.5
        self._screen = screen
        self._handle: Any = None

    def show_lines(self, lines: bytes) -> None:
        """Show whole lines."""
        self._screen.write(lines)

    def draw(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Show the table, or replace it."""
        bundle = {"text/plain": "\n".join(plain_lines(rows, seconds))}
        with suppress(ImportError):  # without rich the plain lines are shown
            bundle["text/html"] = _as_html(rows, seconds)
        if self._handle is None:
            display = import_module("IPython.display").display
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def wipe(self) -> None:
        """It is in nobody's way."""

    def finish(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Leave the last table."""
        if self._handle is not None:
            self.draw(rows, seconds)


def _as_html(rows: Sequence[RankRow], seconds: float) -> str:
    from rich.console import Console

    from rankspawn.view.table import make_table

    console = Console(file=StringIO(), record=True, width=_WIDTH, force_jupyter=False)
    console.print(make_table(rows, seconds, width=_WIDTH, height=sys.maxsize))
    return console.export_html(inline_styles=True, code_format=_PAGE)
