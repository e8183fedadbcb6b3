"""What a keeper says to those who attach to its job, and hears from them: one thread for all.

It speaks as the agent of one node with all ranks. What it says follows from the group alone, so
that who comes late hears the same; only what was printed before is not said again.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from contextlib import suppress

from rankspawn.cluster.agent import greet
from rankspawn.cluster.frames import GREETING, FrameReader, GarbledError, Outbox, read_some
from rankspawn.cluster.rank_frames import put_end
from rankspawn.cluster.relay import address_of, is_own
from rankspawn.descriptors import Waker, anonymous_file

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankspawn.cluster.frames import Header
    from rankspawn.cluster.group import ClusterGroup
    from rankspawn.supervise.supervisor import Supervisor

# How often what ranks said with rankspawn.report() is looked at, while somebody attends.
_STEPS_SECONDS = 0.25
# Who does not read so much is not told what is printed meanwhile.
_ENOUGH_WAITS = 1 << 24
# For the last words to get through.
_FLUSH_SECONDS = 10.0


class Teller:
    """Says to one who attends what is not said yet."""

    def __init__(self, supervisor: Supervisor, *, is_left: bool = False) -> None:
        """Greet; what is left for later has no clock, and was all before it is read."""
        self.outbox: Outbox = Outbox()
        self.outbox.put_raw(GREETING)
        self.outbox.put({**greet(), "clock": ""} if is_left else greet())
        if is_left:
            self.outbox.put({"is": "pong", "at": 0, "now": time.monotonic_ns()})
        self._supervisor = supervisor
        self._has_started = self._is_over = False
        self._told: set[int] = set()
        self._steps: dict[int, tuple[bytes, str]] = {}

    def tell(self, refusal: Exception | None, *, is_over: bool) -> None:
        """Put all that is new into the outbox."""
        supervisor = self._supervisor
        group: ClusterGroup | None = getattr(supervisor, "group", None)
        if group is not None and not self._has_started:
            self._has_started = True
            self._tell_start(group)
        # With restarts allowed, an outcome counts only once all is done.
        if group is not None and (supervisor.finished or not supervisor.policy.max_restarts):
            for index in sorted(group.outcomes.keys() - self._told):
                if group.has_ended(index):
                    self._told.add(index)
                    put_end(self.outbox, group, index)
        if is_over and not self._is_over:
            self._is_over = True
            if refusal is not None:
                self.outbox.put({"is": "refused", "kind": "", "text": str(refusal)})
            self.outbox.put_last({"is": "stopped"})

    def _tell_start(self, group: ClusterGroup) -> None:
        processes = group.processes
        self.outbox.put(
            {
                "is": "ready",
                "address": "",
                "ports": [0] * len(processes),
                "backend": "",
                "device_type": "cpu",
                "devices": [],
                "warning": None,
            }
        )
        self.outbox.put(
            {
                "is": "started",
                "pids": [process.popen.pid for process in processes],
                "hosts": [process.host for process in processes],
                "plan": "",
            }
        )

    def tell_steps(self) -> None:
        """What ranks reported last."""
        group: ClusterGroup | None = getattr(self._supervisor, "group", None)
        if group is None or not self._has_started:
            return
        for index in range(len(group.processes)):
            said = group.steps_of(index), group.state_of(index)
            if index not in self._told and self._steps.get(index) != said:
                self._steps[index] = said
                self.outbox.put({"is": "steps", "index": index, "state": said[1]}, said[0])


class _Attendant(Teller):
    """One connection."""

    def __init__(self, connection: socket.socket, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self.connection = connection
        self.reader = FrameReader(is_greeted=True)
        self.listens = False  # to what ranks print
        self.events = selectors.EVENT_READ


class Attendance:
    """All who attend.

    Attributes:
        refusal: Why there is no job.
    """

    def __init__(self, name: str, supervisor: Supervisor) -> None:
        self.refusal: Exception | None = None
        self._supervisor = supervisor
        self._waker = Waker()
        self._attendants: dict[int, _Attendant] = {}
        self._is_over = False
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address_of(name))
        self._listener.listen()
        self._listener.setblocking(False)
        for each in (self._waker, self._listener):
            self._selector.register(each, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def wake(self) -> None:
        """Something happened."""
        self._waker.wake()

    def pass_on(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """What ranks printed, to those who want to see it."""
        for attendant in list(self._attendants.values()):
            if attendant.listens and attendant.outbox.size < _ENOUGH_WAITS:
                for index, piece in pieces:
                    attendant.outbox.put({"is": "output", "index": index}, piece)
        self.wake()

    def all_frames(self) -> bytes:
        """What whoever attaches after the end is told, and when that was."""
        teller = Teller(self._supervisor, is_left=True)
        teller.tell(self.refusal, is_over=True)
        fd = anonymous_file("rankspawn-results")
        with open(fd, "rb") as file:
            teller.outbox.write_to(fd)
            file.seek(0)
            return file.read()

    def finish(self) -> None:
        """Say the rest, and wait a while for those who have not read it."""
        self._is_over = True
        self.wake()
        self._thread.join()
        self._waker.close()

    def _run(self) -> None:
        """Runs in the thread."""
        due, ends_at = 0.0, float("inf")
        with self._selector, self._listener:
            while time.monotonic() < ends_at and not (self._is_over and not self._attendants):
                for key, _ in self._selector.select(_STEPS_SECONDS if self._attendants else None):
                    if key.fd == self._waker.fileno():
                        self._waker.clear()
                    elif key.fd == self._listener.fileno():
                        self._accept()
                    else:
                        self._hear(self._attendants[key.fd])
                shows_steps = time.monotonic() >= due
                if shows_steps:
                    due = time.monotonic() + _STEPS_SECONDS
                for attendant in list(self._attendants.values()):
                    attendant.tell(self.refusal, is_over=self._is_over)
                    if shows_steps:
                        attendant.tell_steps()
                    self._write(attendant)
                if self._is_over:
                    ends_at = min(ends_at, time.monotonic() + _FLUSH_SECONDS)
            for attendant in list(self._attendants.values()):
                self._drop(attendant)

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            if not is_own(connection):
                connection.close()
                return
            connection.setblocking(False)
            attendant = _Attendant(connection, self._supervisor)
            self._attendants[connection.fileno()] = attendant
            self._selector.register(connection, selectors.EVENT_READ, attendant)

    def _drop(self, attendant: _Attendant) -> None:
        number = attendant.connection.fileno()
        if self._attendants.pop(number, None) is not None:
            self._selector.unregister(attendant.connection)
            attendant.connection.close()

    def _write(self, attendant: _Attendant) -> None:
        try:
            is_left = attendant.outbox.write_to(attendant.connection.fileno())
        except OSError:
            self._drop(attendant)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_left else 0)
        if events != attendant.events:
            attendant.events = events
            self._selector.modify(attendant.connection, events, attendant)

    def _hear(self, attendant: _Attendant) -> None:
        data = read_some(attendant.connection.fileno())
        if data is None:
            return
        try:
            for header, _ in attendant.reader.feed(data):
                if header["is"] == "bye":
                    data = b""
                else:
                    self._do(attendant, header)
        except (GarbledError, KeyError, TypeError, ValueError):
            data = b""
        if not data:  # it goes; the ranks run on
            self._drop(attendant)

    def _do(self, attendant: _Attendant, header: Header) -> None:
        """What one who attends wants."""
        what = header["is"]
        if what == "ping":
            answer = {"is": "pong", "at": header["at"], "now": time.monotonic_ns()}
            attendant.outbox.put(answer)
        elif what == "prepare":
            attendant.listens = bool(header["listens"])
        elif hasattr(self._supervisor, "group"):
            self._do_with_group(attendant, header)

    def _do_with_group(self, attendant: _Attendant, header: Header) -> None:
        supervisor, what = self._supervisor, header["is"]
        group: ClusterGroup = supervisor.group  # type: ignore[assignment]  # the keeper's
        if what == "stop":
            grace = float(header["grace"])
            self._aside(lambda: supervisor.stop(grace))
        elif what == "kill":
            group.kill()
        elif what == "signal":
            group.signal(int(header["index"]), int(header["number"]))
        elif what == "stacks":
            self._aside(lambda: self._tell_stacks(attendant, header["ticket"]))

    def _tell_stacks(self, attendant: _Attendant, ticket: int) -> None:
        texts = {str(rank): text for rank, text in self._supervisor.group.stacks().items()}
        attendant.outbox.put({"is": "stacks", "ticket": ticket, "texts": texts})
        self.wake()

    def _aside(self, act: Callable[[], None]) -> None:
        threading.Thread(target=act, daemon=True).start()
