"""What the launcher itself says, written to the standard error."""

from __future__ import annotations

import threading
from collections import deque

from rankspawn.descriptors import write_patiently
from rankspawn.interrupts import join_patiently
from rankspawn.telling import LEVELS, show_with

_STDERR = 2


class Console:
    """Writes the launcher's words in a thread of its own.

    A terminal that was stopped, or a pager that nobody reads, must not hold up the supervision
    of a job: only the end waits for it.
    """

    def __init__(self) -> None:
        self._texts: deque[bytes | None] = deque()
        self._has_more = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def say(self, text: str) -> None:
        """Have a line written."""
        self._put(f"rankrun: {text}\n".encode("utf-8", "backslashreplace"))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rankspawn-console", daemon=True)
            self._thread.start()

    def finish(self, timeout: float | None) -> None:
        """Wait until all is written."""
        if self._thread is not None:
            self._put(None)
            join_patiently(self._thread, timeout)
            self._thread = None

    def _put(self, text: bytes | None) -> None:
        self._texts.append(text)
        self._has_more.release()

    def _take(self) -> bytes | None:
        self._has_more.acquire()
        return self._texts.popleft()

    def _run(self) -> None:
        # Not through sys.stderr: text that Python still holds when it ends, and cannot write
        # then, would make it exit with a code of its own in place of the job's.
        while (text := self._take()) is not None:
            rest = memoryview(text)
            try:
                while rest:
                    rest = rest[write_patiently(_STDERR, rest) :]
            except OSError:  # the reader of a pipe left, the terminal was closed
                continue


_console = Console()


def set_up(level: str) -> None:
    """Show what this package says from this level on, with ``logging`` or without."""
    least = LEVELS[level]

    def show(number: int, text: str) -> None:
        if number >= least:
            _console.say(text)

    show_with(show, lambda: _attach(level))


def finish(timeout: float | None = None) -> None:
    """Wait until all that was said is written.

    Args:
        timeout: Seconds to wait for a terminal that takes nothing; None for ever.
    """
    _console.finish(timeout)


def _attach(level: str) -> None:
    """Have ``logging`` show it here."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            _console.say(self.format(record))

    ours = logging.getLogger("rankspawn")
    ours.handlers[:] = [Handler()]
    ours.setLevel(level)
    ours.propagate = False
