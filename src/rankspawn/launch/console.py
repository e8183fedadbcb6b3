"""What the launcher itself says, written to the standard error; loaded with its first word."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue

from rankspawn.descriptors import write_patiently
from rankspawn.interrupts import join_patiently

_STDERR = 2


class Console(logging.Handler):
    """Writes what the launcher itself says to the standard error, in a thread of its own.

    A terminal that was stopped, or a pager that nobody reads, must not hold up the supervision
    of a job: only the end waits for it.
    """

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
                    rest = rest[write_patiently(_STDERR, rest) :]
            except OSError:  # the reader of a pipe left, the terminal was closed
                continue


def set_up(level: str) -> None:
    """Show what this package logs from this level on."""
    ours = logging.getLogger("rankspawn")
    if not any(isinstance(handler, Console) for handler in ours.handlers):
        ours.handlers[:] = [Console()]
    ours.setLevel(level)
    ours.propagate = False


def finish(timeout: float | None = None) -> None:
    """Wait until everything was written.

    Args:
        timeout: Seconds to wait for a terminal that takes nothing; None for ever.
    """
    for handler in logging.getLogger("rankspawn").handlers:
        if isinstance(handler, Console):
            handler.finish(timeout)
