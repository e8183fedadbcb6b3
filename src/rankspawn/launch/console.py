"""What the launcher itself says, on the standard error.

A terminal that was stopped, or a pager that nobody reads, must not hold up the supervision of a
job. So messages are handed to a thread that writes them, and only the end waits for it.
"""

from __future__ import annotations

import logging
import os
import threading
from queue import SimpleQueue

from rankspawn.workers.wakeup import join_patiently

__all__ = ["set_up", "tear_down"]

_STDERR = 2


class _Console(logging.Handler):
    """Writes records in a thread of its own; with whoever does not read them, they are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("rankrun: %(message)s"))
        self._texts: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Have one record written."""
        self._texts.put(f"{self.format(record)}\n".encode("utf-8", "backslashreplace"))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rankspawn-console", daemon=True)
            self._thread.start()

    def finish(self, timeout: float | None) -> None:
        """Wait until all is written."""
        if self._thread is not None:
            self._texts.put(None)
            join_patiently(self._thread, timeout)
            self._thread = None

    def _run(self) -> None:
        # Not through sys.stderr: text that Python still holds when it ends, and cannot write
        # then, would make it exit with a code of its own in place of the job's.
        while (text := self._texts.get()) is not None:
            rest = memoryview(text)
            try:
                while rest:
                    rest = rest[os.write(_STDERR, rest) :]
            except OSError:  # the reader of a pipe left, the terminal was closed
                continue


def set_up() -> None:
    """Show what this package logs from INFO on; the level can be changed later."""
    ours = logging.getLogger("rankspawn")
    ours.handlers[:] = [_Console()]
    ours.setLevel(logging.INFO)
    ours.propagate = False


def set_level(level: str) -> None:
    """Show less, or more."""
    logging.getLogger("rankspawn").setLevel(level)


def tear_down(timeout: float | None = None) -> None:
    """Wait until everything was written.

    Args:
        timeout: Seconds to wait for a terminal that takes nothing; None for ever.
    """
    ours = logging.getLogger("rankspawn")
    for handler in ours.handlers:
        if isinstance(handler, _Console):
            handler.finish(timeout)
