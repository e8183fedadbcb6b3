"""Stopping a group: SIGTERM, one shared grace period, SIGKILL, reap.

The workers get the grace period; what they started is killed once they are gone, the failed
rank's own children too. Nobody is touched who does not carry the job's mark.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from rankspawn.handlers import handlers_held
from rankspawn.telling import get_logger
from rankspawn.workers.marker import GONE_SECONDS, kill_marked

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import logging

    from rankspawn.workers.group import WorkerGroup
    from rankspawn.workers.worker import Worker

logger: logging.Logger = get_logger(__name__)

# How long a rank may take to leave after its report, before it gets SIGTERM, too: its exit
# handlers run now, but a thread or a handler that hangs must not hold the group.
LEAVE_SECONDS = 1.0
# How long a rank that failed may take to write down why, at least: the cause of it all must not
# be lost to a short grace period, which is for those that are stopped.
REPORT_SECONDS = 3.0
# Why a worker is killed.
_OVERDUE = "did not end in time"
_INTERRUPTED = "is not waited for any longer"


def stop_workers(group: WorkerGroup, grace: float, mark: str, *, interrupted: bool = False) -> None:
    """End all workers of the group, the stubborn ones by force, and what they started.

    Args:
        group: Whose workers.
        grace: Seconds until SIGKILL.
        mark: Whoever carries it is killed in the end.
        interrupted: This process got SIGINT, and the workers too if the terminal sent it; then
            they are given half of the time to act on that before SIGTERM, which ends those
            without a handler at once. Who sent it cannot be known, so they get that time also
            if somebody sent it to this process alone.
    """
    began = time.monotonic()
    deadline = began + grace
    reason = _INTERRUPTED
    try:
        if interrupted and not group.all_ended and not _shows_table():
            count = len(group.sentinels)
            logger.warning(
                "interrupted: %d workers have %g s to end; interrupt again to kill them",
                count,
                grace,
            )
        if interrupted and _is_in_foreground():
            group.wait(lambda: group.all_ended, time.monotonic() + grace / 2)
        # Ranks that reported are on their way out by themselves, and may still save something.
        leaving = [
            group.workers[index] for index in group.sentinels.values() if index in group.outcomes
        ]
        # One SIGTERM to all before the wait: the grace period is shared, not one per rank.
        _terminate(worker for worker in _running(group) if worker not in leaving)
        if not group.wait(lambda: group.all_ended or group.reports_are_complete, deadline):
            _kill(worker for worker in _running(group) if worker not in leaving)
            group.wait(lambda: group.reports_are_complete, began + REPORT_SECONDS)
        group.wait(lambda: _is_settled(group), min(deadline, time.monotonic() + LEAVE_SECONDS))
        _terminate(worker for worker in _running(group) if worker in leaving)
        group.wait(lambda: _is_settled(group), deadline)
        reason = _OVERDUE
    finally:  # a second Ctrl-C raises in one of the waits above, which cuts the grace period short
        kill_now(group, mark, reason)


def _shows_table() -> bool:
    """Whether a live table stands on the terminal: words beside it would have it drawn twice."""
    live = sys.modules.get("rankspawn.view.live")
    return live is not None and bool(live.shows_tables())


def _is_in_foreground() -> bool:
    """Ctrl-C in our terminal reaches this process and its workers alike."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _terminate(workers: Iterable[Worker]) -> None:
    for worker in workers:
        _send(worker, signal.SIGTERM)
        # A stopped process acts on SIGTERM only when it goes on.
        _send(worker, signal.SIGCONT)


def kill_now(group: WorkerGroup, mark: str, reason: str = _OVERDUE) -> None:
    """The last step alone: SIGKILL to the workers that run and to all with the mark; reap."""
    # The end of a group is not interrupted: each worker's, for one, may bring a SIGCHLD.
    with handlers_held(firmly=True):
        _kill(_running(group), reason)
        kill_marked(mark)
        if not group.wait(lambda: _is_settled(group), time.monotonic() + GONE_SECONDS):
            left = [f"{worker.name} (pid {worker.popen.pid})" for worker in _running(group)]
            logger.error("%s cannot be reaped %.0f s after SIGKILL", ", ".join(left), GONE_SECONDS)


def kill_workers(group: WorkerGroup) -> None:
    """SIGKILL to the workers that run; whoever waits for their end does the rest."""
    _kill(_running(group), _INTERRUPTED)


def _kill(workers: Iterable[Worker], reason: str = _OVERDUE) -> None:
    for worker in workers:
        logger.warning("%s (pid %d) %s; now SIGKILL", worker.name, worker.popen.pid, reason)
        _send(worker, signal.SIGKILL)


def _send(worker: Worker, number: int) -> None:
    # This process may have given up the rights that it had when it started the worker. What
    # became of the ranks matters more than that; the error says it, see describe_unreached.
    with suppress(PermissionError):
        worker.popen.send_signal(number)


def _is_settled(group: WorkerGroup) -> bool:
    """All have ended, but for those that nothing can be done about."""
    return all(worker.popen.out_of_reach for worker in _running(group))


def describe_unreached(group: WorkerGroup) -> str:
    """Which workers run on because this process may not signal them; a line for an error."""
    unreached = [worker for worker in _running(group) if worker.popen.out_of_reach]
    names = ", ".join(f"{worker.name} (pid {worker.popen.pid})" for worker in unreached)
    return f"{names} could not be signalled: the system does not permit it\n" if names else ""


def _running(group: WorkerGroup) -> list[Worker]:
    return [group.workers[index] for index in sorted(group.sentinels.values())]


def kill_started(started: Sequence[Worker]) -> None:
    """End the workers of a start that failed half-way."""
    for worker in started:
        worker.popen.kill()
    # Reaped only when all have been killed: their ends overlap.
    for worker in started:
        worker.popen.wait()
        worker.popen.close()
        worker.close()
        worker.close_output()
