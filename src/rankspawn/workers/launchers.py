"""How workers are started, for each start method.

A launcher is made once for a group; it takes the ranks' orders and gives a process for each::

    spawn       a fresh interpreter, with its environment in place before it starts
    fork        a copy of this process; nothing is pickled
    forkserver  a copy of a clean server process that imported the ``preload`` modules
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Generator, Sequence
from multiprocessing import get_start_method, resource_tracker, util
from multiprocessing import process as mp_process
from typing import Any, Protocol

from rankspawn.descriptors import Owned, handed_over
from rankspawn.workers.child import flush_c_output, flush_output
from rankspawn.workers.environment import encode_changes
from rankspawn.workers.forked import ForkedWorker, Stock
from rankspawn.workers.forkserver import get_server
from rankspawn.workers.interpreter import command
from rankspawn.workers.marker import make_mark_file
from rankspawn.workers.orders import Order, StartSettings, Task
from rankspawn.workers.payload import Inheritance, Payload, write_payload
from rankspawn.workers.popen import WorkerPopen, adopt_child, end_child

_tracking = threading.Lock()
_warning = threading.Lock()
_FORK_WARNS = sys.version_info >= (3, 12)


class Launcher(Protocol):
    """One way to start the workers of a group."""

    def __init__(
        self, task: Task, settings: StartSettings, failure_event: Owned, mark: str, /
    ) -> None: ...

    def launch(self, orders: Sequence[Order], /) -> Generator[WorkerPopen, None, None]:
        """Start one worker for each order, in their order.

        If one cannot be started, those are ended that were started and not yet given out.
        """

    def close(self) -> None:
        """Let go of what was needed for the start."""


class _ForkLauncher:
    """A copy of this process; nothing is pickled."""

    def __init__(self, task: Task, _: StartSettings, failure_event: Owned, mark: str) -> None:
        self._task = task
        self._own = [
            Owned(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)),
            Owned(make_mark_file(mark)),
        ]
        null, mark_file = self._own
        self._for_all = [one.fileno() for one in (null, failure_event, mark_file)]
        self._stock = Stock()
        self._encode = functools.cache(os.fsencode)
        # What is still buffered would be printed by every worker once more.
        flush_output()
        flush_c_output()

    def launch(self, orders: Sequence[Order]) -> Generator[WorkerPopen, None, None]:
        # Forks in a row, and all else before or after: what this process touches between two of
        # them is copied once more.
        workers = [self._prepare(order) for order in orders]
        pids: deque[int] = deque()
        try:
            failure = _fork_all(workers, pids)
            while pids:
                yield adopt_child(pids.popleft())
            if failure is not None:
                try:
                    raise failure
                finally:
                    del failure  # its traceback has this frame, which has the task
        finally:
            for pid in pids:
                end_child(pid)

    def close(self) -> None:
        for one in self._own:
            one.close()

    def _prepare(self, order: Order) -> tuple[ForkedWorker, list[int]]:
        """A worker, and the descriptors that it takes over."""
        log = order.output.target
        fds = [*self._for_all, order.outcome.fileno(), *(() if log is None else (log.fileno(),))]
        changes = encode_changes(order.changes, self._encode)
        return ForkedWorker(order, self._task, changes, self._stock, fds), fds


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

    def launch(self, orders: Sequence[Order]) -> Generator[WorkerPopen, None, None]:
        for order in orders:
            yield self._launch(order)

    def _launch(self, order: Order) -> WorkerPopen:
        own = self._payload.part_of(order.index)
        outcome, payload = order.outcome.fileno(), self._payload.file.fileno()
        log = None if order.output.target is None else order.output.target.fileno()
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

    def _launch(self, order: Order) -> WorkerPopen:
        own = self._payload.part_of(order.index)
        changes = self._server.changes_to(order.environment())
        environ = self._payload.add(encode_changes(changes))
        streams = (0, 1, 2) if order.has_terminal else ()
        log = (order.output.target.fileno(),) if order.output.target else ()
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


def _renew_locks() -> None:
    """Runs in a forked child: a thread of the parent may have held the old ones."""
    global _tracking, _warning  # noqa: PLW0603 - a lock cannot be reset, only replaced
    _tracking = threading.Lock()
    _warning = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


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


def _fork_all(
    workers: Sequence[tuple[ForkedWorker, list[int]]], pids: deque[int]
) -> OSError | None:
    """Fork until one cannot be; return why. The list gets the ids."""
    for worker, fds in workers:
        try:
            with handed_over(fds):
                pid = _fork()
        except OSError as error:
            return error
        if pid == 0:
            worker.run()
        pids.append(pid)
    return None


def _fork() -> int:
    if not _FORK_WARNS:
        return os.fork()
    # Of threads, for every single fork; ours was given. One at a time: two threads would put
    # back each other's filters.
    with _warning, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
