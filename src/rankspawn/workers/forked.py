"""A worker that is a copy of this process (start method ``fork``), from first step to last.

Each page of memory that a fork touches has to be copied, which takes about 3 microseconds, and
touching some hundred of them is all that a short worker does. So what can be made before the
fork is, and multiprocessing is told by fewer steps that this is one of its children.
"""

from __future__ import annotations

import functools
import mmap  # noqa: F401 - loaded here once, and not by every worker
import os
import signal
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Generator, Sequence
from multiprocessing import process as mp_process
from typing import Any, NoReturn

from rankspawn import cpython
from rankspawn.caller import warn_caller
from rankspawn.descriptors import Owned, kept_in_fork
from rankspawn.handlers import (
    handler_of,
    handlers_held,
    handlers_to_inherit,
    is_from_handler,
)
from rankspawn.portable import WATCHING
from rankspawn.workers import (
    exceptions,  # noqa: F401 - likewise
    pickling,
)
from rankspawn.workers.child import (
    flush_c_output,
    leave_if_orphaned,
    run_and_leave,
    work,
)
from rankspawn.workers.inherited import (
    carry_mark,
    change_environment,
    encode_changes,
    redirect_output,
    signals_blocked,
    take_cpus,
    take_terminal,
)
from rankspawn.workers.known_classes import KnownClasses
from rankspawn.workers.marker import make_mark_file
from rankspawn.workers.own_children import chosen_method, give_method
from rankspawn.workers.popen import WorkerPopen, adopt_child, end_child
from rankspawn.workers.report import Report

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TextIO

    from rankspawn.workers.inherited import EncodedChanges
    from rankspawn.workers.start import StartSettings, Task, WorkerSpec

_warned_about_threads: list[bool] = []
# Two threads would put back each other's filters of warnings.
_warning = threading.Lock()
_FORK_WARNS = sys.version_info >= (3, 12)


def _renew_lock() -> None:
    """Runs in a forked child: a thread of the parent may have held the old lock."""
    global _warning  # noqa: PLW0603 - a lock cannot be reset, only replaced
    _warning = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def warn_about_threads() -> None:
    """Say once, at the caller's line, that forking a program with threads may hang."""
    others = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.name.startswith(WATCHING)
    ]
    # Before Python 3.13 a thread that Python did not start, but that asked who it is, stays in
    # the list for ever after it has ended. Only the numbers are kept: the frames hold this one.
    running = set(sys._current_frames()) if others else set()
    others = [thread for thread in others if thread.ident in running]
    if others and not _warned_about_threads:
        _warned_about_threads.append(True)
        names = ", ".join(sorted(thread.name for thread in others)[:5])
        warn_caller(
            "start_method='fork' copies a process in which other threads run; a lock that one of "
            f"them holds stays locked in the workers for ever. Threads: {names}",
            RuntimeWarning,
        )


