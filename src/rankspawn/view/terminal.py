"""The terminal, lent to the one rank that is being debugged.

Ctrl-C in it reaches the whole foreground group. It is meant for the rank whose debugger is on
the screen: the other ranks ignore it, and this process leaves it to that rank.
"""

from __future__ import annotations

import os
import signal
import termios
import time
from contextlib import contextmanager, suppress

from rankspawn.handlers import handler_of, is_main_thread, set_handler

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

    from rankspawn.supervise.group import Group

# Two interrupts within this time mean the whole group.
_TWICE_SECONDS = 2.0


def check_terminal(asked: str, *, in_notebook: bool) -> None:
    """Refuse to debug where nobody could talk to a debugger.

    Raises:
        ValueError: The standard input is no terminal.
    """
    if in_notebook:
        raise ValueError(f"{asked} needs a terminal, which a notebook has not")
    if not os.isatty(0):
        raise ValueError(
            f"{asked} needs a terminal, and the standard input of this program is none: start it "
            "in one, without a pipe or redirection"
        )


class LentTerminal:
    """A spectator of a group that leaves the terminal, and Ctrl-C, to one rank.

    Args:
        rank: The rank that has the terminal.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._group: Group | None = None
        self._interrupts = LentInterrupts(self._debugged_runs)
        self._modes: TerminalModes | None = None

    def begin(self, group: Group) -> None:
        """Remember the terminal as it is."""
        self._group = group
        self._modes = TerminalModes()

    def watched(self) -> AbstractContextManager[None]:
        """A context in which a single Ctrl-C is left to the rank that is debugged."""
        return self._interrupts.lent()

    def finish(self) -> None:
        """Bring the terminal back to what it was; a debugger that was killed could not."""
        if self._modes is not None:
            self._modes.restore()

    def _debugged_runs(self) -> bool:
        """Whether the rank that has the terminal still runs."""
        group = self._group
        return group is not None and any(
            process.rank == self._rank and not group.has_ended(index)
            for index, process in enumerate(group.processes)
        )


class TerminalModes:
    """The modes of the terminal as they are now, for after a debugger that was killed."""

    def __init__(self) -> None:
        self._modes: list[object] | None = None
        with suppress(termios.error):  # no terminal
            self._modes = termios.tcgetattr(0)

    def restore(self) -> None:
        """Bring the terminal back to them."""
        if self._modes is not None:
            with suppress(termios.error, OSError):
                # In the background, setting the modes would stop this process with SIGTTOU.
                if os.tcgetpgrp(0) == os.getpgrp():
                    termios.tcsetattr(0, termios.TCSADRAIN, self._modes)  # type: ignore[arg-type]


class LentInterrupts:
    """Leaves a single Ctrl-C to a rank that has the terminal, where all of the group get it.

    Args:
        is_taken: Whether that rank is still there to take it.
    """

    def __init__(self, is_taken: Callable[[], bool]) -> None:
        self._is_taken = is_taken
        self._last: float | None = None

    @contextmanager
    def lent(self) -> Iterator[None]:
        """In here a single Ctrl-C is not for us; a handler that is not Python's own stays."""
        before = handler_of(signal.SIGINT)
        if not is_main_thread() or before is not signal.default_int_handler:
            yield
            return
        set_handler(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            set_handler(signal.SIGINT, before)

    def take(self) -> bool:
        """Whether an interrupt that has just come means the whole group."""
        last, self._last = self._last, time.monotonic()
        is_second = last is not None and self._last - last < _TWICE_SECONDS
        return is_second or not self._is_taken()

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.take():
            signal.default_int_handler(number, frame)
