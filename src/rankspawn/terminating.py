"""SIGTERM to a program that waits for its ranks: passed on, and died of once they have ended.

Without a handler the system ends the program at once, and the ranks could not be waited for; as the
first process of a container, it would not even notice. A program that has a handler of its own
decides itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

from rankspawn.handlers import Temporary, handled_where_unhandled, is_echo

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import FrameType
    from typing import NoReturn

    from rankspawn.supervise.group import Group


class TerminatedError(BaseException):
    """Somebody wants this program to end; it is never seen outside."""


class _PassedOn(Temporary):
    """The handler in these blocks."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._came = float("-inf")

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as all
        if os.getpid() != self._pid:  # a copy that somebody forked meanwhile: it waits for nobody
            die()
        # `timeout` sends its signal to its child and then to their process group.
        if not is_echo(self._came):
            self._came = time.monotonic()
            raise TerminatedError


def sigterm_passed_on() -> AbstractContextManager[None]:
    """In here SIGTERM is an exception in the next wait, if the program has no handler for it."""
    return handled_where_unhandled(signal.SIGTERM, _PassedOn())


def ends_ranks(error: BaseException, group: Group) -> bool:
    """Whether the group ends with what waited for it: ranks of a detached job outlive that."""
    return not (isinstance(error, TerminatedError) and getattr(group, "outlives_driver", False))


def die() -> NoReturn:
    """End this process as SIGTERM does."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.kill(os.getpid(), signal.SIGTERM)
    # Still here: the first process of a container, to which the system does not send it.
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(128 + signal.SIGTERM)
