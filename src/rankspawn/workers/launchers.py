"""How one worker is started, for each start method.

A launcher is made once for a group; it takes a rank's order and returns a started process::

    spawn       a fresh interpreter, with its environment in place before it starts
    fork        a copy of this process; nothing is pickled
    forkserver  a copy of a clean server process that imported the ``preload`` modules
"""

from __future__ import annotations

import atexit
import faulthandler  # noqa: F401 - loaded here once, and not by every forked worker
import mmap  # noqa: F401 - likewise
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from multiprocessing import get_start_method, resource_tracker, util
from multiprocessing import process as mp_process
from typing import Any, NoReturn, Protocol

from rankspawn.descriptors import Owned, handed_over
from rankspawn.workers.child import (
    change_environment,
    flush_c_output,
    flush_output,
    leave_if_orphaned,
    redirect_output,
    run_and_leave,
    take_terminal,
    work,
)
from rankspawn.workers.forkserver import get_server
from rankspawn.workers.inherited import carry_mark
from rankspawn.workers.interpreter import command
from rankspawn.workers.marker import make_mark_file
from rankspawn.workers.orders import Order, StartSettings, Task
from rankspawn.workers.payload import Inheritance, Payload, write_payload
from rankspawn.workers.popen import WorkerPopen, adopt_child
from rankspawn.workers.process import RankProcess
from rankspawn.workers.report import Report

_tracking = threading.Lock()
# Of threads, for every single fork; ours was given.
_FORK_WARNS = sys.version_info >= (3, 12)


class Launcher(Protocol):
    """One way to start the workers of a group."""

    def __init__(
        self, task: Task, settings: StartSettings, failure_event: Owned, mark: str, /
    ) -> None: ...

    def launch(self, process: RankProcess, /, order: Order) -> WorkerPopen:
        """Start one worker."""

    def close(self) -> None:
        """Let go of what was needed for the start."""


class _ForkLauncher:
    """A copy of this process; nothing is pickled."""

    def __init__(self, task: Task, _: StartSettings, failure_event: Owned, mark: str) -> None:
        self._task = task
        self._failure_event = failure_event
        self._mark = Owned(make_mark_file(mark))
        self._parent = os.getpid()
        # What is still buffered would be printed by every worker once more.
        flush_output()
        flush_c_output()

    def launch(self, process: RankProcess, order: Order) -> WorkerPopen:
        owned = (order.outcome, self._failure_event, self._mark, order.log)
        taken = [one.fileno() for one in owned if one is not None]
        process.body = lambda: self._work(order, *taken)
        with handed_over(taken):
            pid = _fork()
            if pid == 0:
                _run_and_exit(process)
        return adopt_child(pid)

    def close(self) -> None:
        self._mark.close()

    def _work(self, order: Order, outcome: int, event: int, mark: int, *log: int) -> int:
        """Runs in the worker."""
        carry_mark(mark)
        leave_if_orphaned(self._parent)
        redirect_output(*log)
        if order.has_terminal:
            take_terminal()
        return work(Report(outcome, event), lambda: self._become(order))

    def _become(self, order: Order) -> Callable[[], Any]:
        """Runs in the worker."""
        change_environment(order.changes)
        return self._task.bind(order.index)


class _SpawnLauncher:
    """A fresh interpreter, with its environment in place before it starts."""

    by_place = False

    def __init__(self, task: Task, settings: StartSettings, failure_event: Owned, _: str) -> None:
        self._failure_event = failure_event.fileno()
        self._payload = write_payload(
            task.func,
            task.args,
            task.kwargs,
            task.rank_args,
            Inheritance(by_place=self.by_place, shares_tensors=settings.shares_tensors),
        )
        self._tables = (
            self._payload.add(_setting_of_parent(self._payload, settings.daemon)),
            self._payload.task.table,
        )
        self._tracker = _tracker_fd()

    def launch(self, _: RankProcess, order: Order) -> WorkerPopen:
        own = self._payload.part_of(order.index)
        outcome, payload = order.outcome.fileno(), self._payload.file.fileno()
        log = None if order.log is None else order.log.fileno()
        numbers = (
            *(os.getpid(), outcome, self._failure_event, order.rank, payload),
            *(*self._tables, own.table, self._tracker),
        )
        child = subprocess.Popen(
            command("rankspawn.workers.child", [f"rankspawn-worker-{order.rank}", *numbers]),
            env=order.environment(),
            # The parent's input is not theirs to read.
            stdin=None if order.has_terminal else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(
                *(outcome, self._failure_event, payload, self._tracker),
                *(*self._payload.task.fds, *own.fds),
            ),
        )
        # It is reaped through WorkerPopen; this keeps subprocess from waiting for it as well.
        child.returncode = 0
        return adopt_child(child.pid)

    def close(self) -> None:
        self._payload.close()


