"""Joining from an event loop: no thread waits, and nothing is polled."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from rankspawn.cpython import call_unlisted
from rankspawn.handlers import handlers_held, is_echo, is_main_thread
from rankspawn.interrupts import SignalPipe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from rankspawn.supervise.group import Group
    from rankspawn.supervise.supervisor import Supervisor


async def follow(
    job: Supervisor,
    news: Callable[[Supervisor, Group], Awaitable[None]],
    in_thread: Callable[[Callable[[], None]], Awaitable[None]],
    stop: Callable[[Supervisor], Awaitable[None]],
) -> None:
    """Until there is an answer, on any event loop.

    Args:
        job: Whose.
        news: Waits until something happened in a group, or to it, or its time is over.
        in_thread: Has a thread call something, and waits for that.
        stop: Ends the ranks because the program's own code raised.
    """
    with job.watched():
        while not job.finished:
            group = job.group
            await news(job, group)
            group.collect()
            try:
                job.listen(group)
            except BaseException:
                await stop(job)
                raise
            # A teardown takes up to the grace period, which the loop must not feel.
            await in_thread(partial(job.conclude_if_due, group))


async def wait_until_finished(job: Supervisor) -> None:
    """Until there is an answer, with the loop running on; cancelling it stops the workers."""
    loop = asyncio.get_running_loop()
    job.awaiting += 1
    with interrupts_watched() as watch, _loop_woken_by_signals(loop):
        # If it is to be cancelled already, who knows by whom; it may have been a Ctrl-C. Not
        # with "|=", which would put back what it read before an interrupt in the midst of it.
        if _is_cancelled():
            watch.interrupted = True
        try:
            await follow(job, _news, lambda call: _InThread(call).future, _stop)
        except asyncio.CancelledError:
            if job.awaiting == 1:  # nobody else waits for it
                await _stop(job, interrupted=watch.interrupted)
            raise
        finally:
            job.awaiting -= 1


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _stop(job: Supervisor, *, interrupted: bool = False) -> None:
    """End the group; a second cancellation (a second Ctrl-C) cuts its grace period short.

    As does the first Ctrl-C if the group is being ended already, because a rank failed. One that
    follows on the heels of another is the same: some cancel again at every turn of the loop,
    until the task ends.
    """
    if interrupted and job.is_stopping:
        job.group.kill()
    stopping = _InThread(partial(job.stop, job.policy.grace_period, interrupted=interrupted))
    cancelled_at = time.monotonic()
    killed = False
    try:
        with _shielded_from_anyio():
            while not stopping.future.done():
                try:
                    await asyncio.shield(stopping.future)
                except asyncio.CancelledError:
                    if not killed and not is_echo(cancelled_at):
                        killed = True
                        job.group.kill()
                    cancelled_at = time.monotonic()
    except KeyboardInterrupt:  # asyncio raises the second one wherever it comes, also in here
        job.group.kill()
        stopping.wait()  # whoever is told that it is over must find nothing left
        raise


def _shielded_from_anyio() -> AbstractContextManager[Any]:
    """A block in which anyio, if that is in use, does not cancel us over and over.

    Not to have the group killed: it would only have this loop turn without pause.
    """
    anyio: Any = sys.modules.get("anyio")
    return contextlib.nullcontext() if anyio is None else anyio.CancelScope(shield=True)


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
            _thread.start_new_thread(self._run, (partial(call_unlisted, call),))
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
        due = job.next_due
        left = None if due is None else max(0.0, due - time.monotonic())
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


class Watch:
    """Tells whether an interrupt came since it began, and from then on of each that comes.

    An event loop turns Ctrl-C into a cancellation, which looks like any other; but workers that
    the terminal interrupted too are not to be hurried.
    """

    interrupted: bool = False
    tell: Callable[[], object] | None = None


# Those of the main thread, and the handler that was there before the first of them.
_watches: set[Watch] = set()
_handler: Any = None
_interrupted_at = float("-inf")


@contextmanager
def interrupts_watched() -> Iterator[Watch]:
    """In here, note an interrupt that a handler turns into something else."""
    global _handler, _interrupted_at  # a process has one handler
    watch = Watch()
    if not is_main_thread():
        yield watch  # handlers never run here
        return
    handler = signal.getsignal(signal.SIGINT)
    if not _watches and callable(handler):
        _handler, _interrupted_at = handler, float("-inf")
        signal.signal(signal.SIGINT, _note_interrupt)
    _watches.add(watch)
    try:
        yield watch
    finally:
        _watches.discard(watch)
        # Not if somebody has set another one meanwhile.
        if not _watches and signal.getsignal(signal.SIGINT) is _note_interrupt:
            signal.signal(signal.SIGINT, _handler)


def _note_interrupt(number: int, frame: Any) -> None:
    global _interrupted_at  # noqa: PLW0603 - likewise
    if is_echo(_interrupted_at):
        return
    _interrupted_at = time.monotonic()
    for watch in _watches:
        watch.interrupted = True
        if watch.tell is not None:
            watch.tell()
    _handler(number, frame)


@contextmanager
def _loop_woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """In here a signal wakes the loop; asyncio does it only for those that it was given."""
    pipe: SignalPipe | None = None
    if is_main_thread():
        # Held back, or an interrupt could come between a descriptor and whoever closes it. With
        # too many open files there is none, and a gap.
        with contextlib.suppress(OSError), handlers_held():
            pipe = SignalPipe()
    if pipe is None:
        yield
        return
    if pipe.before >= 0:  # the loop's own, or of somebody else whom we would keep from hearing
        signal.set_wakeup_fd(pipe.before)
    read, write = pipe.fileno(), pipe.write.fileno()
    loop.add_reader(read, pipe.take)
    try:
        yield
    finally:
        loop.remove_reader(read)
        current = signal.set_wakeup_fd(-1)
        if current != write:  # somebody's who came later
            signal.set_wakeup_fd(current)
        pipe.close()
