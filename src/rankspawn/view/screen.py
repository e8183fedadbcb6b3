"""Where the parent's own output goes, for a thread that writes there beside it."""

from __future__ import annotations

import fcntl
import io
import os
import select
import sys
from contextlib import suppress
from typing import IO, Protocol

from rankspawn.descriptors import Owned


class Screen(Protocol):
    """Takes what is to be shown.

    Attributes:
        is_terminal: Somebody sees it at once, and lines can be redrawn.
        taken: How many bytes it took so far; whoever waits for it sees that it goes on.
    """

    is_terminal: bool
    taken: int

    def write(self, data: bytes) -> None:
        """Show it; waits for a terminal that was stopped.

        Raises:
            OSError: Nobody is there any more.
        """

    def size(self) -> tuple[int, int]:
        """Columns and lines."""

    def close(self) -> None:
        """Let go of it."""


class DescriptorScreen:
    """A terminal, a pipe or a file.

    Written to directly: a Python stream would be locked for as long as a terminal is stopped,
    and a program cannot even end then.
    """

    def __init__(self, fd: int) -> None:
        self._fd = Owned(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
        self.is_terminal = os.isatty(fd)
        self.taken = 0

    def write(self, data: bytes) -> None:
        """Write all of it."""
        view = memoryview(data)
        while view:
            try:
                done = os.write(self._fd.fileno(), view)
            except BlockingIOError:  # whoever gave us this descriptor does not want to wait
                select.select([], [self._fd.fileno()], [])
                continue
            self.taken += done
            view = view[done:]

    def size(self) -> tuple[int, int]:
        """Of the terminal; that of an old one if it does not tell."""
        with suppress(OSError):
            columns, lines = os.get_terminal_size(self._fd.fileno())
            if columns > 0 and lines > 0:
                return columns, lines
        return 80, 24

    def close(self) -> None:
        """Let go of our copy."""
        self._fd.close()


class StreamScreen:
    """What stands in for standard output: a notebook's cell, a test's capture, a StringIO."""

    is_terminal = False

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.taken = 0

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
        """There is no limit; wide enough for most lines."""
        return 120, 1000

    def close(self) -> None:
        """It is not ours."""


class NoScreen:
    """Standard output was closed: whatever is shown goes nowhere."""

    is_terminal = False
    taken = 0

    def write(self, data: bytes) -> None:
        """Nothing."""

    def size(self) -> tuple[int, int]:
        """Any."""
        return 80, 24

    def close(self) -> None:
        """Nothing."""


def open_screen() -> Screen:
    """The place of ``sys.stdout`` as it is now; what it holds so far is written out."""
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
