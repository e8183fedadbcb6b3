"""Where this program shows things: a notebook, a terminal with or without rich, or a file."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from rankspawn.view.boards import HINT, LinesOnly, PlainBoard

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.view.boards import Board
    from rankspawn.view.screen import Screen


def open_board(screen: Screen, *, progress: bool, in_notebook: bool) -> Board:
    """The best that this place can do."""
    if not progress:
        return LinesOnly(screen)
    if in_notebook:
        from rankspawn.view.notebook import NotebookBoard

        return NotebookBoard(screen)
    # A dumb terminal cannot move its cursor.
    if not screen.is_terminal or os.environ.get("TERM") in ("dumb", "unknown"):
        return PlainBoard(screen)
    if not has_rich():
        return PlainBoard(screen, HINT)
    from rankspawn.view.live import LiveBoard

    return LiveBoard(screen)


def has_rich() -> bool:
    """The optional dependency is installed."""
    return "rich" in sys.modules or find_spec("rich") is not None
