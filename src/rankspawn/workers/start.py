"""Starting the workers of a group, and ending them if one cannot be started."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from multiprocessing import util

from rankspawn.descriptors import Owned, anonymous_file
from rankspawn.warned import warn_caller
from rankspawn.workers.group import WorkerGroup, assemble, report_unseen_failures
from rankspawn.workers.interrupts import sigint_let_through
from rankspawn.workers.launchers import LAUNCHERS, Launcher
from rankspawn.workers.limits import explain_start_failure
from rankspawn.workers.logs import log_path, open_capture, open_log
from rankspawn.workers.marker import VARIABLE, variable_value
from rankspawn.workers.orders import Order, Output, StartSettings, Task
from rankspawn.workers.parcel import WORD, pack_words
from rankspawn.workers.process import RankProcess
from rankspawn.workers.report import DEAF_TO_INTERRUPTS, HEADER_WORDS, LOOKED_AT
from rankspawn.workers.worker import FunctionWorker, Worker

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.descriptors import Closable
    from rankspawn.workers.popen import WorkerPopen

_warned_about_threads: list[bool] = []


# The process that reports unseen failures at its exit; a forked one forgets what it was to do.
_reporting_pid: int | None = None


def _report_unseen_failures_at_exit() -> None:
    global _reporting_pid  # noqa: PLW0603 - once per process
    if _reporting_pid != os.getpid():
        _reporting_pid = os.getpid()
        # Priorities below 0 come after the wait for the workers.
        util.Finalize(None, report_unseen_failures, exitpriority=-10)


def start_group(
    task: Task,
    environments: Sequence[Mapping[str, str | None]],
    settings: StartSettings,
    *,
    grace: float,
    resources: Sequence[Closable] = (),
    first_rank: int = 0,
    is_restart: bool = False,
) -> WorkerGroup:
    """Start one worker per environment, watched over in case this process dies.

    Args:
        task: What they run.
        environments: For each rank the changes to this process's environment; None removes.
        settings: How to start.
        grace: Seconds that they get to end, if this process dies.
        resources: What they need while they run; closed with the group.
        first_rank: The rank of the first one; others follow.
        is_restart: Then logs go on where they ended.

    Raises:
        TypeError: The task cannot be sent to a worker; nothing was started.
        OSError: A process could not be started; those before it were killed.
    """

    def start(mark: str, failure_event: Owned, started: list[Worker]) -> None:
        marked = [{**changes, VARIABLE: variable_value(mark)} for changes in environments]
        start_workers(
            task,
            marked,
            settings,
            failure_event,
            mark,
            started,
            first_rank=first_rank,
            is_restart=is_restart,
        )

    _report_unseen_failures_at_exit()
    return assemble(start, grace=grace, resources=resources)


def start_workers(
    task: Task,
    environments: Sequence[Mapping[str, str | None]],
    settings: StartSettings,
    failure_event: Owned,
    mark: str,
    started: list[Worker],
    *,
    first_rank: int,
    is_restart: bool,
) -> None:
    """Start one worker per environment; after an exception the caller ends those started.

    Args:
        task: What they run.
        environments: For each rank the changes to this process's environment; None removes.
        settings: How to start.
        failure_event: An eventfd that a failing worker writes to.
        mark: What tells processes of this group from all others.
        started: Gets each worker as soon as it runs.
        first_rank: The rank of the first one; others follow.
        is_restart: Then logs go on where they ended.

    Raises:
        TypeError: The task cannot be sent to a worker; nothing was started.
        OSError: A process could not be started.
    """
    launcher: Launcher | None = None
    waiting: deque[Order] = deque()
    environ: Mapping[str, str] = os.environ
    try:
        # Pickles what may be large, and may wait for a fork server that imports a framework.
        with sigint_let_through():
            launcher = LAUNCHERS[settings.start_method](task, settings, failure_event, mark)
        # Before the first start: what this process touches between two forks is copied.
        for index, changes in enumerate(environments):
            rank = first_rank + index
            waiting.append(_make_order(settings, rank, index, changes, is_restart=is_restart))
        environ = waiting[-1].environment()
        with closing(launcher.launch(tuple(waiting))) as popens:
            for popen in popens:
                started.append(_adopt(waiting.popleft(), popen))
    except OSError as error:
        error.add_note(explain_start_failure(error, environ, len(started), len(environments)))
        raise
    finally:
        for order in waiting:
            order.close()
        if launcher is not None:
            launcher.close()


def _make_order(
    settings: StartSettings,
    rank: int,
    index: int,
    changes: Mapping[str, str | None],
    *,
    is_restart: bool,
) -> Order:
    outcome = Owned(anonymous_file("rankspawn-outcome"))
    if flags := _flags(settings, rank):
        os.pwrite(outcome.fileno(), pack_words([flags]), HEADER_WORDS * WORD)
    output = _open_output(settings, rank, keep=is_restart)
    process = RankProcess(rank, settings.daemon)
    return Order(rank, index, changes, outcome, output, process, rank == settings.debug_rank)


def _adopt(order: Order, popen: WorkerPopen) -> FunctionWorker:
    """The worker that was started for an order."""
    order.process.has_started(popen)
    if order.output.target is not None:
        order.output.target.close()
    return FunctionWorker(
        order.rank,
        f"rank {order.rank}",
        popen,
        order.output.path,
        order.process,
        order.outcome,
        order.output.captured,
        order.output.start,
    )


def _open_output(settings: StartSettings, rank: int, *, keep: bool) -> Output:
    if rank == settings.debug_rank:  # to the terminal
        return Output()
    if settings.log_dir is not None:
        path = log_path(settings.log_dir, rank)
        log = open_log(path, keep=keep)
        return Output(log, path, start=os.fstat(log.fileno()).st_size)
    if settings.captures:
        target, captured = open_capture()
        return Output(target, captured=captured)
    return Output()


def _flags(settings: StartSettings, rank: int) -> int:
    """What one worker is told in its report."""
    is_bystander = settings.debug_rank not in (None, rank)
    looked_at = LOOKED_AT if settings.looked_at else 0
    return looked_at | (DEAF_TO_INTERRUPTS if is_bystander else 0)


def warn_about_threads(settings: StartSettings) -> None:
    """Say once, at the caller's line, that forking a program with threads may hang."""
    others = [one for one in threading.enumerate() if one is not threading.current_thread()]
    if settings.start_method == "fork" and others and not _warned_about_threads:
        _warned_about_threads.append(True)
        names = ", ".join(sorted(thread.name for thread in others)[:5])
        warn_caller(
            "start_method='fork' copies a process in which other threads run; a lock that one of "
            f"them holds stays locked in the workers for ever. Threads: {names}",
            RuntimeWarning,
        )
