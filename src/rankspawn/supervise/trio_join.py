"""As ``async_join`` for trio, which anyio may run on, too. Loaded where trio runs already."""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from rankspawn.cpython import call_unlisted
from rankspawn.supervise.async_join import follow, interrupts_watched

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rankspawn.supervise.async_join import Watch
    from rankspawn.supervise.group import Group
    from rankspawn.supervise.supervisor import Supervisor

# Not imported: there is no need for it where it does not run, nor for its types.
trio: Any = sys.modules.get("trio")


async def wait_until_finished(job: Supervisor) -> None:
    """Until there is an answer, with the loop running on; cancelling it stops the workers."""
    # An interrupt is raised in there where it waits, and nowhere else.
    await trio.lowlevel.enable_ki_protection(_wait_until_finished)(job)


async def _wait_until_finished(job: Supervisor) -> None:
    job.awaiting += 1
    with interrupts_watched() as watch:
        try:
            await follow(job, _news, lambda call: _InThread(call).wait(), partial(_stop, watch))
        except (trio.Cancelled, KeyboardInterrupt):
            if job.awaiting == 1:  # nobody else waits for it
                await _stop(watch, job)
            raise
        finally:
            job.awaiting -= 1


async def _news(job: Supervisor, group: Group) -> None:
    """Wait until something happened in the group, or to it, or its time is over."""
    token = trio.lowlevel.current_trio_token()
    due = job.next_due
    left = float("inf") if due is None else max(0.0, due - time.monotonic())
    scope = trio.CancelScope(deadline=trio.current_time() + left)

    def wake() -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(scope.cancel)

    group.listeners.add(wake)
    try:
        # A number of its own, because a loop has one reader per descriptor.
        fd = os.dup(group.fileno())
    except (OSError, ValueError):  # closed meanwhile
        group.listeners.discard(wake)
        return
    try:
        if not group.closed and not job.is_due(group):
            with scope:
                await trio.lowlevel.wait_readable(fd)
    finally:
        os.close(fd)
        group.listeners.discard(wake)


async def _stop(watch: Watch, job: Supervisor) -> None:
    """End the group; a second Ctrl-C cuts its grace period short.

    As does the first one if the group is being ended already. trio cancels once and for all.
    """
    interrupted = watch.interrupted
    if interrupted and job.is_stopping:
        job.group.kill()
    stopping = _InThread(partial(job.stop, job.policy.grace_period, interrupted=interrupted))
    token = trio.lowlevel.current_trio_token()
    # Not when it is raised: that is in the main task, which need not be this one.
    watch.tell = partial(token.run_sync_soon, job.group.kill)
    again: KeyboardInterrupt | None = None
    with trio.CancelScope(shield=True):
        while not stopping.done.is_set():
            try:
                await stopping.done.wait()
            except KeyboardInterrupt as error:
                again = error
    if again is not None and not interrupted:
        raise again


class _InThread:
    """A call in a thread of its own, with an event at its end.

    Not in one of trio's, of which there may be no more: see ``async_join``.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self.done = trio.Event()
        self._error: BaseException | None = None
        self._token = trio.lowlevel.current_trio_token()
        try:
            _thread.start_new_thread(self._run, (partial(call_unlisted, call),))
        except RuntimeError:  # no more threads for this user: then the loop has to wait
            self._run(call)

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as raised:  # whatever it is, it is for whoever awaits it
            self._error = raised
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.done.set)

    async def wait(self) -> None:
        """Until the call has ended; raises what it raised."""
        await self.done.wait()
        if self._error is not None:
            raise self._error
