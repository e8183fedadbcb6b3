"""The fork server's own side: import, then fork and reap on request.

Runs in the server, and after a fork in the worker. See ``forkserver`` for the protocol.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import select
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, NoReturn

from rankspawn import cpython
from rankspawn.workers import inherited
from rankspawn.workers.child import Boot, load, load_task, run_and_leave, work
from rankspawn.workers.learning import Notebook
from rankspawn.workers.parcel import WORD
from rankspawn.workers.report import Report

# Larger than any packet of the protocol.
PACKET = 1 << 16
# The system passes at most 253 descriptors with one packet.
MOST_FDS = 253
# Told in place of an exit code that is not known: something else in here waited for the worker.
NO_STATUS = 1 << 16
_LONGEST_ERROR = 30_000
# Forks a worker with this boot record, these descriptors, and signals that are blocked for that.
Fork = Callable[[Sequence[int], Sequence[int], Iterable[int]], int]
# What a driver's context is reached through. A forked copy of one does not work.
_ACCELERATORS = ("/dev/nvidia", "/dev/kfd", "/dev/xpu", "/dev/davinci", "/dev/cambricon")
# Threads by name that do not make way for a fork and are no danger to it. jemalloc, which Arrow has
# in it and so pandas may, holds its locks during a fork, and does without the thread in the copy.
_READY_FOR_FORKS = (b"jemalloc_bg_thd",)
# What a worker loads when it comes to need it, loaded once for all of them.
_NEEDED_BY_WORKERS = (
    *("_ctypes", "_pickle", "mmap", "rankspawn.workers.main_module"),
    # For its report: a rank that fails shall not take time to find out how to say so.
    *("ast", "traceback", "rankspawn.workers.exceptions", "rankspawn.workers.pickling"),
)
# And where a preloaded module has set it up, as large ones do.
_NEEDED_FOR_LOGGING = ("rankspawn.workers.log_setup", "pickle")


def main() -> None:
    """Entry point: the socket's number and the modules are in ``sys.argv``."""
    requests = socket.socket(fileno=int(sys.argv[2]))
    # Ctrl-C reaches the whole foreground group; this process ends with its parent instead.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The same for Ctrl-\, which workers are to inherit without ignoring it for what they execute.
    signal.signal(signal.SIGQUIT, lambda *_: None)
    # What the thread blocks that happens to start this process is not meant for later callers.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with requests, contextlib.suppress(ConnectionResetError):
        greeting = requests.recv(PACKET)
        if not greeting:  # the parent is gone already
            return
        asked = json.loads(greeting)
        parent = _open_parent(asked["parent"])
        notebook = Notebook(int(sys.argv[3])) if len(sys.argv) > 3 else None
        learned = notebook.names(asked["left_out"]) if notebook else []
        with _killed_with_parent(requests, parent):
            load_what_workers_need(*_NEEDED_BY_WORKERS)
            sys.path[:] = asked["path"]
            error, stories = preload(asked["modules"], learned)
            load_what_workers_need(*_NEEDED_FOR_LOGGING if "logging" in sys.modules else ())
        unnamed = [module for module in learned if module in stories]
        hello = {"error": error, "stories": stories, "learned": unnamed}
        _send(requests, json.dumps(hello).encode())
        if not error:
            if notebook:
                notebook.know()
            _serve(requests, parent, notebook)


def _open_parent(pid: int) -> int:
    """Its pidfd: C code may fork a copy of it, which keeps the socket open after its death."""
    parent = os.pidfd_open(os.getppid())
    if os.getppid() != pid:
        os._exit(1)
    return parent


