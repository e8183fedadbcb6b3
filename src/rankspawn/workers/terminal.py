"""The terminal, lent to the one rank that is being debugged.

Ctrl-C in it reaches the whole foreground group. It is meant for the rank whose debugger is on
the screen: the other ranks ignore it, and this process leaves it to that rank.
"""

from __future__ import annotations

import os
import signal
import termios
import threading
import time
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from rankspawn.workers.group import WorkerGroup

# Two interrupts within this time mean the whole group.
_TWICE_SECONDS = 2.0


class LentTerminal:
    """Looks after it while the ranks run.

    Args:
        rank: Who has it.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._group: WorkerGroup | None = None
        self._interrupted_at: float | None = None
        self._modes: list[object] | None = None

    def begin(self, group: WorkerGroup) -> None:
        """Remember the terminal as it is."""
        self._group = group
        with suppress(termios.error):  # no terminal
            self._modes = termios.tcgetattr(0)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """In here a single Ctrl-C is not for us; a handler that is not Python's own stays."""
        before = signal.getsignal(signal.SIGINT)
        is_main = threading.get_ident() == threading.main_thread().ident
        if not is_main or before is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def finish(self) -> None:
        """Bring the terminal back to what it was: a debugger that was killed could not."""
        if self._modes is not None:
            with suppress(termios.error, OSError):
                if os.tcgetpgrp(0) == os.getpgrp():
                    termios.tcsetattr(0, termios.TCSADRAIN, self._modes)  # type: ignore[arg-type]

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        last, self._interrupted_at = self._interrupted_at, time.monotonic()
        is_second = last is not None and self._interrupted_at - last < _TWICE_SECONDS
        if is_second or not self._debugged_runs():
            signal.default_int_handler(number, frame)

    def _debugged_runs(self) -> bool:
        group = self._group
        return group is not None and any(
            group.workers[at].rank == self._rank for at in group.sentinels.values()
        )
