"""Holding Ctrl-C back while processes are being started, and noting it when others act on it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rankspawn.workers.wakeup import is_main_thread


class _Thread(threading.local):
    # This thread holds interrupts back which would otherwise reach it.
    holds_back = False


_thread = _Thread()


class _Held:
    """What the main thread holds back: the handler of interrupts, and whether one came.

    Blocking the signal is not enough, because the system then gives it to another thread, and
    Python runs the handler in this one all the same: between any two instructions, or in what
    runs at a fork, where exceptions are dropped.
    """

    handler: Any = None
    came = False


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Hold Ctrl-C back while workers are being started.

    Workers inherit this, until they can take an interrupt without a traceback; and this
    process gets it once somebody is there to stop them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    outer, _thread.holds_back = _thread.holds_back, signal.SIGINT not in before
    holds_handler = _hold_handler()
    try:
        yield
    finally:
        _thread.holds_back = outer
        if holds_handler:
            signal.signal(signal.SIGINT, _Held.handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if holds_handler:
            _deliver()


@contextmanager
def sigint_let_through() -> Iterator[None]:
    """Inside of that, for what may take long and starts no worker.

    Also for what changes the mask itself: multiprocessing leaves SIGINT unblocked after it has
    started its resource tracker.
    """
    let_through = [signal.SIGINT] if _thread.holds_back else []
    held = is_main_thread() and signal.getsignal(signal.SIGINT) is _note
    if held:
        signal.signal(signal.SIGINT, _Held.handler)
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, let_through)
    try:
        if held:
            _deliver()
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if held:
            _hold_handler()


def sigint_handler() -> Any:
    """What handles interrupts, also while they are held back."""
    handler = signal.getsignal(signal.SIGINT)
    return _Held.handler if handler is _note else handler


def _hold_handler() -> bool:
    handler = signal.getsignal(signal.SIGINT)
    if not is_main_thread() or not callable(handler) or handler is _note:
        return False
    _Held.handler = handler
    signal.signal(signal.SIGINT, _note)
    return True


def _note(*_: object) -> None:
    _Held.came = True


def _deliver() -> None:
    came, _Held.came = _Held.came, False
    if came:
        signal.raise_signal(signal.SIGINT)


@dataclass(eq=False)
class Watch:
    """Tells whether an interrupt came since it began."""

    interrupted: bool = False


# Those of the main thread, and the handler that was there before the first of them.
_watches: set[Watch] = set()
_handler: Any = None


@contextmanager
def interrupts_watched() -> Iterator[Watch]:
    """In here, note an interrupt that a handler turns into something else.

    asyncio makes it a cancellation of the main task, which looks like any other.
    """
    global _handler  # noqa: PLW0603 - a process has one handler
    watch = Watch()
    if not is_main_thread():
        yield watch  # handlers never run here
        return
    handler = signal.getsignal(signal.SIGINT)
    if not _watches and callable(handler):
        _handler = handler
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
    for watch in _watches:
        watch.interrupted = True
    _handler(number, frame)
