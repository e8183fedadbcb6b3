"""Shows what ranks print, and how far they are, from one thread for all of them.

Ranks write to files, never to us, so nobody waits for this thread: a terminal that was stopped,
or a pager that nobody reads, holds up the view and nothing else. The thread lives as long as its
group: it shows the rest once the group is closed, and ends.
"""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import contextmanager
from multiprocessing import util

from rankspawn.caller import in_notebook
from rankspawn.supervise.outcome import End
from rankspawn.view.boards import open_board
from rankspawn.view.screen import open_screen
from rankspawn.view.sources import make_row, open_sources
from rankspawn.workers.tail import Growth

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankspawn.supervise.group import Group
    from rankspawn.view.measure import Meters, MetersElsewhere
    from rankspawn.view.ranks import RankRow
    from rankspawn.view.request import ShowRequest
    from rankspawn.view.sources import Place

# Whoever waits for the thread looks this often whether something was taken.
_LOOK_SECONDS = 0.1
# A line that is redrawn all the time, such as a progress bar, is shown this often.
_REDRAWN_SECONDS = 10.0
# How long whoever joins waits for a terminal that takes nothing at all.
_PATIENCE_SECONDS = 5.0
_WIPE_SECONDS = 1.0

_showing: weakref.WeakSet[_Showing] = weakref.WeakSet()


class View:
    """A spectator that shows what ``spawn`` started, over all restarts.

    Args:
        request: What to show.
        places: The ranks, by index.
    """

    def __init__(self, request: ShowRequest, places: Sequence[Place]) -> None:
        self.request = request
        self.places = places
        self.restarts: int = 0  # before the group that begins next
        self.joining: int = 0  # how many threads and tasks wait for the ranks
        self.was_interrupted: bool = False  # one of them was
        self._lock = threading.Lock()
        self._showing: _Showing | None = None

    def begin(self, group: Group) -> None:
        """Show this group, which has just been started."""
        self._showing = _Showing(self, group)
        self.restarts += 1

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A context in which somebody waits for the ranks, and they are shown.

        When it is left without an error, the view is out of the way of what the program prints.
        """
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
        """How many wait for the ranks after this change of it, of which the thread is told."""
        with self._lock:
            self.joining += change
            count = self.joining
        if self._showing is not None:
            self._showing.wake()
        return count

    def finish(self) -> None:
        """Wait until all of a closed group is shown, or nobody takes it."""
        if self._showing is not None:
            self._showing.wait(_PATIENCE_SECONDS)


def finish_all() -> None:
    """Wait until everything is shown, for as long as it takes: at exit the rest would be lost."""
    for showing in list(_showing):
        showing.wait(None)


# After multiprocessing waited for the workers, and the groups were closed.
util.Finalize(None, finish_all, exitpriority=-20)


class _Showing:
    """The thread that shows one group, and all that it reads and writes."""

    def __init__(self, view: View, group: Group) -> None:
        self._view = view
        self._group = group
        self._begun = time.monotonic()
        self._is_gone = False  # nobody takes what we show
        self._wiped = threading.Event()
        self._next_draw: float | None = None
        self._screen = open_screen()
        self._board = open_board(
            self._screen, progress=view.request.progress, in_notebook=in_notebook()
        )
        self._sources = open_sources(group, view.request, view.places, view.restarts)
        self._meters = self._open_meters()
        self._growth = Growth()
        outputs = [source.output for source in self._sources if source.output is not None]
        # By descriptor, because a file in memory has no path.
        self._growth.watch_only(f"/proc/self/fd/{tail.file.fileno()}" for tail in outputs)
        # A daemon: Python waits for other threads before its exit handlers, which are what closes
        # a group that nobody joined; finish_all() waits for this one after them.
        self._thread = threading.Thread(target=self._run, name="rankspawn-view", daemon=True)
        _showing.add(self)
        group.listeners.add(self._note_end)
        self._thread.start()

    def wake(self) -> None:
        """Have the thread look; from any thread."""
        self._growth.wake()

    def _note_end(self) -> None:
        """Have the thread look if the group was closed; called after each look at the group."""
        if self._group.closed:
            self.wake()

    def wait_for_wipe(self) -> None:
        """Wait until the view is out of the way of what the program prints."""
        if self._board.is_drawn and self._thread.is_alive():
            self._wiped.clear()
            self.wake()
            self._wiped.wait(_WIPE_SECONDS)

    def wait(self, patience: float | None) -> None:
        """Wait until all is shown, or nothing was taken for so many seconds; signals are heard."""
        taken, since = self._screen.taken, time.monotonic()
        while self._thread.is_alive():
            self._thread.join(_LOOK_SECONDS)
            if self._screen.taken != taken:
                taken, since = self._screen.taken, time.monotonic()
            elif patience is not None and time.monotonic() - since > patience:
                return

    def _open_meters(self) -> Meters | MetersElsewhere | None:
        """The meters of the ranks, if there is a view of them."""
        if self._board.interval is None:
            return None
        from rankspawn.view.measure import meters_of  # imports psutil: 20 ms

        return meters_of(self._group, self._view.places)

    def _run(self) -> None:
        """Runs in the thread: show everything until the group is closed, and let go of it all."""
        try:
            is_over = False
            has_more = True  # what was written before we began to watch
            while not is_over:
                self._growth.wait(0.0 if has_more else self._seconds_to_wait())
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
        self._growth.close()
        self._screen.close()

    def _seconds_to_wait(self) -> float | None:
        """Seconds until something is due; None if nothing is before something happens."""
        dues = [source.state_due for source in self._sources if source.state_due is not None]
        if self._next_draw is not None:
            dues.append(self._next_draw)
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _show_lines(self, *, closed: bool) -> bool:
        """Show what was added to the files; whether there is more."""
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
        """Show nothing more after an error: the reader of a pipe left, the terminal was closed."""
        try:
            yield
        except OSError:
            self._is_gone = True
            self._next_draw = None

    def _rows(self) -> list[RankRow]:
        """All ranks as they are now."""
        assert self._meters is not None
        return [
            make_row(
                source,
                self._state_of(index),
                self._group.steps_of(index),
                self._meters.look(index),
            )
            for index, source in enumerate(self._sources)
        ]

    def _state_of(self, index: int) -> str:
        """What a rank does, or how it ended."""
        group = self._group
        # Ctrl-C reaches ranks and parent in any order: who heard it first did not fail.
        if self._view.was_interrupted and group.has_ended(index):
            text = group.report_of(index).text
            if group.outcomes[index].end is End.RAISED and text.endswith("KeyboardInterrupt\n"):
                return "stopped"
        return group.state_of(index)
