"""SIGQUIT to a program that waits for its ranks (Ctrl and backslash): it shows where all are."""

from __future__ import annotations

import os
import signal
import sys

from rankspawn.handlers import Temporary, handled_where_unhandled

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rankspawn.supervise.group import Group


class StacksOnQuit(Temporary):
    """A spectator that shows the stacks of all ranks on SIGQUIT, where the program has no handler.

    Ranks get the signal as well, and do nothing about it; programs that they started end.
    """

    __slots__ = ("_group", "_is_busy", "_pid")

    def __init__(self) -> None:
        self._group: Group | None = None
        self._is_busy = False
        self._pid = os.getpid()

    def begin(self, group: Group) -> None:
        """These are the ranks."""
        self._group = group

    def watched(self) -> AbstractContextManager[None]:
        """In here the signal is ours."""
        return handled_where_unhandled(signal.SIGQUIT, self)

    def finish(self) -> None:
        """There are no ranks any more."""
        self._group = None

    def __call__(self, *_: object) -> None:
        """Show where they are; the wait goes on."""
        # Within the one before, it would write in the midst of what that writes.
        if self._group is None or self._is_busy or os.getpid() != self._pid:
            return
        from rankspawn.supervise.failures import describe_stacks

        self._is_busy = True
        try:
            text = describe_stacks(self._group.stacks()) or "no rank runs"
            print(f"rankspawn: SIGQUIT\n{text}", file=sys.stderr, flush=True)  # noqa: T201 - asked for
        finally:
            self._is_busy = False
