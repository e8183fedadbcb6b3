"""Showing what workers write to their logs, while they write it.

Workers write to their files directly, so that a log is complete whatever happens to us, and no
worker ever waits for a terminal. A thread of this process copies what was added: a terminal
that is stopped, or a pager that nobody reads, holds up that thread and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

from rankspawn.descriptors import Owned, write_patiently
from rankspawn.interrupts import join_patiently
from rankspawn.workers.tail import Growth, Tail

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping


# Seconds after which a line is shown without its end.
_PATIENCE = 0.5


class Way:
    """How a file is shown, if not as it is.

    Attributes:
        sink: Where; None for nowhere.
        prefix: What each line is shown with.
        filters: Lines with one of these go to ``copy`` as well.
        copy: The path of a file for those.
        shares: Others are shown there, too: lines are not mixed, as long as they are not long
            without an end.
    """

    __slots__ = ("copy", "filters", "prefix", "shares", "sink")

    def __init__(
        self,
        sink: int | None,
        prefix: bytes = b"",
        filters: tuple[bytes, ...] = (),
        copy: str = "",
        *,
        shares: bool = False,
    ) -> None:
        self.sink: int | None = sink
        self.prefix: bytes = prefix
        self.filters: tuple[bytes, ...] = filters
        self.copy: str = copy
        self.shares: bool = shares


class _Lines:
    """One file on its way: whole lines, where they have to be looked at."""

    __slots__ = ("_copy", "_rest", "_since", "way")

    def __init__(self, way: Way) -> None:
        self.way: Way = way
        self._rest = b""
        self._since = 0.0
        self._copy: Owned | None = None

    def dress(self, chunk: bytes, *, is_last: bool = False) -> bytes:
        """What to show for a piece of the file; a line that is not whole waits for its end."""
        way = self.way
        if not (way.prefix or way.filters or way.shares):
            return chunk
        text = self._rest + chunk
        end = len(text) if is_last else text.rfind(b"\n") + 1
        self._rest, self._since = text[end:], time.monotonic()
        if way.shares and not way.prefix and not way.filters:
            return text[:end]
        lines = [way.prefix + line for line in text[:end].splitlines(keepends=True)]
        self._copy_some(lines)
        shown = b"".join(lines)
        return shown + b"\n" if is_last and shown and not shown.endswith(b"\n") else shown

    @property
    def waits(self) -> bool:
        """Whether there is the beginning of a line that may be shown without its end."""
        return bool(self._rest) and not (self.way.prefix or self.way.filters)

    def take_overdue(self) -> bytes:
        """That beginning, if its end did not come: a question, or a bar that grows."""
        if not self.waits or time.monotonic() - self._since < _PATIENCE:
            return b""
        rest, self._rest = self._rest, b""
        return rest

    def _copy_some(self, lines: list[bytes]) -> None:
        chosen = [line for line in lines if any(part in line for part in self.way.filters)]
        if not chosen:
            return
        with contextlib.suppress(OSError):  # what is shown does not depend on it
            if self._copy is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._copy = Owned(os.open(self.way.copy, flags, 0o644))
            os.write(self._copy.fileno(), b"".join(chosen))


class LogFollower:
    """Copies what is added to some files to a descriptor, from a thread of its own.

    Args:
        sink: The descriptor, such as 1, where nothing else is said.
    """

    def __init__(self, sink: int) -> None:
        self._sink = sink
        self._files: list[Tail] = []
        self._lines: dict[Tail, _Lines] = {}
        self._closed_sinks: set[int | None] = set()
        self._lock = threading.Lock()
        self._is_gone = False
        self._is_finishing = False
        self._growth = Growth()
        self._thread: threading.Thread | None = None

    def follow(self, starts: Mapping[str, int], ways: Mapping[str, Way] | None = None) -> None:
        """From now on show these files, each from a given place on, and no others.

        What others hold so far is still shown, before these.

        Args:
            starts: From the path of each to the place in it.
            ways: How some of them are shown.
        """
        files = []
        for path, start in starts.items():
            with contextlib.suppress(OSError):  # somebody removed it already
                tail = Tail(Owned(os.open(path, os.O_RDONLY | os.O_CLOEXEC)), start)
                self._lines[tail] = _Lines((ways or {}).get(path) or Way(self._sink))
                files.append(tail)
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
            # A copy: others may add to it meanwhile.
            waits = any(lines.waits for lines in list(self._lines.values()))
            self._growth.wait(_PATIENCE if waits else None)
            finishing = self._is_finishing  # before the look, so that nothing is missed
            self._show_all()
            if finishing:
                return

    def _show_all(self) -> None:
        with self._lock:
            files = list(self._files)
        over = []
        for tail in files:
            lines = self._lines[tail]
            while not self._is_gone and (chunk := tail.read()):
                self._write(lines.dress(chunk), lines.way.sink)
            # Asked once: another thread may end it at any moment, and the beginning of a line
            # that was kept back here is shown only by who knows that nothing follows.
            if tail.is_over:
                over.append(tail)
                rest = lines.dress(b"", is_last=True)
            else:
                rest = lines.take_overdue()
            self._write(rest, lines.way.sink)
        with self._lock:
            for tail in over:
                self._files.remove(tail)
                del self._lines[tail]
                tail.close()

    def _write(self, chunk: bytes, sink: int | None) -> None:
        if sink is None or sink in self._closed_sinks:
            return
        view = memoryview(chunk)
        while view:
            try:
                view = view[write_patiently(sink, view) :]
            except OSError:  # the reader of a pipe left, the terminal was closed
                self._closed_sinks.add(sink)
                shown = {lines.way.sink for lines in list(self._lines.values())} | {self._sink}
                self._is_gone = shown <= self._closed_sinks | {None}
                return
