"""Places for lines and, with ``progress``, for a view of all ranks: plain ones.

A board is used by one thread. Those that redraw are in ``live`` and ``notebook``.
"""

from __future__ import annotations

from typing import Protocol

from rankspawn.view.ranks import plain_lines

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.view.ranks import RankRow
    from rankspawn.view.screen import Screen

HINT = "for a live table install rich: pip install 'rankspawn[progress]'"


class Board(Protocol):
    """Shows lines as they come, and now and then all ranks.

    Attributes:
        first: Seconds before the ranks are shown at all; what ends sooner needs no view.
        interval: Seconds between two views of them; None if they are not shown.
    """

    first: float
    interval: float | None

    @property
    def is_drawn(self) -> bool:
        """A view stands there that has to be redrawn or wiped."""

    def show_lines(self, lines: bytes) -> None:
        """Show whole lines, above the view if there is one."""

    def draw(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Show the ranks as they are after so many seconds."""

    def wipe(self) -> None:
        """Remove the view: the program itself wants to print."""

    def finish(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Leave the last view as it is, if there was any."""


class LinesOnly:
    """No view of the ranks."""

    first = 0.0
    interval: float | None = None
    is_drawn = False

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def show_lines(self, lines: bytes) -> None:
        """Show whole lines."""
        self._screen.write(lines)

    def draw(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Never called."""

    def wipe(self) -> None:
        """There is nothing."""

    def finish(self, rows: Sequence[RankRow], seconds: float) -> None:
        """There is nothing."""


class PlainBoard:
    """Some lines every few seconds, for logs and pipes; also without rich."""

    is_drawn = False

    def __init__(self, screen: Screen, hint: str = "") -> None:
        self.first = 5.0
        self.interval: float | None = 5.0
        self._screen = screen
        self._hint = hint

    def show_lines(self, lines: bytes) -> None:
        """Show whole lines."""
        self._screen.write(lines)

    def draw(self, rows: Sequence[RankRow], seconds: float) -> None:
        """A line per rank."""
        lines = plain_lines(rows, seconds)
        if self._hint:
            lines.append(self._hint)
            self._hint = ""
        text = "".join(f"rankspawn: {line}\n" for line in lines)
        self._screen.write(text.encode("utf-8", "replace"))

    def wipe(self) -> None:
        """Lines stay."""

    def finish(self, rows: Sequence[RankRow], seconds: float) -> None:
        """How it ended is told by whoever joins."""
