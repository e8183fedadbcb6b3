"""A fork server: a clean process that imported what the workers need, and forks them.

multiprocessing has one per program, whose preloads cannot be changed and whose socket file
outlives a killed parent. Here there is one per set of preloaded modules, connected by a socket
pair without a name; it ends when the parent's end closes, or its pidfd says that it died.

A request is one packet with a ticket, and for a fork the worker's descriptors. An answer is a pair
of numbers: the ticket and a process id, or minus the ticket and an exit code. It is kept under its
first number until whoever asked comes for it; so an exception in between, from a handler of a
signal, leaves nothing that the next one could take for its own. The server reaps a worker when it
is asked for the exit code, and no sooner: until then the process id is the worker's own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import util

from rankspawn.descriptors import Owned, close_in_forks
from rankspawn.errors import SpawnTimeoutError
from rankspawn.handlers import handlers_held
from rankspawn.interrupts import sigint_blocked
from rankspawn.workers.child import Boot
from rankspawn.workers.inherited import encode_changes
from rankspawn.workers.learning import forget as forget_lessons
from rankspawn.workers.learning import lessons
from rankspawn.workers.marker import make_mark_file
from rankspawn.workers.popen import WorkerPopen, command, is_readable
from rankspawn.workers.preloading import AUTO, MAIN, judge, left_out, with_main
from rankspawn.workers.server import MOST_FDS, NO_STATUS, PACKET
from rankspawn.workers.start import SpawnLauncher

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.workers.start import StartSettings, Task, WorkerSpec

_servers: dict[tuple[str, ...], ForkServer] = {}
_starting = threading.Lock()
_MODULE = "rankspawn.workers.server"
_GONE = "the fork server ended unexpectedly; the next start brings up a new one"
_PAIR = struct.Struct("<qq")
# After so long without an answer, the server may have been stopped (SIGSTOP, a debugger).
_PATIENCE_SECONDS = 1.0


def get_server(
    preload: tuple[str, ...],
    environ: Mapping[str, str],
    deadline: float | None = None,
    *,
    dispensable: frozenset[str] = frozenset(),
) -> ForkServer:
    """The running server with these modules; started if there is none.

    Args:
        preload: What it imports.
        environ: What a new one is started with.
        deadline: When there is no time left, on the monotonic clock.
        dispensable: Modules that nobody has named.

    Raises:
        ImportError: A module cannot be imported; its traceback is in the message.
        SpawnTimeoutError: The time was over before it was ready.
        UnfitModuleError: Some of those that nobody has named stand in the way.
    """
    # What was imported depends on where from; without preload that does not matter.
    key = (*preload, *sys.path) if preload else ()
    if AUTO in preload:  # one that has learned less would have each rank import the rest
        key = (*key, str(os.fstat(lessons().fileno()).st_size))
    server: ForkServer | None = None
    while server is None or not server.usable:
        is_new = False
        try:
            with _starting:  # two threads must not start two
                if not _servers:
                    # At exit, after multiprocessing waited for the workers (priorities from 0 on).
                    util.Finalize(None, stop_servers, exitpriority=-100)
                server = _servers.get(key)
                if server is None or not server.usable:
                    is_new = True
                    server = _servers[key] = ForkServer(preload, environ)
            # Without that lock: a thread must not wait longer than its own deadline.
            if is_new:
                server.get_ready(deadline, dispensable)
            else:
                server.wait_until_ready(deadline)
        except BaseException:
            if is_new and server is not None:
                server.stop(at_once=True)
            raise
    return server


def _patience(deadline: float | None) -> float:
    """How long to wait before another look."""
    if deadline is None:
        return _PATIENCE_SECONDS
    return min(_PATIENCE_SECONDS, max(0.0, deadline - time.monotonic()))


def _forget_servers() -> None:
    """Runs in a forked child: they are the parent's, and so is a lock that it may hold."""
    global _starting  # noqa: PLW0603 - a lock cannot be reset, only replaced
    _starting = threading.Lock()
    for server in _servers.values():
        server.forget()
    _servers.clear()


os.register_at_fork(after_in_child=_forget_servers)


def stop_servers() -> None:
    """End all fork servers; the next start that needs one starts it again."""
    while _servers:
        _, server = _servers.popitem()
        server.stop()
    forget_lessons()


