"""The fork server's own side: import, then fork on request, and tell how each worker ended.

Runs in the server, and after a fork in the worker. See ``forkserver`` for the protocol.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from rankspawn.workers import inherited
from rankspawn.workers.child import (
    change_environment,
    load,
    load_task,
    redirect_output,
    run_and_leave,
    take_terminal,
    work,
)
from rankspawn.workers.preloading import load_what_workers_need, preload
from rankspawn.workers.report import Report

# Larger than any packet of the protocol.
PACKET = 1 << 16
# The system passes at most 253 descriptors with one packet.
MOST_FDS = 253


def main() -> None:
    """Entry point: the socket's number and the modules are in ``sys.argv``."""
    requests = socket.socket(fileno=int(sys.argv[2]))
    # Ctrl-C reaches the whole foreground group; this process ends with its parent instead.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    with requests, contextlib.suppress(ConnectionResetError):
        greeting = requests.recv(PACKET)
        if not greeting:  # the parent is gone already
            return
        asked = json.loads(greeting)
        with _killed_with_parent(requests):
            load_what_workers_need()
            sys.path[:] = asked["path"]
            error, warnings = preload(asked["modules"])
        _answer(requests, {"error": error, "warnings": warnings})
        if not error:
            _serve(requests)


@contextlib.contextmanager
def _killed_with_parent(requests: socket.socket) -> Iterator[None]:
    """While modules are imported, nobody reads from the socket; then its end is a signal.

    One that no module can ignore or block, and that does not wait for the GIL.
    """
    fcntl.fcntl(requests, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(requests, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(requests, fcntl.F_GETFL)
    fcntl.fcntl(requests, fcntl.F_SETFL, flags | os.O_ASYNC)
    _leave_if_orphaned(requests)
    yield
    fcntl.fcntl(requests, fcntl.F_SETFL, flags)


def _serve(requests: socket.socket) -> None:
    """Until the parent is gone."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler there is no wake-up
    tickets: dict[int, int] = {}
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    poller.register(woken, select.POLLIN)
    while True:
        ready = dict(poller.poll())
        if woken in ready:
            os.read(woken, PACKET)
            _tell_statuses(requests, tickets)
        if requests.fileno() in ready and not _take_request(requests, tickets, (woken, wake)):
            return


def _take_request(
    requests: socket.socket, tickets: dict[int, int], own_fds: tuple[int, ...]
) -> bool:
    """Fork one worker, which has no use for ``own_fds``; False at the end of the connection."""
    try:
        packet, fds, _, _ = socket.recv_fds(requests, PACKET, MOST_FDS)
    except ConnectionResetError:  # it left with statuses unread
        return False
    if not packet:
        return False
    request = json.loads(packet)
    try:
        pid = os.fork()
    except OSError as error:
        _answer(requests, {"pid": 0, "error": [error.errno, error.strerror]})
    else:
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for fd in own_fds:
                os.close(fd)
            _run_worker(request["order"], fds, requests)
        tickets[pid] = request["ticket"]
        pidfd = os.pidfd_open(pid)
        _answer(requests, {"pid": pid, "error": None}, [pidfd])
        os.close(pidfd)
    for fd in fds:
        os.close(fd)
    return True


def _tell_statuses(requests: socket.socket, tickets: dict[int, int]) -> None:
    while tickets:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        ticket = tickets.pop(pid, None)
        if ticket is not None:
            code = os.waitstatus_to_exitcode(status)
            _answer(requests, {"ticket": ticket, "status": code})


def _run_worker(order: list[int], fds: list[int], requests: socket.socket) -> NoReturn:
    """Runs in the worker: become it, and leave without running the server's code again."""

    def body() -> int:
        # Blocked until the worker can report it; see child.work.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        rank, count, environ, *tables = order
        # None, a log, or input, output and errors of a terminal.
        streams = [fds.pop() for _ in range(count)][::-1]
        outcome, event, payload, tracker, mark, *inherited.received[:] = fds
        inherited.carry_mark(mark)
        _leave_if_orphaned(requests)
        requests.close()
        if count > 1:
            take_terminal(*streams)
        else:
            redirect_output(*streams)
        report = Report(outcome, event)
        return work(report, lambda: _become(rank, payload, environ, tracker, tables))

    run_and_leave(body)


def _leave_if_orphaned(requests: socket.socket) -> None:
    """As ``child.leave_if_orphaned``; here the parent's end of the socket tells."""
    poller = select.poll()
    poller.register(requests, 0)  # an end of the connection is told without asking
    if poller.poll(0):
        os._exit(1)


def _become(
    rank: int, payload: int, environ: int, tracker: int, tables: list[int]
) -> Callable[[], Any]:
    change_environment(load(payload, environ))
    setting, task, own = tables
    return load_task(rank, payload, setting, task, own, tracker)


def _answer(requests: socket.socket, message: dict[str, Any], fds: list[int] | None = None) -> None:
    # If the parent is gone, the next read says so.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(requests, [json.dumps(message).encode()], fds or [])
