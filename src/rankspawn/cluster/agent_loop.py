"""What an agent does: one loop in which it hears of everything. Runs in the agent.

One thread hears the driver, the ends of ranks, what they print, and signals. What may take long,
which is stopping ranks and collecting stacks, has a thread of its own, so that the driver is
always heard. The only thing that holds up the loop is the start of the ranks.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import threading
import time
from contextlib import suppress

from rankspawn.cluster.frames import FrameReader, GarbledError, read_some
from rankspawn.cluster.node_ranks import NodeRanks
from rankspawn.cluster.outputs import Outputs
from rankspawn.cluster.rank_frames import describe_outcome, put_end
from rankspawn.descriptors import Waker
from rankspawn.interrupts import SignalPipe

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from rankspawn.cluster.frames import Header, Outbox
    from rankspawn.cluster.measured import Measures
    from rankspawn.workers.group import WorkerGroup

# No more output is read from the ranks' files while so much waits for the driver.
_ENOUGH_WAITS = 1 << 20
# How often what ranks said with rankspawn.report() is looked at: if somebody is shown it, or only
# may ask for it.
_STEPS_SECONDS = 0.25
_STEPS_SECONDS_UNSEEN = 1.0
# Where the system does not tell that something was printed.
_LOOK_SECONDS = 0.1
# What is still on its way to the driver when a signal ends this agent gets so long.
_FLUSH_SECONDS = 5.0
# Signals that ask an agent to end: of a scheduler before the end of a job, of a terminal.
_ENDING = (signal.SIGTERM, signal.SIGHUP)
# Signals that schedulers send to programs some time before the end, which are the ranks' matter.
_FOR_RANKS = (signal.SIGUSR1, signal.SIGUSR2)
# Errors that the driver raises as they are; of others it raises a RuntimeError.
_KNOWN = (ValueError, TypeError, ImportError, OSError, RuntimeError)


class AgentLoop:
    """One agent."""

    def __init__(self, read: int, write: int, outbox: Outbox) -> None:
        self._read, self._write, self._outbox = read, write, outbox
        self._reader = FrameReader(is_greeted=True)
        self._ranks = NodeRanks()
        self._outputs: Outputs | None = None
        self._selector = selectors.DefaultSelector()
        self._signals = SignalPipe()
        # The threads that stop and collect tell by this that they are done.
        self._waker = Waker()
        self._is_writing = False
        self._driver_is_gone = False
        self._code: int | None = None  # of this process, once it is to end
        self._lease: float | None = None
        self._heard = time.monotonic()
        self._looks = False  # somebody is shown what ranks say
        self._steps_due = 0.0
        self._steps: dict[int, tuple[bytes, str, Header]] = {}
        self._measures: Measures | None = None
        self._failing: set[int] = set()  # told that they failed, and not yet how they ended
        self._ended: set[int] = set()
        self._stopping: threading.Thread | None = None
        self._all_are_gone = False
        self._nothing_is_left = False  # of what they started either
        self._is_stopped = False  # and the driver knows
        self._is_ending = False
        self._leaves_at: float | None = None  # a signal asked for it, and all is said

    def run(self) -> int:
        """Until the driver is gone, or a signal ends this agent; the exit code."""
        for number in (*_ENDING, *_FOR_RANKS, signal.SIGINT):
            # Ctrl-C is the driver's matter; and what is ignored here would be ignored by ranks.
            signal.signal(number, lambda *_: None)
        for fd in (self._read, self._signals.fileno(), self._waker.fileno()):
            self._selector.register(fd, selectors.EVENT_READ)
        try:
            while self._code is None:
                self._flush()
                ready = {key.fd for key, _ in self._selector.select(self._seconds_to_wait())}
                self._hear(ready)
        finally:
            self._end()
        return self._code

    def _hear(self, ready: set[int]) -> None:
        """Everything that happened."""
        if self._signals.fileno() in ready:
            self._note_signals()
        if self._waker.fileno() in ready:
            self._waker.clear()
        if self._leaves_at is not None and time.monotonic() >= self._leaves_at:
            self._lose_driver()
        if self._read in ready:
            self._hear_driver()
        elif self._lease is not None and time.monotonic() > self._heard + self._lease:
            self._lose_driver()
        group = self._ranks.group
        if group is not None and not group.closed:
            if group.fileno() in ready:
                group.collect(was_waiting=True)
            self._tell_news(group)

    def _seconds_to_wait(self) -> float | None:
        waits: list[float] = []
        if self._leaves_at is not None:
            waits.append(self._leaves_at - time.monotonic())
        if self._lease is not None:
            waits.append(self._heard + self._lease - time.monotonic())
        group = self._ranks.group
        if group is not None and not group.all_ended:
            waits.append(self._steps_due - time.monotonic())
            if self._outputs is not None and self._outputs.fileno() is None:
                waits.append(_LOOK_SECONDS)
        return max(0.0, min(waits)) if waits else None

    # The channel.

    def _flush(self) -> None:
        """Write what the channel takes, and hear when it takes more."""
        try:
            is_left = self._outbox.write_to(self._write)
        except OSError:
            self._lose_driver()
            is_left = False
        if is_left != self._is_writing:
            self._is_writing = is_left
            if is_left:
                self._selector.register(self._write, selectors.EVENT_WRITE)
            else:
                self._selector.unregister(self._write)

    def _hear_driver(self) -> None:
        data = read_some(self._read)
        if data is None:
            return
        self._heard = time.monotonic()
        if not data:
            self._lose_driver()
            return
        try:
            for header, blob in self._reader.feed(data):
                self._do(header, blob)
        except GarbledError as error:
            self._complain(f"what came on the channel makes no sense: {error}")
            self._lose_driver()

    def _lose_driver(self) -> None:
        self._driver_is_gone = True
        self._code = 0 if self._code is None else self._code

    def _complain(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(f"rankspawn agent on {os.uname().nodename}: {text}\n")
            sys.stderr.flush()

    # What the driver says.

    def _do(self, header: Header, blob: bytes) -> None:
        what = header["is"]
        if what == "ping":
            self._outbox.put({"is": "pong", "at": header["at"], "now": time.monotonic_ns()})
        elif what == "prepare":
            self._lease = header["lease"]
            self._answer(lambda: self._ranks.prepare(header))
        elif what == "payload":
            self._ranks.take_payload(header["offset"], blob)
        elif what == "start":
            self._answer(lambda: self._start(header, blob))
        elif what == "stop":
            self._stop(header["grace"], has_failed=header["failed"])
        elif what == "bye":
            self._lose_driver()
        elif self._ranks.group is not None:
            self._do_with(self._ranks.group, header)

    def _do_with(self, group: WorkerGroup, header: Header) -> None:
        """What concerns ranks that were started."""
        what = header["is"]
        if what == "kill":
            group.kill()
        elif what == "signal":
            with suppress(OSError):
                group.workers[header["index"]].popen.send_signal(header["number"])
        elif what == "stacks":
            self._aside(lambda: self._collect_stacks(group, header))

    def _answer(self, act: Callable[[], Header]) -> None:
        try:
            self._outbox.put(act())
        except Exception as error:
            kind = next((kind.__name__ for kind in _KNOWN if isinstance(error, kind)), "")
            text = "\n".join([str(error), *getattr(error, "__notes__", ())])
            self._outbox.put({"is": "refused", "kind": kind, "text": text})

    def _start(self, header: Header, hosts: bytes) -> Header:
        import json

        self._looks = header["looked_at"]
        nodes = json.loads(hosts)
        answer = self._ranks.start(header, nodes)
        group = self._ranks.group
        assert group is not None
        if header["measured"]:
            from rankspawn.cluster.measured import Measures

            self._measures = Measures(
                [worker.popen.pid for worker in group.workers],
                self._ranks.gpus,
                sum(count for _, count, _ in nodes),
                self._complain,
                talks=header["traced"],
            )
        self._selector.register(group.fileno(), selectors.EVENT_READ)
        group.listeners.add(self._waker.wake)  # what a thread that stops it has noted
        self._outputs = Outputs(group, len(group.workers))
        number = self._outputs.fileno()
        if number is not None:
            self._selector.register(number, selectors.EVENT_READ)
        return answer

    def _aside(self, act: Callable[[], None]) -> threading.Thread:
        """Have a thread do it, which wakes the loop when it is done."""

        def run() -> None:
            try:
                act()
            finally:
                self._waker.wake()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _collect_stacks(self, group: WorkerGroup, asked: Header) -> None:
        stacks = group.stacks(quickly=asked["quickly"])
        texts = {str(rank): text for rank, text in stacks.items()}
        self._outbox.put({"is": "stacks", "ticket": asked["ticket"], "texts": texts})

    def _stop(self, grace: float, *, has_failed: bool) -> None:
        """Stop the ranks, aside; the loop tells when they are gone."""
        group = self._ranks.group
        if group is None:
            self._outbox.put({"is": "stopped"})
            return
        # Of a node whose ranks have all returned it is what they have started that has to go.
        group.has_failed = group.has_failed or has_failed
        if self._stopping is None:
            self._stopping = self._aside(lambda: self._stop_now(group, grace))

    def _stop_now(self, group: WorkerGroup, grace: float) -> None:
        try:
            group.stop(grace)
            self._nothing_is_left = True
        finally:
            self._all_are_gone = True

    # What becomes of ranks.

    def _tell_news(self, group: WorkerGroup) -> None:
        """Say what was printed, who failed, who ended."""
        if self._outputs is not None and self._outbox.size < _ENOUGH_WAITS:
            self._outputs.note_growth()
            for index, piece in self._outputs.read():
                self._outbox.put({"is": "output", "index": index}, piece)
        for index in sorted(group.outcomes.keys() - self._ended):
            if group.has_ended(index):
                self._tell_end(group, index)
            elif index not in self._failing:
                self._failing.add(index)
                header = describe_outcome(index, group.outcomes[index], is_final=False)
                self._outbox.put(header)
        if time.monotonic() >= self._steps_due:
            self._tell_steps(group)
        if self._all_are_gone and not self._is_stopped:
            self._is_stopped = True
            self._outbox.put_last({"is": "stopped"})
            if self._is_ending:
                self._leaves_at = time.monotonic() + _FLUSH_SECONDS

    def _tell_end(self, group: WorkerGroup, index: int) -> None:
        assert self._outputs is not None
        self._ended.add(index)
        if self._measures is not None and len(self._ended) == len(group.workers):
            # What all have exchanged, also those that ended before.
            self._measures.look([])
            for each in range(len(group.workers)):
                self._tell_steps_of(group, each)
        for piece in self._outputs.read_rest(index):
            self._outbox.put({"is": "output", "index": index}, piece)
        put_end(self._outbox, group, index)

    def _tell_steps(self, group: WorkerGroup) -> None:
        pause = _STEPS_SECONDS if self._looks else _STEPS_SECONDS_UNSEEN
        self._steps_due = time.monotonic() + pause
        running = [index for index in range(len(group.workers)) if index not in self._ended]
        if self._measures is not None:
            self._measures.look(running)
        for index in running:
            self._tell_steps_of(group, index)

    def _tell_steps_of(self, group: WorkerGroup, index: int) -> None:
        measured = {} if self._measures is None else self._measures.fields_of(index)
        said = group.steps_of(index), group.state_of(index), measured
        if self._steps.get(index) != said:
            self._steps[index] = said
            record, state, measured = said
            header = {"is": "steps", "index": index, "state": state, **measured}
            self._outbox.put(header, record)

    # The end.

    def _note_signals(self) -> None:
        """Somebody else than the driver wants this agent to end: a scheduler, an administrator."""
        came = [number for number in self._signals.take() if number in _ENDING]
        if not came:
            return
        self._is_ending = True
        name = signal.Signals(came[0]).name
        self._outbox.put({"is": "ending", "why": f"its agent was asked to end by {name}"})
        if self._ranks.group is None:
            self._code = 128 + came[0]
        else:
            self._stop(self._ranks.grace, has_failed=True)

    def _end(self) -> None:
        """Nothing is left: ranks, what they started, and our own helpers."""
        group = self._ranks.group
        if group is not None and not group.closed:
            group.collect()
            # Once is enough: a second look through all processes would hold up the driver.
            if not self._nothing_is_left and (not group.all_ended or group.has_failed):
                group.stop(self._ranks.grace)
        for opened in (self._outputs, self._measures):
            if opened is not None:
                opened.close()
        self._ranks.close()
        if "rankspawn.workers.forkserver" in sys.modules:
            from rankspawn.workers.forkserver import stop_servers

            stop_servers()
