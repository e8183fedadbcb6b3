"""Shows what ranks print, and how far they are, from one thread for all of them.

Ranks write to files, never to us, so nobody waits for this thread: a terminal that was stopped,
or a pager that nobody reads, holds up the view and nothing else. The thread lives as long as its
group: it shows the rest once the group is closed, and ends.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import util

from rankspawn.descriptors import Owned
from rankspawn.notebooks import in_notebook
from rankspawn.view.screen import open_screen
from rankspawn.view.sources import open_sources, read_row
from rankspawn.view.surroundings import open_board
from rankspawn.workers.inotify import IN_MODIFY, call, open_watch
from rankspawn.workers.outcome import End

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankspawn.view.measure import Meters
    from rankspawn.view.ranks import RankRow
    from rankspawn.view.sources import Place
    from rankspawn.view.wanted import Wanted
    from rankspawn.workers.group import WorkerGroup
    from rankspawn.workers.outcome import Outcome

# Where the system cannot say that a file has grown, we look this often.
_LOOK_SECONDS = 0.1
# A line that is redrawn all the time, such as a progress bar, is shown this often.
_REDRAWN_SECONDS = 10.0
# How long whoever joins waits for a terminal that takes nothing at all.
_PATIENCE_SECONDS = 5.0
_WIPE_SECONDS = 1.0

_showing: weakref.WeakSet[_Showing] = weakref.WeakSet()


class View:
    """What is shown of one ``spawn``, over all its restarts.

    Args:
        wanted: What to show.
        places: What is known of each rank before it starts.
    """

    def __init__(self, wanted: Wanted, places: Sequence[Place]) -> None:
        self.wanted = wanted
        self.places = places
        self.joining = 0  # how many threads and tasks wait for the ranks
        self.was_interrupted = False  # one of them was
        self._lock = threading.Lock()
        self._showing: _Showing | None = None

    def begin(self, group: WorkerGroup) -> None:
        """Show this group, which has just been started."""
        self._showing = _Showing(self, group)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """In here somebody waits, and the ranks are shown; after it he may print himself."""
        self._count(1)
        try:
            yield
        except BaseException:
            self.was_interrupted = True
            self._count(-1)
            raise
        if self._count(-1) == 0 and self._showing is not None:
            self._showing.wait_for_wipe()

    def _count(self, change: int) -> int:
        with self._lock:
            self.joining += change
            count = self.joining
        if self._showing is not None:
            self._showing.wake()
        return count

    def finish(self) -> None:
        """After the group was closed: wait until all is shown, or nobody takes it."""
        if self._showing is not None:
            self._showing.wait(_PATIENCE_SECONDS)


def finish_all() -> None:
    """At exit: what is not shown by now would be lost, so this waits for as long as it takes."""
    for showing in list(_showing):
        showing.wait(None)


# After multiprocessing waited for the workers, and the groups were closed.
util.Finalize(None, finish_all, exitpriority=-20)


class _Showing:
    """The thread of one group."""

    def __init__(self, view: View, group: WorkerGroup) -> None:
        self._view = view
        self._group = group
        self._begun = time.monotonic()
        self._is_gone = False  # nobody takes what we show
        self._wiped = threading.Event()
        self._next_draw: float | None = None
        self._screen = open_screen()
        self._board = open_board(
            self._screen, progress=view.wanted.progress, in_notebook=in_notebook()
        )
        self._sources = open_sources(group, view.wanted, view.places)
        self._meters = self._open_meters()
        self._waking = threading.Lock()
        self._wakeup = Owned(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._watch = self._watch_outputs()
        self._thread = threading.Thread(target=self._run, name="rankspawn-view", daemon=True)
        _showing.add(self)
        group.listeners.add(self._note_end)
        self._thread.start()

    def wake(self) -> None:
        """Have the thread look; from any thread."""
        # Under a lock, because a number that was just closed may be somebody else's already.
        with self._waking:
            if not self._wakeup.closed:
                os.eventfd_write(self._wakeup.fileno(), 1)

    def _note_end(self) -> None:
        if self._group.closed:
            self.wake()

    def wait_for_wipe(self) -> None:
        """Until the view is out of the way of what the program prints."""
        if self._board.is_drawn and self._thread.is_alive():
            self._wiped.clear()
            self.wake()
            self._wiped.wait(_WIPE_SECONDS)

    def wait(self, patience: float | None) -> None:
        """Until all is shown, or for so many seconds nothing was taken; signals are heard."""
        taken, since = self._screen.taken, time.monotonic()
        while self._thread.is_alive():
            self._thread.join(_LOOK_SECONDS)
            if self._screen.taken != taken:
                taken, since = self._screen.taken, time.monotonic()
            elif patience is not None and time.monotonic() - since > patience:
                return

    def _open_meters(self) -> Meters | None:
        if self._board.interval is None:
            return None
        from rankspawn.view.measure import Meters  # imports psutil: 20 ms

        pids = [worker.popen.pid for worker in self._group.workers]
        return Meters(pids, [place.gpu for place in self._view.places])

    def _watch_outputs(self) -> Owned | None:
        watch = open_watch()
        for source in self._sources:
            if source.output is not None and watch is not None:
                path = os.fsencode(f"/proc/self/fd/{source.output.fileno()}")
                if call("inotify_add_watch", watch.fileno(), path, IN_MODIFY) == -1:
                    watch.close()  # too many watches of this user: then by looking
                    return None
        return watch

    def _run(self) -> None:
        try:
            poller = select.poll()
            poller.register(self._wakeup.fileno(), select.POLLIN)
            if self._watch is not None:
                poller.register(self._watch.fileno(), select.POLLIN)
            is_over = False
            has_more = True  # what was written before we began to watch
            while not is_over:
                timeout = 0.0 if has_more else self._seconds_to_wait()
                ready = poller.poll(None if timeout is None else int(timeout * 1000) + 1)
                for fd, _ in ready:
                    with suppress(BlockingIOError):
                        os.read(fd, 65536)
                closed = self._group.closed  # before the look, so that nothing is missed
                has_more = self._show_lines(closed=closed)
                is_over = closed and not has_more
                self._draw(is_over=is_over)
        finally:
            self._close()

    def _close(self) -> None:
        self._group.listeners.discard(self._note_end)
        self._wiped.set()
        for source in self._sources:
            source.close()
        if self._meters is not None:
            self._meters.close()
        if self._watch is not None:
            self._watch.close()
        with self._waking:
            self._wakeup.close()
        self._screen.close()

    def _seconds_to_wait(self) -> float | None:
        """Until something is due; None for as long as nothing happens."""
        dues = [one.state_due for one in self._sources if one.state_due is not None]
        if self._next_draw is not None:
            dues.append(self._next_draw)
        if self._watch is None:
            dues.append(time.monotonic() + _LOOK_SECONDS)
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _show_lines(self, *, closed: bool) -> bool:
        """Show what was added to the files; True if there is more."""
        shown: list[bytes] = []
        has_more = False
        now = time.monotonic()
        for source in self._sources:
            if closed:
                source.end()
            lines, more = source.read()
            has_more = has_more or more
            if closed and not more:
                lines += source.finish()
            elif self._board.interval is None:
                lines += source.take_state(now, _REDRAWN_SECONDS)
            shown += source.prefixed(lines)
        if shown and not self._is_gone:
            with self._unless_gone():
                self._board.show_lines(b"".join(shown))
        return has_more

    def _draw(self, *, is_over: bool) -> None:
        """Show the ranks, if it is time to."""
        board = self._board
        if board.interval is None or self._is_gone:
            self._wiped.set()
            return
        with self._unless_gone():
            now = time.monotonic()
            seconds = now - self._begun
            if is_over:
                board.finish(self._rows(), seconds)
            elif not self._view.joining:
                board.wipe()
                self._wiped.set()
                self._next_draw = None
            elif now >= (self._next_draw or self._begun + board.first):
                board.draw(self._rows(), seconds)
                self._next_draw = time.monotonic() + board.interval
            elif self._next_draw is None:
                self._next_draw = self._begun + board.first

    @contextmanager
    def _unless_gone(self) -> Iterator[None]:
        """The reader of a pipe left, the terminal was closed: nothing more is shown."""
        try:
            yield
        except OSError:
            self._is_gone = True
            self._next_draw = None

    def _rows(self) -> list[RankRow]:
        assert self._meters is not None
        return [
            read_row(source, self._outcome_of(at), self._meters.look(at))
            for at, source in enumerate(self._sources)
        ]

    def _outcome_of(self, at: int) -> Outcome | None:
        """What became of a rank; a Ctrl-C that it heard before we did has stopped it, too."""
        outcome, remains = self._group.outcomes.get(at), self._group.remains.get(at)
        if outcome is None or remains is None or not self._view.was_interrupted:
            return outcome
        was_hit = outcome.end is End.RAISED and remains.text.endswith("KeyboardInterrupt\n")
        return replace(outcome, end=End.STOPPED) if was_hit else outcome
