"""A worker that is a copy of this process (start method ``fork``), from first step to last.

Each page of memory that a fork touches has to be copied, which takes about 3 microseconds, and
touching some hundred of them is all that a short worker does. So what can be made before the
fork is, and multiprocessing is told by fewer steps that this is one of its children.
"""

from __future__ import annotations

import atexit
import itertools
import mmap  # noqa: F401 - loaded here once, and not by every worker
import os
import signal
import sys
import threading
import weakref
from _signal import signal as set_handler  # signal's own touches twenty pages more
from multiprocessing import process as mp_process
from multiprocessing import util
from typing import Any, NoReturn

from rankspawn.workers import exceptions  # noqa: F401 - likewise
from rankspawn.workers.child import (
    change_environment,
    leave_if_orphaned,
    redirect_output,
    run_and_leave,
    take_terminal,
    work,
)
from rankspawn.workers.inherited import carry_mark
from rankspawn.workers.interrupts import sigint_handler
from rankspawn.workers.mp_identity import open_parent
from rankspawn.workers.report import Report

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

    from rankspawn.workers.orders import EncodedChanges, Order, Task

_mp: Any = mp_process  # most of what is used of it is private
_util: Any = util
_finalize: Any = weakref.finalize


class _Parent(_mp._ParentProcess):  # type: ignore[misc]  # of no known type
    """The parent as multiprocessing has it; its sentinel is opened when somebody asks."""

    def __init__(self) -> None:
        self._opened: int | None = None
        super().__init__(mp_process.current_process().name, os.getpid(), None)

    @property
    def _sentinel(self) -> int:
        if self._opened is None:
            self._opened = open_parent(self._pid)
        return self._opened

    @_sentinel.setter
    def _sentinel(self, _: object) -> None:
        """By its base class."""


class Stock:
    """What the forked workers of one group have in common; made before the first fork."""

    def __init__(self) -> None:
        self.parent = _Parent()
        self.stdin = _open_input()
        self.sigint_handler = _choose_sigint_handler()


def _choose_sigint_handler() -> Any:
    """The parent's, unless that would cancel a task of an event loop which does not run here."""
    handler = sigint_handler()
    asyncio: Any = sys.modules.get("asyncio")  # not imported for this: 50 ms
    in_loop = asyncio is not None and asyncio._get_running_loop() is not None
    return signal.default_int_handler if in_loop and callable(handler) else handler


def _open_input() -> TextIO | None:
    """What reads a worker's input, which will be the null device."""
    try:
        return None if sys.stdin is None else open(0, closefd=False, encoding="utf-8")
    except OSError:  # nothing to read from
        return None


class ForkedWorker:
    """One rank's worker: made by the parent, run by the copy."""

    def __init__(
        self, order: Order, task: Task, changes: EncodedChanges, stock: Stock, fds: Sequence[int]
    ) -> None:
        """Make everything that can be made before the fork.

        Args:
            order: What to start.
            task: What it runs.
            changes: What it changes in its environment.
            stock: What all workers use.
            fds: The null device, the failure event, the mark, the outcome, and a log, if any.
        """
        process: Any = order.process
        self._process = process
        # Somebody who changed how children start, such as coverage, is called as usual.
        self._is_plain = process._bootstrap.__module__ == mp_process.__name__
        self._takes_terminal = order.has_terminal
        self._call = task.bind(order.index)
        self._changes = changes
        self._stock = stock
        self._null, event, self._mark, outcome, *self._log = fds
        self._files = outcome, event

    def run(self) -> NoReturn:
        """Work and leave."""
        # An event loop of the parent must not be woken by our signals.
        signal.set_wakeup_fd(-1)
        if callable(self._stock.sigint_handler):  # the parent holds it back
            set_handler(signal.SIGINT, self._stock.sigint_handler)
        # What the parent registered for its own exit is not run here.
        atexit._clear()
        _finalize._registry.clear()
        _finalize._registered_with_atexit = False
        run_and_leave(self._work if self._is_plain else self._bootstrap)

    def _work(self) -> int:
        return work(Report(*self._files), self._become_child)

    def _bootstrap(self) -> int:
        """As multiprocessing starts a child."""

        def run() -> NoReturn:
            raise SystemExit(work(Report(*self._files), self._become_rank))

        self._process.run = run
        code: int = self._process._bootstrap()
        return code

    def _become_child(self) -> Callable[[], Any]:
        """Tell multiprocessing that this is one of its children, which will end like one."""
        _mp._process_counter = itertools.count(1)
        _mp._children = set()
        _mp._current_process = self._process
        _mp._parent_process = self._stock.parent
        thread: Any = threading.main_thread()
        thread._set_native_id()
        _util._finalizer_registry.clear()
        _util._run_after_forkers()
        atexit.register(_util._exit_function)  # flushes queues
        return self._become_rank()

    def _become_rank(self) -> Callable[[], Any]:
        carry_mark(self._mark)
        leave_if_orphaned(self._stock.parent.pid)
        redirect_output(*self._log)
        self._take_input()
        change_environment(self._changes)
        return self._call

    def _take_input(self) -> None:
        if self._takes_terminal:
            take_terminal()
        else:  # the parent's input is not ours to read, nor what it has read ahead
            _close(sys.stdin)
            os.dup2(self._null, 0)
            sys.stdin = self._stock.stdin
        os.close(self._null)


def _close(file: TextIO | None) -> None:
    try:
        if file is not None:
            file.close()
    except (OSError, ValueError):
        return
