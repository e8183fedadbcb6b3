"""Screens: where the parent's own output goes, for a thread that writes there beside it."""

from __future__ import annotations

import fcntl
import io
import os
import sys
from contextlib import suppress
from typing import IO, Protocol

from rankspawn.descriptors import Owned, write_patiently


class Screen(Protocol):
    """A place that takes what is to be shown.

    Attributes:
        is_terminal: Whether somebody sees it at once, and lines can be redrawn.
        taken: How many bytes it took so far; whoever waits for it sees that it goes on.
    """

    is_terminal: bool
    taken: int

    def write(self, data: bytes) -> None:
        """Show these bytes; waits for a terminal that was stopped.

        Raises:
            OSError: Nobody is there any more.
        """

    def size(self) -> tuple[int, int]:
        """How many columns and lines it has."""

    def close(self) -> None:
        """Let go of it."""


class DescriptorScreen:
    """A screen that is a terminal, a pipe or a file.

    Written to directly: a Python stream would be locked for as long as a terminal is stopped,
    and a program cannot even end then.
    """

    def __init__(self, fd: int) -> None:
        self._fd = Owned(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
        self.is_terminal: bool = os.isatty(fd)
        self.taken: int = 0

    def write(self, data: bytes) -> None:
        """Write all of it."""
        view = memoryview(data)
        while view:
            done = write_patiently(self._fd.fileno(), view)
            self.taken += done
            view = view[done:]

    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal; 80 and 24 if it does not tell."""
        with suppress(OSError):
            columns, lines = os.get_terminal_size(self._fd.fileno())
            if columns > 0 and lines > 0:
                return columns, lines
        return 80, 24

    def close(self) -> None:
        """Let go of our copy."""
        self._fd.close()


class StreamScreen:
    """A stream in place of standard output: a notebook's cell, a test's capture, a StringIO."""

    is_terminal = False

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.taken: int = 0

    def write(self, data: bytes) -> None:
        """Write all of it, as text."""
        try:
            self._stream.write(data.decode("utf-8", "replace"))
            self._stream.flush()
        except OSError:
            raise
        except Exception as error:  # anybody's code; closed, as a rule
            raise OSError(f"standard output takes nothing: {error}") from None
        self.taken += len(data)

    def size(self) -> tuple[int, int]:
        """Wide enough for most lines, since there is no limit."""
        return 120, 1000

    def close(self) -> None:
        """Do nothing: the stream is not ours."""


class NoScreen:
    """A screen for a closed standard output: whatever is shown goes nowhere."""

    is_terminal = False
    taken = 0

    def write(self, data: bytes) -> None:
        """Do nothing."""

    def size(self) -> tuple[int, int]:
        """Any size would do."""
        return 80, 24

    def close(self) -> None:
        """Do nothing."""


def open_screen() -> Screen:
    """The screen of ``sys.stdout`` as it is now; what that holds so far is written out."""
    stream = sys.stdout
    if stream is None or stream.closed:
        return NoScreen()
    with suppress(OSError, ValueError):
        stream.flush()
    # Only Python's own streams write where their descriptor says. A notebook's has the number
    # of the terminal that the server was started in.
    if isinstance(stream, io.TextIOWrapper):
        with suppress(OSError, ValueError):
            return DescriptorScreen(stream.fileno())
    return StreamScreen(stream)
