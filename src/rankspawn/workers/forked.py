"""A worker that is a copy of this process (start method ``fork``), from first step to last.

Each page of memory that a fork touches has to be copied, which takes about 3 microseconds, and
touching some hundred of them is all that a short worker does. So what can be made before the
fork is, and multiprocessing is told by fewer steps that this is one of its children.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
from multiprocessing import process as mp_process
from multiprocessing import util
from typing import Any, NoReturn

from rankspawn.workers.child import (
    change_environment,
    leave_if_orphaned,
    redirect_output,
    run_and_leave,
    take_terminal,
    work,
)
from rankspawn.workers.inherited import carry_mark
from rankspawn.workers.mp_identity import open_parent
from rankspawn.workers.report import Report

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

    from rankspawn.workers.orders import EncodedChanges, Order, Task


class Stock:
    """What the forked workers of one group have in common; made before the first fork."""

    def __init__(self) -> None:
        mp: Any = mp_process  # private
        self.parent = os.getpid()
        name = mp_process.current_process().name
        self.parent_process = mp._ParentProcess(name, self.parent, _ParentSentinel(self.parent))
        self.stdin = _open_input()


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
        self._order = order
        self._call = task.bind(order.index)
        self._changes = changes
        self._stock = stock
        self._fds = fds

    def run(self) -> NoReturn:
        """Work and leave."""
        run_and_leave(self._work)

    def _work(self) -> int:
        null, event, mark, outcome, *log = self._fds
        self._become_child()
        carry_mark(mark)
        leave_if_orphaned(self._stock.parent)
        redirect_output(*log)
        if self._order.has_terminal:
            take_terminal()
        else:  # the parent's input is not ours to read
            os.dup2(null, 0)
            sys.stdin = self._stock.stdin
        os.close(null)
        return work(Report(outcome, event), self._become_rank)

    def _become_child(self) -> None:
        """Tell multiprocessing that this is one of its children, and will end like one."""
        mp: Any = mp_process  # all of this is private
        mp._process_counter = itertools.count(1)
        mp._children = set()
        mp._current_process = self._order.process
        mp._parent_process = self._stock.parent_process
        thread: Any = threading.main_thread()
        thread._set_native_id()
        util._finalizer_registry.clear()  # type: ignore[attr-defined]
        util._run_after_forkers()  # type: ignore[attr-defined]
        # What the parent registered for its own exit is not run here; but queues are flushed.
        atexit._clear()
        atexit.register(util._exit_function)  # type: ignore[attr-defined]

    def _become_rank(self) -> Callable[[], Any]:
        change_environment(self._changes)
        return self._call


class _ParentSentinel:
    """Readable once the parent is gone; opened when somebody asks, which few do."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._fd: int | None = None

    def fileno(self) -> int:
        if self._fd is None:
            self._fd = open_parent(self._pid)
        return self._fd
