"""A blocking wait of the main thread that no signal can slip past.

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

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator

# A lock has no descriptor to watch beside it, so who waits for one looks up this often.
_LOOK_UP_SECONDS = 0.5


@contextmanager
def woken_by_signals(selector: selectors.BaseSelector) -> Iterator[None]:
    """In here, a signal with a handler makes the selector return, if this is the main thread.

    Whoever has set a wakeup descriptor before (an event loop) is told the signals afterwards.
    """
    if threading.get_ident() != threading.main_thread().ident:
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
