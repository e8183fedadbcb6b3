"""Joining from an event loop: no thread waits, and nothing is polled."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from rankspawn.interrupts import interrupts_watched, loop_woken_by_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankspawn.supervise.group import Group
    from rankspawn.supervise.supervisor import Supervisor


async def wait_until_finished(job: Supervisor) -> None:
    """Until there is an answer, with the loop running on; cancelling it stops the workers."""
    loop = asyncio.get_running_loop()
    job.awaiting += 1
    with interrupts_watched() as watch, loop_woken_by_signals(loop):
        # If it is to be cancelled already, who knows by whom; it may have been a Ctrl-C. Not
        # with "|=", which would put back what it read before an interrupt in the midst of it.
        if _is_cancelled():
            watch.interrupted = True
        try:
            with job.watched():
                while not job.finished:
                    group = job.group
                    await _news(job, group)
                    group.collect()
                    # A teardown takes up to the grace period, which the loop must not feel.
                    await _InThread(partial(job.conclude_if_due, group)).future
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
    if interrupted and job.is_stopping:
        job.group.kill()
    stopping = _InThread(partial(job.stop, job.policy.grace_period, interrupted=interrupted))
    try:
        while not stopping.future.done():
            try:
                await asyncio.shield(stopping.future)
            except asyncio.CancelledError:
                job.group.kill()
    except KeyboardInterrupt:  # asyncio raises the second one wherever it comes, also in here
        job.group.kill()
        stopping.wait()  # whoever is told that it is over must find nothing left
        raise


class _InThread:
    """A call in a thread of its own, and the future of its end.

    Not in the loop's executor: its threads may all be in use, by what waits for these very ranks
    for instance. And a Ctrl-C that asyncio raises while ``Thread.start`` waits for the new thread
    breaks the lock that it waits with, so that a RuntimeError takes its place; the raw start does
    not wait.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()
        self._running = _thread.allocate_lock()
        self._running.acquire()
        try:
            _thread.start_new_thread(self._run, (call,))
        except RuntimeError:  # no more threads for this user: then the loop has to wait
            self._run(call)

    def _run(self, call: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            call()
        except BaseException as raised:  # whatever it is, it is for whoever awaits the future
            error = raised
        self._running.release()
        with contextlib.suppress(RuntimeError):  # that loop is closed
            self._loop.call_soon_threadsafe(self._tell, error)

    def _tell(self, error: BaseException | None) -> None:
        if self.future.done():  # cancelled
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)

    def wait(self) -> None:
        """Block until the call has ended."""
        with self._running:
            pass


async def _news(job: Supervisor, group: Group) -> None:
    """Wait until something happened in the group, or to it, or its time is over."""
    news = asyncio.Event()
    with _watched(group, news):
        if group.closed or job.is_due(group):
            return
        deadline = job.deadline
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), left)


@contextmanager
def _watched(group: Group, news: asyncio.Event) -> Iterator[None]:
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
