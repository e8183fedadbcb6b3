"""Records a group from one thread, and writes the trace once it is over.

It looks at what the group has anyway: states, reports, outcomes and output files. Nothing waits
for it, and of one core it takes less than a hundredth.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import weakref
from multiprocessing import util

from rankspawn.supervise.outcome import STATES, failures_in
from rankspawn.supervise.reports import serial_of, unpack_steps
from rankspawn.trace.recording import Ended, Lane, Recording, describe_end, lines_of
from rankspawn.trace.request import write_atomically

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from rankspawn.supervise.group import Group, RankOutput
    from rankspawn.supervise.outcome import Outcome
    from rankspawn.trace.series import Series
    from rankspawn.view.measure import Meters, MetersElsewhere
    from rankspawn.view.sources import Place

logger: logging.Logger = logging.getLogger(__name__)

# Seconds between two looks at states and reports, and between two at CPU and memory: at first, and
# of a long run. Looks that take longer are further apart, so that each takes this part of a core.
_LOOKS, _MEASURES = (0.05, 1.0), (0.2, 5.0)
_PART = 0.004
# In the first seconds all is new; after so many, looks are one such part of them apart.
_GROWTH = 100.0
# Of all lines of all ranks, and of those of one rank.
_LINES, _FEWEST, _MOST = 2 << 20, 2 << 10, 64 << 10
# How long whoever joins waits for a file system that does not answer.
_PATIENCE_SECONDS = 10.0

_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


class Recorder:
    """A spectator that writes a trace of what ``spawn`` started, over all restarts.

    Args:
        path: Where to, absolute.
        places: The ranks, by index.
        facts: What else the trace says of the run.
    """

    def __init__(self, path: str, places: Sequence[Place], facts: Mapping[str, str]) -> None:
        self.path = path
        self.recording: Recording = Recording(
            [(place.rank, place.device) for place in places], facts
        )
        self.take_places(places)
        self.began: float = time.monotonic()
        self._looking: _Looking | None = None
        self._is_written = True

    def take_places(self, places: Sequence[Place]) -> None:
        """The ranks of the next group, which may be others than before in an elastic job."""
        self.places = places
        self.lanes: list[Lane] = [
            self.recording.lane_of(place.rank, place.device) for place in places
        ]

    def begin(self, group: Group) -> None:
        """Record this group, which has just been started."""
        if self._looking is not None:
            self._looking.wait(_PATIENCE_SECONDS)
        self._is_written = False
        self._looking = _Looking(self, group)
        _recorders.add(self)

    def watched(self) -> AbstractContextManager[None]:
        """Nothing changes while somebody waits."""
        return contextlib.nullcontext()

    def note_answer(self, error: BaseException | None) -> None:
        """The answer of the whole job is known."""
        if error is not None:
            self.recording.fails(error)

    def note_text(self, error: str) -> None:
        """The answer is a failure, in these words."""
        self.recording.fails(error)

    def finish(self) -> None:
        """The group was closed: write what is known of it and those before."""
        if self._looking is None or self._is_written:
            return
        if not self._looking.wait(_PATIENCE_SECONDS):
            logger.warning("the trace %s is not written: a log cannot be read", self.path)
            return
        self._is_written = True
        try:
            write_atomically(self.path, self._as_bytes())
        except OSError as error:  # the job's own end is what counts
            logger.warning("the trace %s could not be written: %s", self.path, error)

    def _as_bytes(self) -> bytes:
        data = self.recording.as_data()
        if self.path.lower().endswith(".json"):
            from rankspawn.trace.perfetto import trace_events

            return json.dumps(trace_events(data), separators=(",", ":")).encode()
        from rankspawn.trace.page import make_page

        return make_page(data).encode()


def finish_all() -> None:
    """At exit: write what nobody has joined."""
    for recorder in list(_recorders):
        recorder.finish()


# After multiprocessing waited for the workers, and the groups were closed.
util.Finalize(None, finish_all, exitpriority=-21)


class _Looking:
    """The thread that looks at one group, and what it reads from."""

    def __init__(self, recorder: Recorder, group: Group) -> None:
        self._recorder = recorder
        self._recording = recorder.recording
        self._lanes = recorder.lanes
        self._group = group
        self._closed = threading.Event()
        self._serials: dict[int, int] = {}
        self._outputs: list[RankOutput | None] = []
        self._meters: Meters | MetersElsewhere | None = None
        # Index to when it was seen to be gone.
        self._gone: dict[int, float] = {}
        self._running = set(range(len(group.processes)))
        from rankspawn.parallel.looking import Talks  # here, since it counts in a look

        # Numbers of other machines mean something else here.
        pids = {
            lane.rank: process.popen.pid
            for lane, process in zip(self._lanes, group.processes, strict=True)
            if group.measured is None
        }
        self._talks: Talks = Talks(pids, os.getpid())
        self._start = self._now()
        self._recording.starts.append(self._start)
        for lane, process in zip(self._lanes, group.processes, strict=True):
            pid = process.popen.pid
            age = _age_of(pid) if lane.rank in pids else 0.0
            lane.starts(max(0.0, self._start - age), pid)
        try:
            for index in range(len(group.processes)):
                self._outputs.append(group.open_output(index))
            self._meters = self._open_meters()
        except BaseException:
            self._close()
            raise
        group.listeners.add(self._note)
        self._thread = threading.Thread(target=self._run, name="rankspawn-trace", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Until all is recorded; False if that takes too long. Signals are heard."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _now(self) -> float:
        return time.monotonic() - self._recorder.began

    def _note(self) -> None:
        """Called after something happened in the group, or to it: who is gone?"""
        now = self._now()
        # On a cluster this is called often, so it does not look at all that run.
        for index in list(self._group.outcomes):
            if index in self._running and self._group.has_ended(index):
                self._running.discard(index)
                self._gone[index] = now
        if self._group.closed:
            self._closed.set()

    def _open_meters(self) -> Meters | MetersElsewhere:
        from rankspawn.view.measure import meters_of  # imports psutil: 20 ms

        return meters_of(self._group, self._recorder.places)

    def _run(self) -> None:
        """Runs in the thread: look until the group is closed, and once more."""
        try:
            look, measure = 0.0, self._now() + _MEASURES[0]
            while not self._group.closed:
                now = self._now()
                if now >= look:
                    look = self._next(self._look, _LOOKS)
                if now >= measure:
                    measure = self._next(self._measure, _MEASURES)
                self._closed.wait(max(0.0, min(look, measure) - self._now()))
            self._look()
            self._end()
        except Exception as error:  # a trace is no reason for a job to fail
            logger.warning("the trace %s is not whole: %r", self._recorder.path, error)
        finally:
            self._close()

    def _next(self, look: Callable[[], None], bounds: tuple[float, float]) -> float:
        """Look, and say when to look again."""
        began = time.thread_time()
        look()
        took = time.thread_time() - began
        now = self._now()
        pause = min(bounds[1], max(bounds[0], (now - self._start) / _GROWTH))
        return now + max(pause, took / _PART)

    def _look(self) -> None:
        """Take note of states, reports, and how much was printed."""
        group, now = self._group, self._now()
        for index, lane in enumerate(self._lanes):
            lane.is_in(group.state_of(index), now)
            record = group.steps_of(index)
            serial = serial_of(record)
            if serial != self._serials.get(index, 0):
                self._serials[index] = serial
                steps = unpack_steps(record)
                if steps is not None:
                    lane.reports(steps, now)
            output = self._outputs[index]
            if output is not None:
                lane.printed.add(now, os.fstat(output.file.fileno()).st_size)
        self._recording.seconds = max(self._recording.seconds, now)

    def _measure(self) -> None:
        """Take note of CPU and memory, and of what ranks exchanged."""
        assert self._meters is not None
        for index, lane in enumerate(self._lanes):
            if index in self._running:
                lane.takes(self._meters.look(index), self._now())
        self._listen()

    def _listen(self) -> None:
        """Take note of what ranks exchanged, if they talk, and of whom they waited for."""
        measured = self._group.measured
        talks = self._talks.look() if measured is None else measured.talks()
        for lane in self._lanes:
            if lane.rank in talks:
                lane.talks(talks[lane.rank], self._now())

    def _end(self) -> None:
        """After the end: how each rank ended, and what it printed last."""
        self._listen()
        now = self._now()
        failed = failures_in(self._group.outcomes)
        cause = failed[0] if failed else None
        most = min(_MOST, max(_FEWEST, _LINES // max(1, len(self._outputs))))
        for index, lane in enumerate(self._lanes):
            lane.ends(self._ended(index, cause, now), self._gone.get(index, now))
            output = self._outputs[index]
            if output is not None:
                lane.lines = _last_lines(output, most, lane.printed)

    def _ended(self, index: int, cause: tuple[int, Outcome] | None, now: float) -> Ended:
        """How a rank ended; ``cause`` is who failed first, if anybody did."""
        outcome = self._group.outcomes.get(index)
        if outcome is None:
            return Ended("exited", "gone; nobody took note how", now)
        state = STATES.get(outcome.end, "failed")
        began = self._since_begin(outcome)
        text = describe_end(state, outcome.exit_code, began - self._start)
        if state == "stopped" and cause is not None:
            began = self._since_begin(cause[1])  # from then on it was being stopped
        failure = self._group.report_of(index).text if outcome.is_failure else ""
        return Ended(state, text, began, cause is not None and index == cause[0], failure)

    def _since_begin(self, outcome: Outcome) -> float:
        return outcome.when_ns / 1e9 - self._recorder.began

    def _close(self) -> None:
        self._group.listeners.discard(self._note)
        self._talks.close()
        for output in self._outputs:
            if output is not None:
                output.file.close()
        if self._meters is not None:
            self._meters.close()


def _last_lines(output: RankOutput, most: int, printed: Series) -> list[tuple[float | None, str]]:
    """The end of an output as lines."""
    fd = output.file.fileno()
    begin = max(output.start, os.fstat(fd).st_size - most)
    return lines_of(os.pread(fd, most, begin), begin, output.start, printed)


def _age_of(pid: int) -> float:
    """Seconds since this process was started, to a hundredth; 0 if that cannot be known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, IndexError, ValueError, AttributeError):  # gone, or another system
        return 0.0
