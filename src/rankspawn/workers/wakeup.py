"""Waits of the main thread that no signal can slip past.

Python runs a signal's handler between two of its own instructions. A signal that comes after
the last of these, but before the system call that waits, is noted and not acted on until that
call returns; so is one that the kernel gives to another thread. A Ctrl-C in that moment would
seem to be lost. Python's wakeup descriptor closes the gap: the wait watches it, too.
"""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from contextlib import contextmanager, suppress

from rankspawn.descriptors import Owned

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

# A lock has no descriptor to watch beside it, so who waits for one looks up this often.
_LOOK_UP_SECONDS = 0.5


@contextmanager
def woken_by_signals(selector: selectors.BaseSelector) -> Iterator[None]:
    """In here, a signal with a handler makes the selector return, if this is the main thread.

    Whoever has set a wakeup descriptor before (an event loop) is told the signals afterwards.
    """
    if not is_main_thread():
        yield  # handlers never run here
        return
    read = write = before = -1
    try:
        with suppress(OSError):  # too many open files: then with the gap
            read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            selector.register(read, selectors.EVENT_READ)
        yield
    finally:
        if read >= 0:
            signal.set_wakeup_fd(before)
            _pass_on(read, before)
            with suppress(KeyError, ValueError):  # was never registered, or all is closed
                selector.unregister(read)
            os.close(read)
            os.close(write)


@contextmanager
def loop_woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """In here, the same for an event loop; asyncio itself does it for signals that it was given."""
    pipe: list[Owned] = []
    if is_main_thread():
        with suppress(OSError):  # too many open files: then with the gap
            pipe = [Owned(fd) for fd in os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)]
    if not pipe:
        yield
        return
    read, write = (one.fileno() for one in pipe)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    if before >= 0:  # the loop has one already, or somebody else whom we would keep from hearing
        signal.set_wakeup_fd(before)
    loop.add_reader(read, _pass_on, read, -1)
    try:
        yield
    finally:
        loop.remove_reader(read)
        current = signal.set_wakeup_fd(-1)
        if current != write:  # somebody's who came later
            signal.set_wakeup_fd(current)
        for one in pipe:
            one.close()


def is_main_thread() -> bool:
    """Whether handlers of signals run in this thread."""
    return threading.get_ident() == threading.main_thread().ident


def _pass_on(read: int, write: int) -> None:
    with suppress(OSError):  # there is nothing, or nobody to tell
        received = os.read(read, 4096)
        if write >= 0:
            os.write(write, received)


def join_patiently(thread: threading.Thread, timeout: float | None) -> None:
    """Wait for the end of a thread, if need be for ever, but hear every signal."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while thread.is_alive():
        left = _LOOK_UP_SECONDS
        if deadline is not None:
            left = min(left, deadline - time.monotonic())
        if left <= 0:
            return
        thread.join(left)