class _ForkserverLauncher(_SpawnLauncher):
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

    def launch(self, _: RankProcess, order: Order) -> WorkerPopen:
        own = self._payload.part_of(order.index)
        environ = self._payload.add(self._server.changes_to(order.environment()))
        streams = (0, 1, 2) if order.has_terminal else ()
        log = (order.log.fileno(),) if order.log else ()
        return self._server.fork(
            (order.rank, len(streams or log), environ, *self._tables, own.table),
            (
                *(order.outcome.fileno(), self._failure_event, self._payload.file.fileno()),
                *(self._tracker, self._mark.fileno(), *self._payload.task.fds, *own.fds),
                *(streams or log),
            ),
        )

    def close(self) -> None:
        super().close()
        self._mark.close()


LAUNCHERS: dict[str, type[Launcher]] = {
    "spawn": _SpawnLauncher,
    "fork": _ForkLauncher,
    "forkserver": _ForkserverLauncher,
}


def _renew_lock() -> None:
    """Runs in a forked child: a thread of the parent may have held the old one."""
    global _tracking  # noqa: PLW0603 - a lock cannot be reset, only replaced
    _tracking = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _tracker_fd() -> int:
    """Multiprocessing's resource tracker, which workers share with their parent.

    It is started with the current folder on its path, where a file that is called like a module
    of Python makes it fail with a traceback; so it is told to leave that folder out.
    """
    with _tracking:  # two threads must not take each other's function for the real one
        flags = util._args_from_interpreter_flags  # type: ignore[attr-defined]  # private
        util._args_from_interpreter_flags = lambda: [*flags(), "-P"]  # type: ignore[attr-defined]
        try:
            fd = resource_tracker.getfd()
        finally:
            util._args_from_interpreter_flags = flags  # type: ignore[attr-defined]
    assert fd is not None, "getfd() starts the tracker"
    return fd


def _setting_of_parent(payload: Payload, daemon: bool) -> dict[str, Any]:
    """What ``child.prepare`` takes over in a worker."""
    current = mp_process.current_process()
    main = payload.main
    return {
        "path": [entry or _current_folder() for entry in sys.path],
        "argv": list(sys.argv),
        "folder": _current_folder(),
        "main": None if main is None else (main.name, main.path),
        "multiprocessing": {
            "name": "rank-{rank}",
            "authkey": bytes(current.authkey),
            "daemon": daemon,
            "parent_pid": os.getpid(),
            "parent_name": current.name,
            "start_method": get_start_method(allow_none=True),
        },
    }


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted
        return ""


def _fork() -> int:
    if not _FORK_WARNS:
        return os.fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _run_and_exit(process: RankProcess) -> NoReturn:
    """Runs in a forked worker: what the parent registered for its own exit is not run here."""
    # What multiprocessing's own start methods call; it ends in process.run().
    bootstrap: Callable[[], int] = getattr(process, "_bootstrap")  # noqa: B009 - private

    def body() -> int:
        atexit._clear()
        # Cleared with the rest, but needed: it flushes queues. Before Python 3.13 the
        # bootstrap calls it as well, which does no harm.
        atexit.register(util._exit_function)  # type: ignore[attr-defined]  # private
        return bootstrap()

    run_and_leave(body)
