"""Showing what workers write to their logs, while they write it.

Workers write to their files directly, so that a log is complete whatever happens to us, and no
worker ever waits for a terminal. A thread of this process copies what was added: a terminal
that is stopped, or a pager that nobody reads, holds up that thread and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import threading

from rankspawn.descriptors import Owned, write_patiently
from rankspawn.interrupts import join_patiently
from rankspawn.workers.tail import Growth, Tail

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping


class LogFollower:
    """Copies what is added to some files to a descriptor, from a thread of its own.

    Args:
        sink: The descriptor, such as 1.
    """

    def __init__(self, sink: int) -> None:
        self._sink = sink
        self._files: list[Tail] = []
        self._lock = threading.Lock()
        self._is_gone = False
        self._is_finishing = False
        self._growth = Growth()
        self._thread: threading.Thread | None = None

    def follow(self, starts: Mapping[str, int]) -> None:
        """From now on show these files, each from a given place on, and no others.

        What others hold so far is still shown, before these.
        """
        files = []
        for path, start in starts.items():
            with contextlib.suppress(OSError):  # somebody removed it already
                files.append(Tail(Owned(os.open(path, os.O_RDONLY | os.O_CLOEXEC)), start))
        self._growth.watch_only(starts)
        with self._lock:
            for tail in self._files:
                tail.end_here()
            self._files += files
        # What was written before we began to watch is shown without being told.
        self._growth.wake()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rankspawn-logs", daemon=True)
            self._thread.start()

    def finish(self, timeout: float | None = None) -> None:
        """Show what was written so far, and show nothing more.

        Args:
            timeout: Seconds to wait for a terminal that takes nothing; None for ever.
        """
        if self._growth.closed or self._is_finishing:
            return
        self.follow({})
        self._is_finishing = True
        self._growth.wake()
        if self._thread is not None:
            join_patiently(self._thread, timeout)

    def close(self) -> None:
        """Let go of all descriptors; waits for the terminal to take what is left."""
        self.finish()
        if self._thread is not None:
            join_patiently(self._thread, None)
        self._growth.close()
        for tail in self._files:
            tail.close()

    def _run(self) -> None:
        while not self._is_gone:
            self._growth.wait()
            finishing = self._is_finishing  # before the look, so that nothing is missed
            self._show_all()
            if finishing:
                return

    def _show_all(self) -> None:
        with self._lock:
            files = list(self._files)
        for tail in files:
            while not self._is_gone and (chunk := tail.read()):
                self._write(chunk)
        with self._lock:
            for tail in files:
                if tail.is_over:
                    self._files.remove(tail)
                    tail.close()

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            try:
                view = view[write_patiently(self._sink, view) :]
            except OSError:  # the reader of a pipe left, the terminal was closed
                self._is_gone = True
                return
