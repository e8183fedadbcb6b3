"""A fork server: a clean process that imported what the workers need, and forks them.

multiprocessing has one per program, whose preloads cannot be changed and whose socket file
outlives a killed parent. Here there is one per set of preloaded modules, connected by a socket
pair without a name; it ends when the parent's end closes, however the parent died.

A request is one packet with the worker's descriptors. The answer is its process id with a
pidfd, opened before the server can reap the worker, so that it cannot be a stranger's. The exit
status comes later as a packet of its own, in between other answers.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing import util
from typing import Any

from rankspawn.caller import warn_caller
from rankspawn.descriptors import Owned, close_in_forks
from rankspawn.interrupts import sigint_blocked
from rankspawn.workers.child import Boot
from rankspawn.workers.inherited import encode_changes
from rankspawn.workers.marker import make_mark_file
from rankspawn.workers.popen import WorkerPopen, command, is_readable
from rankspawn.workers.server import MOST_FDS, PACKET
from rankspawn.workers.start import SpawnLauncher

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.workers.start import StartSettings, Task, WorkerSpec

_servers: dict[tuple[str, ...], ForkServer] = {}
_starting = threading.Lock()
_MODULE = "rankspawn.workers.server"
# After so long without an answer, the server may have been stopped (SIGSTOP, a debugger).
_PATIENCE_SECONDS = 1.0


def get_server(preload: tuple[str, ...], environ: Mapping[str, str]) -> ForkServer:
    """The running server with these modules; started if there is none.

    Raises:
        ImportError: A module cannot be imported; its traceback is in the message.
    """
    with _starting:  # two threads must not start two
        # What was imported depends on where from; without preload that does not matter.
        key = (*preload, *sys.path) if preload else ()
        server = _servers.get(key)
        if not _servers:
            # At exit, after multiprocessing waited for the workers (its priorities from 0 on).
            util.Finalize(None, stop_servers, exitpriority=-100)
        if server is None or not server.usable:
            server = _servers[key] = ForkServer(preload, environ)
        return server


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


class ForkServer:
    """The parent's end; it may be used by several threads and groups."""

    def __init__(self, preload: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self._using = threading.RLock()
        self._environ = dict(environ)
        self._statuses: dict[int, int] = {}
        self._tickets = 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        close_in_forks(ours)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with theirs, sigint_blocked():  # until it ignores them
                self._process = subprocess.Popen(
                    command(_MODULE, ["rankspawn-forkserver", theirs.fileno()]),
                    env=self._environ,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
            self._greet(preload)
        except BaseException:
            self.stop()
            raise

    def _greet(self, preload: tuple[str, ...]) -> None:
        # If the server is gone already, the wait for its answer says so.
        with contextlib.suppress(BrokenPipeError):
            self._socket.send(json.dumps({"path": sys.path, "modules": preload}).encode())
        hello, _ = self._receive()
        if hello["error"]:
            raise ImportError(hello["error"])
        for text in hello["warnings"]:
            warn_caller(text, RuntimeWarning)

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

    def fork(self, boot: Boot) -> WorkerPopen:
        """The worker of this record, which the server has forked."""
        fds = boot.descriptors()
        if len(fds) > MOST_FDS:
            raise ValueError(
                f"the arguments share {len(fds)} descriptors with each worker (two for a queue, "
                f"one for a pipe end), but a fork server can be sent {MOST_FDS} at most: "
                "use start_method='spawn'"
            )
        with self._using:
            self._tickets += 1
            ticket = self._tickets
            request = json.dumps({"ticket": ticket, "boot": boot.numbers()}).encode()
            socket.send_fds(self._socket, [request], fds)
            answer, received = self._receive()
            while "pid" not in answer:
                answer, received = self._receive()
        if answer["error"]:
            raise OSError(*answer["error"])
        if not received:  # the system drops descriptors for which there is no room
            os.kill(answer["pid"], signal.SIGKILL)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return WorkerPopen(answer["pid"], pidfd=received[0], status=lambda: self._status_of(ticket))

    def forget(self) -> None:
        """In a forked child: it is not ours to wait for."""
        if self._process is not None:
            self._process.returncode = 0

    def stop(self) -> None:
        """End the server; workers that it forked run on."""
        self._socket.close()
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)  # if somebody stopped it
            self._process.wait()

    def _status_of(self, ticket: int) -> int:
        """The exit code of a worker that ended; waits for the server to reap it."""
        with self._using:
            while ticket not in self._statuses:
                try:
                    self._receive()
                except OSError:
                    raise ChildProcessError(
                        "the fork server is gone, and the status with it"
                    ) from None
            return self._statuses.pop(ticket)

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message; statuses are put aside for who asks for them."""
        while not is_readable(self._socket.fileno(), _PATIENCE_SECONDS):
            if self._process is not None:
                self._process.send_signal(signal.SIGCONT)
        try:
            packet, fds, _, _ = socket.recv_fds(self._socket, PACKET, 1)
        except ConnectionResetError:
            packet = b""
        if not packet:
            raise ConnectionError(
                "the fork server ended unexpectedly; the next start brings up a new one"
            )
        message: dict[str, Any] = json.loads(packet)
        if "status" in message:
            self._statuses[message["ticket"]] = message["status"]
        return message, fds


class ForkserverLauncher(SpawnLauncher):
    """A copy of a clean server process that imported the ``preload`` modules."""

    by_place = True

    def __init__(
        self, task: Task, settings: StartSettings, failure_event: Owned, mark: str
    ) -> None:
        super().__init__(task, settings, failure_event, mark)
        self._mark = Owned(make_mark_file(mark))
        try:
            self._server = get_server(settings.preload, os.environ)
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
        return self._server.fork(boot)

    def close(self) -> None:
        """Let go of what was needed for the start."""
        super().close()
        self._mark.close()