class ForkServer:
    """The parent's end; it may be used by several threads and groups."""

    def __init__(self, preload: tuple[str, ...], environ: Mapping[str, str]) -> None:
        """It is not ready before whoever made it has called :meth:`get_ready`."""
        # A handler of a signal may ask the server something in the middle of a question.
        self._using = threading.RLock()
        self._is_ready = threading.Event()
        self._preload = [module for module in preload if module != AUTO]
        lesson = [lessons().fileno()] if AUTO in preload else []
        self._environ = dict(environ)
        self._tickets = itertools.count(1)
        # What the server said, until it is used; of a start that was given up a pair may stay.
        self._answers: dict[int, int] = {}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        close_in_forks(ours)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with theirs, sigint_blocked():  # until it ignores them
                self._process = subprocess.Popen(
                    command(_MODULE, ["rankspawn-forkserver", theirs.fileno(), *lesson]),
                    env=self._environ,
                    pass_fds=[theirs.fileno(), *lesson],
                    stdin=subprocess.DEVNULL,
                )
        except BaseException:
            self.stop(at_once=True)
            raise

    def get_ready(self, deadline: float | None, dispensable: frozenset[str] = frozenset()) -> None:
        """Have it import the modules; after an exception it has to be stopped."""
        # If the server is gone already, the wait for its answer says so.
        with contextlib.suppress(BrokenPipeError):
            asked = {"path": sys.path, "modules": self._preload, "parent": os.getpid()}
            asked["left_out"] = left_out()
            self._socket.send(json.dumps(asked).encode())
        while not self._hears(deadline):
            self._check_time(deadline)
        packet = b""
        with contextlib.suppress(ConnectionResetError):
            if self._socket.fileno() >= 0:  # else another thread stopped all servers
                packet = self._socket.recv(PACKET)
        if not packet:
            raise ConnectionError(_GONE)
        judge(json.loads(packet), dispensable)
        self._is_ready.set()

    def wait_until_ready(self, deadline: float | None) -> None:
        """Until another thread has made it ready, or has given it up."""
        while self.usable and not self._is_ready.wait(_patience(deadline)):
            self._check_time(deadline)

    def _check_time(self, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() >= deadline:
            story = f"imports preload={self._preload}" if self._preload else "gets ready"
            if self._is_ready.is_set():
                story = "owes an answer"
            raise SpawnTimeoutError(f"timeout is over, and the fork server still {story}")

    @property
    def usable(self) -> bool:
        """False in a forked child, and after the server died."""
        return (
            self._socket.fileno() >= 0
            and self._process is not None
            and self._process.poll() is None
        )

    def changes_to(self, environ: Mapping[str, str]) -> dict[str, str | None]:
        """What a worker has to set, or remove, to turn the server's environment into this."""
        return {
            **dict.fromkeys(self._environ.keys() - environ.keys()),
            **dict(environ.items() - self._environ.items()),
        }

    def fork(self, boot: Boot, deadline: float | None = None) -> WorkerPopen:
        """The worker of this record, which the server has forked.

        Raises:
            OSError: There can be none, or the server is gone.
            SpawnTimeoutError: The time was over before the server answered.
        """
        fds = boot.descriptors()
        if len(fds) > MOST_FDS:
            raise ValueError(
                f"the arguments share {len(fds)} descriptors with each worker (two for a queue, "
                f"one for a pipe end), but a fork server can be sent {MOST_FDS} at most: "
                "use start_method='spawn'"
            )
        ticket = next(self._tickets)
        try:
            return self._fork(ticket, boot, fds, deadline)
        except BaseException:
            self._abandon(ticket)
            raise

    def _fork(
        self, ticket: int, boot: Boot, fds: Sequence[int], deadline: float | None
    ) -> ServedPopen:
        with self._using:
            self._ask({"ticket": ticket, "boot": boot.numbers()}, fds)
            pid = self._answer_to(ticket, deadline)
        if pid is None:
            raise ConnectionError(_GONE)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        popen = ServedPopen(pid, self, ticket)
        self._answers.pop(ticket, None)
        return popen

    def forget(self) -> None:
        """In a forked child: it is not ours to wait for."""
        if self._process is not None:
            self._process.returncode = 0

    def stop(self, *, at_once: bool = False, patience: float | None = None) -> None:
        """End the server; workers that it forked run on.

        Args:
            at_once: It may be busy with its imports, and not listen.
            patience: Seconds that what it has imported may take to end; None for no limit.
        """
        self._socket.close()
        if self._process is not None:
            # The latter because somebody may have stopped it.
            self._process.send_signal(signal.SIGKILL if at_once else signal.SIGCONT)
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def status_of(self, ticket: int) -> int:
        """The exit code of a worker that ended; it may be asked for again before `let_go`."""
        with self._using:
            if -ticket not in self._answers:
                self._ask({"ticket": ticket, "kill": False})
            status = self._answer_to(-ticket)
        if status is None:
            raise ChildProcessError("the fork server is gone, and the status with it")
        if status == NO_STATUS:
            raise ChildProcessError("something in the fork server has waited for its children")
        return status

    def let_go(self, ticket: int) -> None:
        """Forget how that worker ended."""
        self._answers.pop(-ticket, None)

    def _abandon(self, ticket: int) -> None:
        """Have the worker ended that nobody is going to supervise, if there is one or will be."""
        request = json.dumps({"ticket": ticket, "kill": True}).encode()
        try:
            self._socket.send(request, socket.MSG_DONTWAIT)
        except OSError:
            # It is gone; or it was stopped, and takes nothing more: nor may it fork any more.
            if self._process is not None:
                self._process.kill()

    def _ask(self, request: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        # If the server is gone, the wait for its answer says so.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if self._socket.fileno() >= 0:
                socket.send_fds(self._socket, [json.dumps(request).encode()], fds)

    def _answer_to(self, key: int, deadline: float | None = None) -> int | None:
        """What the server says under this number; None if it is gone."""
        while key not in self._answers:
            if not self._hears(deadline):
                self._check_time(deadline)
            elif not self._take():
                return None
        return self._answers[key]

    def _hears(self, deadline: float | None) -> bool:
        """Wait for a while; True if the server said something, or is gone."""
        fd = self._socket.fileno()
        if fd < 0 or is_readable(fd, _patience(deadline)):
            return True
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        return False

    def _take(self) -> bool:
        """Keep the next answer under its number; False if the server is gone."""
        if self._socket.fileno() < 0:
            return False
        packets = map(self._socket.recv, (_PAIR.size,), (socket.MSG_DONTWAIT,))
        try:
            # From the read to the entry in C alone: where Python runs no handler of a signal, which
            # could raise, and the answer would be neither here nor there.
            self._answers.update(map(_PAIR.unpack, packets))
        except BlockingIOError:  # a handler that came before has taken it
            return True
        except (ConnectionResetError, struct.error):  # nothing but an end is shorter
            return False
        return True


class ServedPopen(WorkerPopen):
    """A worker that the server has forked, and reaps."""

    def __init__(self, pid: int, server: ForkServer, ticket: int) -> None:
        self._server, self._ticket = server, ticket
        super().__init__(pid)
        # As long as it lives, nobody but the server could have reaped the worker, and it has not:
        # so this is no stranger who got the same number.
        if not server.usable:
            self.close()
            raise ConnectionError(_GONE)

    def _open(self) -> Owned:
        return Owned(os.pidfd_open(self.pid))

    def _look(self) -> int:
        return self._server.status_of(self._ticket)

    def _let_go(self) -> None:
        self._server.let_go(self._ticket)


class ForkserverLauncher(SpawnLauncher):
    """A copy of a clean server process that imported the ``preload`` modules."""

    by_place = True

    def __init__(
        self, task: Task, settings: StartSettings, failure_event: Owned, mark: str
    ) -> None:
        super().__init__(task, settings, failure_event, mark)
        self._deadline = settings.deadline
        with handlers_held():  # or one could come between a descriptor and whoever closes it
            self._mark = Owned(make_mark_file(mark))
        try:
            self._server = _server_for(settings)
        except BaseException:
            self.close()
            raise

    def _launch(self, spec: WorkerSpec) -> WorkerPopen:
        changes = self._server.changes_to(spec.environment())
        terminal = (0, 1, 2) if spec.has_terminal else ()
        log = (spec.output.target.fileno(),) if spec.output.target else ()
        boot = self._boot_record(
            spec,
            environ=self._payload.add(encode_changes(changes)),
            mark=(self._mark.fileno(),),
            streams=terminal or log,
        )
        return self._server.fork(boot, self._deadline)

    def close(self) -> None:
        """Let go of what was needed for the start."""
        super().close()
        self._mark.close()


def _server_for(settings: StartSettings) -> ForkServer:
    def get(modules: tuple[str, ...], dispensable: frozenset[str] = frozenset()) -> ForkServer:
        return get_server(modules, os.environ, settings.deadline, dispensable=dispensable)

    if {MAIN, AUTO}.isdisjoint(settings.preload):
        return get(settings.preload)
    return with_main(settings.preload, get)
