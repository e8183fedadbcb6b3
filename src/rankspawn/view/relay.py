"""Hands the records that ranks log to this program's handlers: ``logging="relay"``.

Ranks write to a file in memory, and never wait for this process. One thread follows it; what is
left once the group is closed comes before ``join`` returns, unless a handler takes nothing for
seconds.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
import weakref
from contextlib import contextmanager, nullcontext
from multiprocessing import util

from rankspawn.descriptors import Owned, anonymous_file
from rankspawn.values import replace
from rankspawn.workers.log_capture import capture
from rankspawn.workers.log_frames import FrameReader
from rankspawn.workers.tail import Growth, Tail

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from rankspawn.supervise.group import Group
    from rankspawn.view.sources import Place
    from rankspawn.workers.start import StartSettings

# Whoever waits for the thread looks this often whether a handler took something, and gives up
# after so many seconds without.
_LOOK_SECONDS = 0.1
_PATIENCE_SECONDS = 5.0

_relaying: weakref.WeakSet[_Relaying] = weakref.WeakSet()


def check_relay() -> None:
    """Refuse it where ranks could not open the file.

    Raises:
        ValueError: The system has no ``/proc``.
    """
    if not os.path.isdir("/proc/self/fd"):
        raise ValueError(
            "logging='relay' needs /proc, through which ranks reach the handlers of this program, "
            "and this system has none: use logging='inherit'"
        )


class LogRelay:
    """A spectator that hands on what the ranks of ``spawn`` log, over all restarts.

    Args:
        places: The ranks, by index.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._devices = {place.rank: place.device for place in places}
        self._file: Owned | None = None
        self._relaying: _Relaying | None = None

    @contextmanager
    def opened(self, settings: StartSettings) -> Iterator[StartSettings]:
        """A block in which a group is started with these settings, and a file for its records."""
        self._file = Owned(anonymous_file("rankspawn-logging"))
        try:
            number = self._file.fileno()
            status = os.fstat(number)
            setup = capture(relayed_to=(os.getpid(), number, status.st_dev, status.st_ino))
            yield replace(settings, logging=setup)
        except BaseException:  # nothing was started
            self._file.close()
            raise

    def begin(self, group: Group) -> None:
        """Hand on what this group logs, which has just been started."""
        assert self._file is not None
        file, self._file = self._file, None
        try:
            self._relaying = _Relaying(file, self._devices, group)
        except BaseException:  # no descriptors left, as a rule
            file.close()
            raise

    def watched(self) -> AbstractContextManager[None]:
        """Nothing changes while somebody waits."""
        return nullcontext()

    def finish(self) -> None:
        """Wait until all that a closed group logged was handed on."""
        if self._relaying is not None:
            self._relaying.wait(_PATIENCE_SECONDS)


def finish_all() -> None:
    """At exit: hand on what nobody has waited for."""
    for relaying in list(_relaying):
        relaying.wait(_PATIENCE_SECONDS)


# After multiprocessing waited for the workers, and the groups were closed.
util.Finalize(None, finish_all, exitpriority=-20)


class _Relaying:
    """The thread that follows the file of one group."""

    def __init__(self, file: Owned, devices: Mapping[int, str], group: Group) -> None:
        self._tail = Tail(file)
        self._devices = devices
        self._group = group
        self._frames = FrameReader()
        self._handed = 0
        self._growth = Growth()
        self._growth.watch_only([f"/proc/self/fd/{file.fileno()}"])
        # A daemon, as the view's thread is: finish_all() waits for it.
        self._thread = threading.Thread(target=self._run, name="rankspawn-logging", daemon=True)
        _relaying.add(self)
        group.listeners.add(self._note_end)
        try:
            self._thread.start()
        except BaseException:
            self._growth.close()
            raise

    def wait(self, patience: float) -> None:
        """Wait until all was handed on, or no handler took anything for so many seconds."""
        handed, since = self._handed, time.monotonic()
        while self._thread.is_alive():
            self._thread.join(_LOOK_SECONDS)
            if self._handed != handed:
                handed, since = self._handed, time.monotonic()
            elif time.monotonic() - since > patience:
                return

    def _note_end(self) -> None:
        """Have the thread look if the group was closed; called after each look at the group."""
        if self._group.closed:
            self._growth.wake()

    def _run(self) -> None:
        """Runs in the thread: hand on all until the group is closed, and let go of it."""
        try:
            is_over = False
            timeout: float | None = 0.0  # what was written before we began to watch
            while not is_over:
                self._growth.wait(timeout)
                timeout = None
                is_over = self._group.closed  # before the look, so that nothing is missed
                while piece := self._tail.read():
                    self._hand_on(self._frames.feed(piece))
                    self._tail.free_what_was_read()
            self._hand_on(self._frames.finish())
        finally:
            self._group.listeners.discard(self._note_end)
            self._growth.close()
            self._tail.close()

    def _hand_on(self, records: Sequence[tuple[int, dict[str, Any]]]) -> None:
        for rank, fields in records:
            device = self._devices.get(rank)
            record = logging.makeLogRecord({**fields, "rank": rank, "device": device})
            try:
                logging.getLogger(record.name).handle(record)
            except Exception:  # of a filter, as a rule; handlers see to their own
                if logging.raiseExceptions:
                    traceback.print_exc()
            self._handed += 1
