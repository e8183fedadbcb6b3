"""The groups that nobody has joined when the program ends: each is brought to its end, and told.

As ``join`` would have done it: a group that failed, or whose time is over, is torn down, and all
others are waited for. Daemonic ones are stopped, as multiprocessing stops daemons. Nothing is
restarted. A program that nobody told of a failure does not end as if there had been none.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import selectors
import time
from collections.abc import Sequence
from contextlib import suppress

from rankspawn.descriptors import Waker
from rankspawn.handlers import handlers_held, handlers_let_through
from rankspawn.interrupts import woken_by_signals
from rankspawn.supervise.failures import describe_stacks

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.workers.running import SettledGroup

logger: logging.Logger = logging.getLogger(__name__)
# Of a large group a few are enough.
_MOST_NAMES = 4


def settle(groups: Sequence[SettledGroup]) -> None:
    """Wait for the groups, end those that have to be, and close all.

    Ctrl-C stops them, and a second one kills them.
    """
    with handlers_held():
        try:
            _wait_for(groups)
        except BaseException as error:
            _stop(groups, interrupted=isinstance(error, KeyboardInterrupt))
            raise


def _wait_for(groups: Sequence[SettledGroup]) -> None:
    left = list(groups)
    has_told = False
    while left:
        for group in [group for group in left if _is_due(group)]:
            _end(group, group.grace)
        left = [group for group in left if not group.closed]
        if left and not any(_is_due(group) for group in left):
            if not has_told:
                has_told = True
                _say_who_is_waited_for(left)
            _wait_for_news(left)


def _say_who_is_waited_for(groups: Sequence[SettledGroup]) -> None:
    parts = []
    for group in groups:
        left = [each for index, each in enumerate(group.processes) if not group.has_ended(index)]
        shown = ", ".join(f"rank {each.rank} (pid {each.popen.pid})" for each in left[:_MOST_NAMES])
        more = ", ..." if len(left) > _MOST_NAMES else ""
        parts.append(f"{shown}{more}" + (f" in {group.what}" if group.what else ""))
    logger.warning(
        "the program waits at its end for workers that nobody joined: %s; Ctrl-C stops them",
        "; ".join(parts),
    )


def _is_due(group: SettledGroup) -> bool:
    group.collect()
    has_failed = group.has_failed and (group.stops_on_failure or group.lost is not None)
    is_over = group.all_ended or has_failed or _is_overdue(group)
    return is_over or group.is_daemonic


def _is_overdue(group: SettledGroup) -> bool:
    return group.deadline is not None and time.monotonic() >= group.deadline


def _wait_for_news(groups: Sequence[SettledGroup]) -> None:
    """Block until something happens in one of the groups, or its time is over."""
    news = Waker()  # threads that still run may take note of it first
    deadlines = [group.deadline for group in groups if group.deadline is not None]
    left = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
    with selectors.DefaultSelector() as selector:
        try:
            selector.register(news, selectors.EVENT_READ)
            for group in groups:
                group.listeners.add(news.wake)
                if not group.closed:
                    selector.register(group.fileno(), selectors.EVENT_READ)
            with woken_by_signals(selector), handlers_let_through():
                selector.select(left)
        finally:
            for group in groups:
                group.listeners.discard(news.wake)
            news.close()


def _stop(groups: Sequence[SettledGroup], *, interrupted: bool) -> None:
    hurried = False
    for group in groups:
        try:
            _end(group, 0.0 if hurried else group.grace, interrupted=interrupted)
        except BaseException:  # asked again; the first exception is raised in the end
            hurried = True
            group.close()


def _end(group: SettledGroup, grace: float, *, interrupted: bool = False) -> None:
    """Stop what runs, say what went wrong, and close the group."""
    if group.closed:
        return
    told = []
    if not group.all_ended and not group.has_failed and _is_overdue(group):
        stacks = describe_stacks(group.stacks())
        told.append(f"the time is over, and nobody joined the group; it was stopped.\n{stacks}")
    group.stop(grace, interrupted=interrupted)
    for index, outcome in group.failures:
        text = group.report_of(index).text.rstrip() or f"exit code {outcome.exit_code}"
        told.append(f"rank {outcome.rank} failed, and nobody joined the group: {text}")
    group.close()
    for text in told:
        logger.error("%s", text)
    if told:
        _fail_at_the_end()


class _LastWord:
    """Ends the process with an exit code when Python takes its modules apart.

    What runs at exit can change that code no more; and it, and what the program has registered
    before, has run by then.
    """

    def __init__(self, code: int) -> None:
        self._code = code
        # Nothing can be imported any more when it is needed.
        self._leave, self._objects = os._exit, gc.get_objects

    def __del__(
        self,
        files: tuple[type, ...] = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom),
    ) -> None:
        for thing in self._objects():
            # Files that the program left open. Not isinstance: it asks objects for their class.
            if issubclass(type(thing), files):
                with suppress(Exception):
                    thing.flush()
        self._leave(self._code)


_last_word: _LastWord | None = None


def _fail_at_the_end() -> None:
    """Have the process end with 1; what it would end with otherwise, nobody can know here."""
    global _last_word  # noqa: PLW0603 - kept to the very end, which is its use
    if _last_word is None:
        _last_word = _LastWord(1)