class ForkLauncher:
    """A copy of this process; nothing is pickled."""

    def __init__(
        self, task: Task, settings: StartSettings, failure_event: Owned, mark: str
    ) -> None:
        self._task = task
        with handlers_held():  # or one could come between a descriptor and whoever closes it
            self._null = Owned(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            self._mark = Owned(make_mark_file(mark))
            self._common = CommonToForks(
                null=self._null.fileno(),
                failure_event=failure_event.fileno(),
                mark=self._mark.fileno(),
                logging=settings.logging,
            )
        self._encode = functools.cache(os.fsencode)
        # What is still buffered would be printed by every worker once more.
        _flush_output()
        with handlers_held():  # no handler can run within it
            flush_c_output()

    def launch(self, specs: Sequence[WorkerSpec]) -> Generator[WorkerPopen, None, None]:
        """Fork one worker for each; see :class:`rankspawn.workers.start.Launcher`."""
        # Forks in a row, and all else before or after: what this process touches between two of
        # them is copied once more.
        workers = [self._prepare(spec) for spec in specs]
        pids: deque[int] = deque()
        try:
            failure = _fork_all(workers, pids)
            while pids:
                popen = adopt_child(pids.popleft())
                popen.referred_to = self._common.classes
                yield popen
            if failure is not None:
                try:
                    raise failure
                finally:
                    del failure  # its traceback has this frame, which has the task
        finally:
            for pid in pids:
                end_child(pid)

    def close(self) -> None:
        """Let go of what was needed for the start."""
        self._null.close()
        self._mark.close()

    def _prepare(self, spec: WorkerSpec) -> ForkedWorker:
        changes = encode_changes(spec.changes, self._encode)
        return ForkedWorker(spec, self._task, changes, self._common)


def _fork_all(workers: Sequence[ForkedWorker], pids: deque[int]) -> OSError | None:
    """Fork until one cannot be; return why. The list gets the ids."""
    # Around all of them: what is done between two forks touches pages, which are then copied.
    with cpython.tracker_kept(), signals_blocked() as blocked:
        for worker in workers:
            try:
                with kept_in_fork(worker.descriptors):
                    pid = _fork()
            except OSError as error:
                return error
            if pid == 0:
                worker.run(blocked.signals)
            pids.append(pid)
    return None


def _fork() -> int:
    if not _FORK_WARNS:
        return os.fork()
    # It warns of threads at every single fork; ours was given, once.
    with _warning, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class CommonToForks:
    """What the forked workers of one group have in common; made before the first fork.

    Args:
        null: Descriptor of the null device, which is their input.
        failure_event: Descriptor that wakes the parent.
        mark: Descriptor of the job's mark.
        logging: What workers are to do with the handlers of the parent, if anything.
    """

    def __init__(
        self, *, null: int, failure_event: int, mark: int, logging: bytes | None = None
    ) -> None:
        self.logging = logging
        # The streams that such handlers may write to.
        self.logged_to: tuple[TextIO | None, TextIO | None] = (sys.stdout, sys.stderr)
        self.null = null
        self.failure_event = failure_event
        self.mark = mark
        self.parent_pid: int = os.getpid()
        # None where a version of Python lacks what the short way needs.
        self.maker: cpython.ChildMaker | None = (
            cpython.ChildMaker() if cpython.can_become_child() else None
        )
        self.stdin: TextIO | None = _open_input()
        self.classes: KnownClasses = KnownClasses()
        self.has_chosen_method: bool = chosen_method() is not None
        # The program's own, which others stand in for while signals are held back.
        self.handlers: dict[int, Any] = handlers_to_inherit()
        if callable(sigint_handler := _choose_sigint_handler()):
            self.handlers[signal.SIGINT] = sigint_handler


def _choose_sigint_handler() -> Any:
    """The parent's, unless that would cancel a task of an event loop which does not run here."""
    handler = handler_of(signal.SIGINT)
    asyncio: Any = sys.modules.get("asyncio")  # not imported for this: 50 ms
    if asyncio is None or not callable(handler):
        return handler
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # there is none
        return handler
    return signal.default_int_handler


def _open_input() -> TextIO | None:
    """What reads a worker's input, which will be the null device."""
    try:
        return None if sys.stdin is None else open(0, closefd=False, encoding="utf-8")
    except OSError:  # nothing to read from
        return None


class ForkedWorker:
    """One rank's worker: made by the parent, run by the copy."""

    def __init__(
        self, spec: WorkerSpec, task: Task, changes: EncodedChanges, common: CommonToForks
    ) -> None:
        """Make everything that can be made before the fork.

        Args:
            spec: What to start.
            task: What it runs.
            changes: What it changes in its environment.
            common: What all workers use.
        """
        self._process: Any = spec.process
        # Not a bound method: it would keep this, and the task, until garbage is collected.
        self._way = self._choose_way(common)
        self._takes_terminal = spec.has_terminal
        self._call = task.bind(spec.index)
        self._changes = changes
        self._common = common
        self._outcome_file = spec.outcome_file.fileno()
        self._rank = spec.rank
        log = spec.output.target
        self._log = [] if log is None else [log.fileno()]
        # What it takes over from the parent, which closes the rest in it.
        self.descriptors: list[int] = [
            *(common.null, common.failure_event, common.mark, self._outcome_file),
            *self._log,
        ]

    def run(self, blocked: Iterable[int]) -> NoReturn:
        """Work and leave; these signals are let in once this can report."""
        self._blocked = blocked
        # An event loop of the parent must not be woken by our signals.
        signal.set_wakeup_fd(-1)
        for number, handler in self._common.handlers.items():
            cpython.raw_signal.signal(number, handler)
        cpython.forget_exit_functions(weakref.finalize)
        pickling.known_to_parent = self._common.classes
        run_and_leave(lambda: self._way(self))

    def _choose_way(self, common: CommonToForks) -> Callable[[ForkedWorker], int]:
        bootstrap = cpython.bootstrap_of(self._process)
        # Somebody who changed how children start, such as coverage, is called as usual.
        is_plain = bootstrap is None or bootstrap.__module__ == mp_process.__name__
        if common.maker is not None and is_plain:
            return ForkedWorker._work_as_child
        return ForkedWorker._work if bootstrap is None else ForkedWorker._work_by_bootstrap

    def _work_as_child(self) -> int:
        return self._report_on(self._become_child)

    def _work(self) -> int:
        return self._report_on(self._become_rank)

    def _work_by_bootstrap(self) -> int:
        """As multiprocessing starts a child."""

        def run() -> NoReturn:
            raise SystemExit(self._work())

        self._process.run = run
        bootstrap = cpython.bootstrap_of(self._process)
        assert bootstrap is not None, "or this way is not chosen"
        return bootstrap()

    def _report_on(self, become: Callable[[], Callable[[], Any]]) -> int:
        report = Report(self._outcome_file, self._common.failure_event)
        return work(report, become, self._blocked)

    def _become_child(self) -> Callable[[], Any]:
        assert self._common.maker is not None, "or this way is not chosen"
        self._common.maker.become_child(self._process)
        return self._become_rank()

    def _become_rank(self) -> Callable[[], Any]:
        carry_mark(self._common.mark)
        leave_if_orphaned(self._common.parent_pid)
        redirect_output(*self._log)
        if not self._common.has_chosen_method:
            give_method("fork")
        self._take_input()
        if self._common.logging is not None:
            from rankspawn.workers.log_setup import apply_in_fork

            apply_in_fork(self._common.logging, self._rank, self._common.logged_to)
        change_environment(self._changes)
        take_cpus()
        return self._call

    def _take_input(self) -> None:
        if self._takes_terminal:
            take_terminal()
        else:  # the parent's input is not ours to read, nor what it has read ahead
            _close(sys.stdin)
            os.dup2(self._common.null, 0)
            sys.stdin = self._common.stdin
        os.close(self._common.null)


def _flush_output() -> None:
    """As ``child.flush_output``, in the parent: it may take long, and a handler may raise."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception as error:
            if is_from_handler(error):
                raise


def _close(file: TextIO | None) -> None:
    try:
        if file is not None:
            file.close()
    except (OSError, ValueError):
        return
