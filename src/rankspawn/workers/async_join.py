"""Joining from an event loop: no thread waits, and nothing is polled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from rankspawn.workers.interrupts import interrupts_watched
from rankspawn.workers.teardown import kill_workers
from rankspawn.workers.wakeup import loop_woken_by_signals

if TYPE_CHECKING:
    from rankspawn.workers.group import WorkerGroup
    from rankspawn.workers.supervisor import Supervisor


async def wait_until_finished(job: Supervisor) -> None:
    """Until there is an answer, with the loop running on; cancelling it stops the workers."""
    loop = asyncio.get_running_loop()
    job.awaiting += 1
    with interrupts_watched() as watch, loop_woken_by_signals(loop):
        # If it is to be cancelled already, who knows by whom; it may have been a Ctrl-C.
        watch.interrupted |= _is_cancelled()
        try:
            with job.watched():
                while not job.finished:
                    group = job.group
                    await _news(job, group)
                    group.collect()
                    # A teardown takes up to the grace period, which the loop must not feel.
                    await loop.run_in_executor(None, job.settle_if_due, group)
        except asyncio.CancelledError:
            if job.awaiting == 1:  # nobody else waits for it
                await _stop(job, interrupted=watch.interrupted)
            raise
        finally:
            job.awaiting -= 1


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _stop(job: Supervisor, *, interrupted: bool) -> None:
    """End the group; a second cancellation (a second Ctrl-C) cuts its grace period short.

    As does the first Ctrl-C if the group is being ended already, because a rank failed.
    """
    if interrupted and job.group.is_being_stopped:
        kill_workers(job.group)
    stop = partial(job.stop, job.policy.grace_period, interrupted=interrupted)
    try:
        stopping = asyncio.get_running_loop().run_in_executor(None, stop)
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                kill_workers(job.group)
    except KeyboardInterrupt:  # asyncio raises the second one wherever it comes, also in here
        kill_workers(job.group)
        raise


async def _news(job: Supervisor, group: WorkerGroup) -> None:
    """Wait until something happened in the group, or to it, or its time is over."""
    news = asyncio.Event()
    with _watched(group, news):
        if group.settled or group.closed:
            return
        deadline = job.deadline
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), left)


@contextmanager
def _watched(group: WorkerGroup, news: asyncio.Event) -> Iterator[None]:
    """Set ``news`` when the group's descriptor is readable, or somebody else read it."""
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # that loop is closed
            loop.call_soon_threadsafe(news.set)

    group.listeners.add(wake)
    try:
        # A number of its own, because a loop has one reader per descriptor.
        fd = os.dup(group.fileno())
    except (OSError, ValueError):  # closed meanwhile
        group.listeners.discard(wake)
        news.set()
        yield
        return
    loop.add_reader(fd, news.set)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        os.close(fd)
        group.listeners.discard(wake)
