"""Showing what workers write to their logs, while they write it.

Workers write to their files directly, so that a log is complete whatever happens to us, and no
worker ever waits for a terminal. A thread of this process copies what was added: a terminal
that is stopped, or a pager that nobody reads, holds up that thread and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from dataclasses import dataclass

from rankspawn.descriptors import Owned
from rankspawn.workers.inotify import IN_MODIFY, call, open_watch
from rankspawn.workers.wakeup import join_patiently

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_CHUNK = 64 * 1024
# Where the system cannot say that a file has grown, we look this often.
_LOOK_MILLISECONDS = 100


@dataclass(slots=True)
class _Followed:
    """A file, how much of it was shown, and where to stop; None for as long as it grows."""

    file: Owned
    shown: int
    until: int | None = None


class LogFollower:
    """Copies what is added to some files to a descriptor, from a thread of its own.

    Args:
        sink: The descriptor, such as 1.
    """

    def __init__(self, sink: int) -> None:
        self._sink = sink
        self._files: list[_Followed] = []
        self._lock = threading.Lock()
        self._is_gone = False
        self._is_finishing = False
        self._wakeup = Owned(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._watch = open_watch()
        self._watched: list[int] = []
        self._thread: threading.Thread | None = None

    def follow(self, starts: Mapping[str, int]) -> None:
        """From now on show these files, each from a given place on, and no others.

        What others hold so far is still shown, before these.
        """
        files = []
        for path, start in starts.items():
            with contextlib.suppress(OSError):  # somebody removed it already
                files.append(_Followed(Owned(os.open(path, os.O_RDONLY | os.O_CLOEXEC)), start))
        self._watch_only(starts)
        with self._lock:
            for one in self._files:
                if one.until is None:
                    one.until = os.fstat(one.file.fileno()).st_size
            self._files += files
        # What was written before we began to watch is shown without being told.
        os.eventfd_write(self._wakeup.fileno(), 1)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rankspawn-logs", daemon=True)
            self._thread.start()

    def _watch_only(self, paths: Iterable[str]) -> None:
        if self._watch is None:
            return
        # The kernel takes some milliseconds to free a watch. It does so by itself if the watch
        # was removed before, and otherwise in the close() that ends this process.
        for number in self._watched:
            call("inotify_rm_watch", self._watch.fileno(), number)
        self._watched = [
            call("inotify_add_watch", self._watch.fileno(), os.fsencode(path), IN_MODIFY)
            for path in paths
        ]
        if -1 in self._watched:
            self._watch = None  # gone, or too many watches of this user: then by looking

    def finish(self, timeout: float | None = None) -> None:
        """Show what was written so far, and show nothing more.

        Args:
            timeout: Seconds to wait for a terminal that takes nothing; None for ever.
        """
        if self._wakeup.closed or self._is_finishing:
            return
        self.follow({})
        self._is_finishing = True
        os.eventfd_write(self._wakeup.fileno(), 1)
        if self._thread is not None:
            join_patiently(self._thread, timeout)

    def close(self) -> None:
        """Let go of all descriptors; waits for the terminal to take what is left."""
        self.finish()
        if self._thread is not None:
            join_patiently(self._thread, None)
        self._wakeup.close()
        for one in self._files:
            one.file.close()
        if self._watch is not None:
            self._watch.close()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._wakeup.fileno(), select.POLLIN)
        watch = self._watch
        if watch is not None:
            poller.register(watch.fileno(), select.POLLIN)
        while not self._is_gone:
            timeout = None if self._watch is watch is not None else _LOOK_MILLISECONDS
            ready = {fd for fd, _ in poller.poll(timeout)}
            # Which file it was does not matter, nor how often.
            for fd in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, _CHUNK)
            finishing = self._is_finishing  # before the look, so that nothing is missed
            self._show_all()
            if finishing:
                return

    def _show_all(self) -> None:
        with self._lock:
            files = list(self._files)
        for one in files:
            self._show(one)
        with self._lock:
            for one in files:
                if one.until is not None and one.shown >= one.until:
                    self._files.remove(one)
                    one.file.close()

    def _show(self, one: _Followed) -> None:
        """Copy what was added to a file."""
        fd = one.file.fileno()
        while not self._is_gone:
            size = _CHUNK if one.until is None else min(_CHUNK, one.until - one.shown)
            chunk = os.pread(fd, max(0, size), one.shown)
            if not chunk:
                # Somebody emptied it; what comes now is new.
                one.shown = min(one.shown, os.fstat(fd).st_size)
                return
            one.shown += len(chunk)
            self._write(chunk)

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            try:
                view = view[os.write(self._sink, view) :]
            except BlockingIOError:  # whoever gave us this descriptor does not want to wait
                select.select([], [self._sink], [])
            except OSError:  # the reader of a pipe left, the terminal was closed
                self._is_gone = True
                return