@contextlib.contextmanager
def _killed_with_parent(requests: socket.socket, parent: int) -> Iterator[None]:
    """While modules are imported, nobody reads from the socket; then its end is a signal.

    One that no module can ignore or block, and that does not wait for the GIL.
    """
    fcntl.fcntl(requests, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(requests, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(requests, fcntl.F_GETFL)
    fcntl.fcntl(requests, fcntl.F_SETFL, flags | os.O_ASYNC)
    _leave_if_orphaned(requests, parent)
    yield
    fcntl.fcntl(requests, fcntl.F_SETFL, flags)


def _serve(requests: socket.socket, parent: int, notebook: Notebook | None) -> None:
    """Until the parent is gone.

    Nothing is done about a worker that ended before the parent asks: it knows by its pidfd. So this
    process needs no signal, which somebody might block, and until then the process id of a worker
    is its own.
    """
    # Whatever the parent or a module has set. Were it ignored, the system itself would reap.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    running: dict[int, int] = {}  # ticket to process id
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    poller.register(parent, select.POLLIN)

    def fork(boot: Sequence[int], fds: Sequence[int], blocked: Iterable[int]) -> int:
        pid = os.fork()
        if pid == 0:
            _run_worker(Boot.read(boot, fds), requests, parent, blocked, notebook)
        return pid

    while parent not in dict(poller.poll()) and _take_request(requests, fork, running):
        pass


def _take_request(requests: socket.socket, fork: Fork, running: dict[int, int]) -> bool:
    """Do one thing that the parent asks for; False at the end of the connection."""
    try:
        packet, fds, _, _ = socket.recv_fds(requests, PACKET, MOST_FDS)
    except ConnectionResetError:  # it left with answers unread
        return False
    if not packet:
        return False
    request = json.loads(packet)
    ticket = request["ticket"]
    if "boot" in request:
        _fork(requests, fork, running, ticket, request["boot"], fds)
    elif ticket in running:  # else it was asked twice, because an exception came before the answer
        pid = running.pop(ticket)
        if request["kill"]:  # nobody waits for an answer
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _reap(pid)
        else:
            _answer(requests, -ticket, _reap(pid))
    for fd in fds:
        os.close(fd)
    return True


def _fork(
    requests: socket.socket,
    fork: Fork,
    running: dict[int, int],
    ticket: int,
    boot: Sequence[int],
    fds: Sequence[int],
) -> None:
    try:
        with inherited.signals_blocked() as blocked:
            pid = fork(boot, fds, blocked.signals)
    except OSError as error:
        _answer(requests, ticket, -(error.errno or errno.EAGAIN))
        return
    running[ticket] = pid
    _answer(requests, ticket, pid)


def _reap(pid: int) -> int:
    """The exit code; waits for a debugger of the worker that is to know it first."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return NO_STATUS
    return os.waitstatus_to_exitcode(status)


def _run_worker(
    boot: Boot,
    requests: socket.socket,
    parent: int,
    blocked: Iterable[int],
    notebook: Notebook | None,
) -> NoReturn:
    """Runs in the worker: become it, and leave without running the server's code again."""

    def body() -> int:
        cpython.forget_finalizers(weakref.finalize)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        inherited.received[:] = boot.brought
        inherited.carry_mark(*boot.mark)
        _leave_if_orphaned(requests, parent)
        requests.close()
        os.close(parent)
        if notebook:
            notebook.leave()
        if len(boot.streams) > 1:
            inherited.take_terminal(*boot.streams)
        else:
            inherited.redirect_output(*boot.streams)
        report = Report(boot.outcome_file, boot.failure_event)
        code = work(report, lambda: _become(boot), blocked)
        if notebook:
            notebook.add()
        return code

    run_and_leave(body)


def _leave_if_orphaned(requests: socket.socket, parent: int) -> None:
    """As ``child.leave_if_orphaned``; here the parent's end of the socket tells, or its pidfd."""
    poller = select.poll()
    poller.register(requests, 0)  # an end of the connection is told without asking
    poller.register(parent, select.POLLIN)
    if poller.poll(0):
        os._exit(1)


def _become(boot: Boot) -> Callable[[], Any]:
    inherited.change_environment(load(boot.payload, boot.environ))
    return load_task(boot)


def _answer(requests: socket.socket, key: int, value: int) -> None:
    """A ticket with its worker, or minus the ticket with how that ended."""
    pair = [number.to_bytes(WORD, "little", signed=True) for number in (key, value)]
    _send(requests, b"".join(pair))


def _send(requests: socket.socket, packet: bytes) -> None:
    # If the parent is gone, the next read says so.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        requests.send(packet)


def load_what_workers_need(*modules: str) -> None:
    """Our own part; an interpreter may lack some of it."""
    for module in modules:
        with contextlib.suppress(ImportError):
            import_module(module)


def preload(
    modules: Sequence[str], learned: Sequence[str] = ()
) -> tuple[tuple[str, str] | None, dict[str, list[str]]]:
    """Import the modules; then those that were learned, as far as they can be imported.

    Returns:
        The first one that fails, if any, with its traceback; and of the others that have done
        what copies of this process cannot use, what that is, in words.
    """
    stories: dict[str, list[str]] = {}
    if not modules and not learned:
        return None, stories
    from rankspawn.workers.rank_reads import rank_reads

    known = obstacles()
    with rank_reads() as reads:
        missing = (module for module in learned if module not in sys.modules)
        for module in itertools.chain(modules, missing):
            try:
                import_module(module)
            except BaseException:
                if module not in modules:  # in a rank it was imported by another one, or later
                    continue
                import traceback

                return (module, traceback.format_exc()[-_LONGEST_ERROR:]), stories
            found = obstacles()
            told = [*sorted(found - known), *dict.fromkeys(reads.stories)]
            if told:
                stories[module] = told
            known |= found
            reads.stories.clear()
    return None, stories


def obstacles() -> set[str]:
    """What this process has that does not survive a fork, in words."""
    stories = {f"opened {device}" for device in _open_accelerators()}
    python_threads = [
        thread for thread in threading.enumerate() if thread is not threading.main_thread()
    ]
    stories.update(f"started the thread {thread.name!r}" for thread in python_threads)
    if not python_threads and _foreign_threads():
        stories.add("started threads that stay while this process forks")
    return stories


def _open_accelerators() -> set[str]:
    paths = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.startswith(_ACCELERATORS):
                paths.add(path)
    return paths


def _foreign_threads() -> bool:
    """Threads of C code that a fork is not good for.

    OpenBLAS, for one, has threads, ends them before each fork and starts them anew when they are
    needed; so a fork is tried, and those that are still there afterwards count. But not what stays
    and is ready for forks all the same.
    """
    if _count_threads() == 1:
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return _count_threads() > 1


def _count_threads() -> int:
    count = 0
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm", "rb") as file:
            count += file.read().strip() not in _READY_FOR_FORKS
    return count
