"""When handlers of signals may run, and their exceptions interrupt what supervises workers.

Python runs a handler in the main thread between any two instructions, and what the handler raises
is raised there: in the middle of a start or of a close. So while a process has to do with workers,
there are two kinds of time:

- **held back** (``handlers_held``): workers are started, noted, reaped or let go of, and an
  exception would leave something that nobody knows. What comes is noted, and handled after it.
- **let through** (``handlers_let_through``): within that, a wait, or what may take long. Here, and
  nowhere else, does the exception of a handler leave a call.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager

from rankspawn.cpython import raw_signal

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any

# Seconds in which the same signal again is the same request. `timeout` sends its signal to its
# child and then to their process group; some wrappers pass on a Ctrl-C that the terminal has
# sent to all of them. Nobody who means it presses a key twice that fast.
_ECHO = 0.3


def is_main_thread() -> bool:
    """Whether handlers of signals run in this thread."""
    return threading.get_ident() == threading.main_thread().ident


def is_echo(first: float) -> bool:
    """Whether a signal that comes now is the one that came at that (monotonic) time, again."""
    return time.monotonic() < first + _ECHO


# Held back, and let through:
class _Held:
    """What the main thread does with signals that have a handler.

    Blocking them is not enough: the system then gives them to another thread, and Python runs
    the handlers in this one all the same, also in what runs at a fork, where exceptions are lost.
    """

    # How many blocks hold them back, one in the other.
    depth = 0
    # They are held back now: not let through.
    active = False
    # In this many of the blocks nothing lets them through.
    firm = 0
    # The numbers of those that came meanwhile.
    came: list[int] = []  # noqa: RUF012 - there is one of these
    interrupted_at = float("-inf")

    @classmethod
    def forget(cls) -> None:
        """Runs in a forked child, which may not even have this thread."""
        cls.depth, cls.firm, cls.active = 0, 0, False
        cls.came.clear()


os.register_at_fork(after_in_child=_Held.forget)


class Temporary:
    """A handler of ours, where the program has none: a forked worker does without it."""

    __slots__ = ()


class _Handler:
    """Stands in for a handler of the program, as long as something is held back."""

    __slots__ = ("handler",)

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if is_echo(_Held.interrupted_at):
                return
            _Held.interrupted_at = time.monotonic()
        if not _Held.active:
            _call(self.handler, number, frame)
        elif number not in _Held.came:
            _Held.came.append(number)


def _call(handler: Any, number: int, frame: FrameType | None) -> None:
    try:
        handler(number, frame)
    except BaseException:
        # Whatever follows is cleaning up, and is not to be interrupted in turn before it waits.
        _Held.active = _Held.depth > 0
        raise


def is_from_handler(error: BaseException) -> bool:
    """Whether a handler of a signal raised this in what was let through."""
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code is _call.__code__:
            return True
        entry = entry.tb_next
    return False


class handlers_held:
    """A block that no handler's exception leaves half done: they run after it.

    Or in a block within that lets them through, unless this one holds ``firmly``, which must not
    last. Of any other thread than the main one it means nothing.
    """

    __slots__ = ("_before", "_firm", "_is_main")

    def __init__(self, *, firmly: bool = False) -> None:
        self._firm = int(firmly)

    def __enter__(self) -> None:
        self._is_main = is_main_thread()
        if not self._is_main:
            return
        depth, firm = _Held.depth, _Held.firm
        # Values to go back to, not steps to take back: this may be interrupted itself.
        self._before = (depth, firm, _Held.active and depth > 0)
        try:
            _Held.depth, _Held.firm, _Held.active = depth + 1, firm + self._firm, True
            if not depth:
                # One that comes now is not about what was interrupted before.
                _Held.interrupted_at = float("-inf")
                _stand_in()
        except BaseException:  # of one for which nothing stood in yet
            self._leave()
            raise

    def __exit__(self, *_: object) -> None:
        if self._is_main:
            self._leave()

    def _leave(self) -> None:
        try:
            _Held.depth, _Held.firm, _Held.active = self._before
            _stand_back()
            _deliver()
        except BaseException:  # of the first that comes: the others are given back all the same
            _stand_back()
            _deliver()
            raise


class handlers_let_through:
    """A block in which handlers run at once, those first that were held back until here."""

    __slots__ = ("_closes",)

    def __enter__(self) -> None:
        self._closes = is_main_thread() and _Held.active and not _Held.firm
        if self._closes:
            _Held.active = False
            _deliver()

    def __exit__(self, *_: object) -> None:
        if self._closes:
            _Held.active = True
            _stand_in()  # also for what was set in here


def let_handlers_through() -> None:
    """Have those run that were held back until here, where they may be let through."""
    with handlers_let_through():
        pass


def _stand_in() -> None:
    """Have every handler in Python held back."""
    for number in range(1, signal.NSIG):
        handler = raw_signal.getsignal(number)
        if callable(handler) and type(handler) is not _Handler:
            raw_signal.signal(number, _Handler(handler))


def _stand_back() -> None:
    """Give all handlers back, if nothing is held back any more."""
    if not _Held.depth:
        for number in range(1, signal.NSIG):
            handler = raw_signal.getsignal(number)
            if type(handler) is _Handler:
                raw_signal.signal(number, handler.handler)


def _deliver() -> None:
    """Run the handlers of what came, each of them, whatever the ones before raise."""
    if _Held.came and not _Held.active:
        number = _Held.came.pop(0)
        try:
            handler = handler_of(number)
            if callable(handler):
                # Not raise_signal(): an event loop has heard of it when it came.
                _call(handler, number, sys._getframe())
        finally:
            _deliver()


def handler_of(number: int) -> Any:
    """What handles a signal, also while it is held back."""
    handler = signal.getsignal(number)
    return handler.handler if isinstance(handler, _Handler) else handler


def set_handler(number: int, handler: Any) -> None:
    """As ``signal.signal``; where signals are held back, this one is, too."""
    stands_in = callable(handler) and _Held.depth > 0
    signal.signal(number, _Handler(handler) if stands_in else handler)


@contextmanager
def handled_where_unhandled(number: int, handler: Any) -> Iterator[None]:
    """In here this handler is there for a signal, if the program has none for it."""
    if not is_main_thread() or handler_of(number) is not signal.SIG_DFL:
        yield
        return
    set_handler(number, handler)
    try:
        yield
    finally:
        if handler_of(number) is handler:  # else the program has set one of its own
            set_handler(number, signal.SIG_DFL)


def handlers_to_inherit() -> dict[int, Any]:
    """The program's handlers that others stand in for, by number; for a forked worker."""
    handlers = {number: raw_signal.getsignal(number) for number in range(1, signal.NSIG)}
    own = {n: each.handler for n, each in handlers.items() if isinstance(each, _Handler)}
    return {n: raw_signal.SIG_DFL if isinstance(h, Temporary) else h for n, h in own.items()}
