"""The terminal, lent to the one rank that is being debugged.

Ctrl-C in it reaches the whole foreground group. It is meant for the rank whose debugger is on
the screen: the other ranks ignore it, and this process leaves it to that rank.
"""

from __future__ import annotations

import os
import termios
from contextlib import suppress

from rankspawn.interrupts import LentInterrupts

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rankspawn.supervise.group import Group


class LentTerminal:
    """A spectator of a group that leaves the terminal, and Ctrl-C, to one rank.

    Args:
        rank: The rank that has the terminal.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._group: Group | None = None
        self._interrupts = LentInterrupts(self._debugged_runs)
        self._modes: list[object] | None = None

    def begin(self, group: Group) -> None:
        """Remember the terminal as it is."""
        self._group = group
        with suppress(termios.error):  # no terminal
            self._modes = termios.tcgetattr(0)

    def watched(self) -> AbstractContextManager[None]:
        """A context in which a single Ctrl-C is left to the rank that is debugged."""
        return self._interrupts.lent()

    def finish(self) -> None:
        """Bring the terminal back to what it was; a debugger that was killed could not."""
        if self._modes is not None:
            with suppress(termios.error, OSError):
                # In the background, setting the modes would stop this process with SIGTTOU.
                if os.tcgetpgrp(0) == os.getpgrp():
                    termios.tcsetattr(0, termios.TCSADRAIN, self._modes)  # type: ignore[arg-type]

    def _debugged_runs(self) -> bool:
        """Whether the rank that has the terminal still runs."""
        group = self._group
        return group is not None and any(
            process.rank == self._rank and not group.has_ended(index)
            for index, process in enumerate(group.processes)
        )
