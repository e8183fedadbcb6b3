"""Holding Ctrl-C back while processes are being started, and only then."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Thread(threading.local):
    # This thread holds interrupts back which would otherwise reach it.
    holds_back = False


_thread = _Thread()


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Hold Ctrl-C back while workers are being started.

    Workers inherit this, until they can take an interrupt without a traceback; and this
    process gets it once somebody is there to stop them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    outer, _thread.holds_back = _thread.holds_back, signal.SIGINT not in before
    try:
        yield
    finally:
        _thread.holds_back = outer
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def sigint_let_through() -> Iterator[None]:
    """Inside of that, for what may take long and starts no worker.

    Also for what changes the mask itself: multiprocessing leaves SIGINT unblocked after it has
    started its resource tracker.
    """
    let_through = [signal.SIGINT] if _thread.holds_back else []
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, let_through)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
