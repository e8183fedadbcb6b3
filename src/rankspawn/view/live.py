"""A table that is redrawn in a terminal, with rich. Imported only where rich is installed."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, cast

from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.segment import Segment

from rankspawn.view.table import make_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankspawn.view.ranks import RankRow
    from rankspawn.view.screen import Screen


# Columns in which a terminal can show an interrupt or two as ^C, behind the table. Without
# them it goes on to another line, and the table is not found again when it is redrawn.
_LEFT_FREE = 4


class LiveBoard:
    """The table at the bottom, lines above it."""

    def __init__(self, screen: Screen) -> None:
        self.first = 1.0
        self.interval: float | None = 0.25
        self._screen = screen
        self._console = _Console(file=cast("IO[str]", _File(screen)), force_terminal=True)
        self._live: Live | None = None
        self._was_drawn = False

    @property
    def is_drawn(self) -> bool:
        """The table stands there."""
        return self._live is not None

    def show_lines(self, lines: bytes) -> None:
        """Show whole lines above the table."""
        if self._live is None:
            self._screen.write(lines)
        else:
            self._console.print(_AsItIs(lines), soft_wrap=True, end="")

    def draw(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Redraw the table."""
        columns, lines = self._screen.size()
        self._console.size = ConsoleDimensions(max(1, columns - _LEFT_FREE), lines)
        table = make_table(rows, seconds, *self._console.size)
        if self._live is None:
            # Neither a thread of rich's nor its hands on the program's own streams.
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(table, refresh=True)
        self._was_drawn = True

    def wipe(self) -> None:
        """Remove the table; the next ``draw`` brings it back."""
        live, self._live = self._live, None
        if live is not None:
            live.transient = True
            live.stop()

    def finish(self, rows: Sequence[RankRow], seconds: float) -> None:
        """Leave the last table."""
        if self._was_drawn:
            self.draw(rows, seconds)
            live, self._live = self._live, None
            assert live is not None, "just drawn"
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
    """The screen as a text file."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.encoding = getattr(sys.stdout, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        self._screen.write(text.encode(self.encoding, "replace"))
        return len(text)

    def flush(self) -> None:
        """Everything is written at once."""

    def isatty(self) -> bool:
        return True
