"""Signals to a process that supervises workers: how waits hear of them, and who obeys.

- **blocked** (``sigint_blocked``): workers are being started, and inherit Ctrl-C blocked.
  ``sigint_let_through`` is the exception within.
- **heard** (``woken_by_signals``, ``join_patiently``, ``patiently``): a wait in the system, which a
  handler cannot end by itself.
- **noted** (``Signals``): the launcher obeys no signal at once; its agent does, in order.

When handlers may run at all is in ``handlers.py``, what is special about an event loop in
``supervise/async_join.py``, about a lent terminal in ``view/terminal.py``. A worker cannot
afford any of these. It inherits interrupts blocked and takes them once it can report
(``child.work``), or never if another rank is debugged; the fork server ignores them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress

from rankspawn.descriptors import Owned
from rankspawn.handlers import (
    handlers_held,
    handlers_let_through,
    is_echo,
    is_main_thread,
    let_handlers_through,
)
from rankspawn.portable import open_pipe

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable, Iterator
    from types import FrameType

# A lock has no descriptor to watch beside it, so who waits for one looks up this often.
_LOOK_UP_SECONDS = 0.5
# Ctrl-C, a scheduler or a container's end, a terminal that was closed.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Said again, these two mean "at once". A closing terminal says SIGHUP twice by itself.
_INSISTING = (signal.SIGINT, signal.SIGTERM)
# What schedulers send ahead of the end, and programs have handlers for.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


# Blocked:
class _Thread(threading.local):
    # This thread blocks interrupts which would otherwise reach it.
    blocks = False


_thread = _Thread()


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Hold signals back while workers are being started, and have these inherit Ctrl-C blocked.

    Until they can take an interrupt without a traceback; and this process gets it once somebody
    is there to stop them.
    """
    with handlers_held():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        outer, _thread.blocks = _thread.blocks, signal.SIGINT not in before
        try:
            yield
        finally:
            _thread.blocks = outer
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class sigint_let_through(handlers_let_through):
    """Inside of that, for what may take long and starts no worker.

    And for what changes the mask itself, as the start of multiprocessing's resource tracker does.
    """

    # No generator: one that an exception leaves on its way out is finished when it is collected,
    # which may be long after the block around it.

    __slots__ = ("_mask",)

    def __enter__(self) -> None:
        let_through = [signal.SIGINT] if _thread.blocks else []
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, let_through)
        super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


# Heard:
class SignalPipe:
    """Python's wakeup descriptor, readable once a signal with a handler came.

    A signal between Python's last instruction and the system call that waits is not acted on until
    that call returns; nor is one that the kernel gives to another thread. Such a Ctrl-C would
    seem to be lost, did the wait not watch this, too.

    No :class:`~rankspawn.descriptors.Waker`, because Python writes one byte for each signal, its
    number, which an eventfd does not take; and it can be passed on.
    """

    __slots__ = ("_read", "before", "write")

    def __init__(self) -> None:
        read, write = open_pipe()
        self._read = Owned(read)
        self.write: Owned = Owned(write)
        # For whoever made this one to restore.
        self.before: int = signal.set_wakeup_fd(self.write.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        """Readable once a signal came."""
        return self._read.fileno()

    def take(self) -> bytes:
        """The numbers of the signals that came, and make it unreadable."""
        with suppress(BlockingIOError, ValueError):  # there is none; closed in a forked child
            return os.read(self._read.fileno(), 4096)
        return b""

    def close(self) -> None:
        """Let go of both ends."""
        self._read.close()
        self.write.close()


@contextmanager
def woken_by_signals(selector: selectors.BaseSelector) -> Iterator[None]:
    """In here, a signal with a handler makes the selector return, if this is the main thread.

    Whoever has set a wakeup descriptor before (an event loop) is told the signals afterwards.
    """
    if not is_main_thread():
        yield  # handlers never run here
        return
    pipe: SignalPipe | None = None
    try:
        with suppress(OSError):  # too many open files: then with the gap
            pipe = SignalPipe()
            selector.register(pipe.fileno(), 1)  # EVENT_READ
        yield
    finally:
        if pipe is not None:
            signal.set_wakeup_fd(pipe.before)
            received = pipe.take()
            if received and pipe.before >= 0:
                with suppress(OSError):  # nobody is left to tell
                    os.write(pipe.before, received)
            with suppress(KeyError, ValueError):  # was never registered, or all is closed
                selector.unregister(pipe.fileno())
            pipe.close()


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
        let_handlers_through()


def wait_patiently(changed: threading.Condition, seconds: float) -> None:
    """Wait for a notification, or until it is time to let signals through.

    Which is not done in the wait: an exception in the middle of it would leave the lock anyhow.
    """
    changed.wait(min(seconds, _LOOK_UP_SECONDS) if is_main_thread() else seconds)


@contextmanager
def patiently(lock: threading.RLock) -> Iterator[None]:
    """A block that has the lock, waited for if need be for ever, but with every signal heard.

    Signals are held back in it, so that none leaves it, or the wait, with the lock taken.
    """
    with handlers_held():
        while not lock.acquire(timeout=_LOOK_UP_SECONDS):
            let_handlers_through()
        try:
            yield
        finally:
            lock.release()


# Noted:
class ImpatientError(BaseException):
    """Somebody who asked us to end asks again: not an error that anybody should handle."""


class Signals:
    """What the launcher received, with a descriptor that becomes readable when something was.

    A signal that is ignored when we start stays so, for ``nohup`` and a shell's background jobs.
    Programs that are executed have the default actions, or ignore what we ignore.

    Attributes:
        ending: The first signal that asks us to end, if there was one.
        takes_interrupt: Asked at each SIGINT whether it is ours, where the terminal is lent.
    """

    def __init__(self) -> None:
        self.ending: int | None = None
        self.takes_interrupt: Callable[[], bool] | None = None
        self._asks_where = False
        self._asked_at = 0.0
        self._to_pass_on: list[int] = []
        self._raises = self._raises_at_first = self._is_asked_again = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Signals:
        self._pipe = SignalPipe()
        for number in (*ENDING, *PASSED_ON, signal.SIGQUIT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        # Without it a system collects the status of our workers before we can.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *_: object) -> None:
        if self.ending is not None:
            # Else a request while Python shuts down, which gives up all handlers early, would
            # end the process by its signal, in place of the exit code.
            self._before |= dict.fromkeys(self._before.keys() & {*ENDING}, signal.SIG_IGN)
        for number, action in self._before.items():
            signal.signal(number, action)  # type: ignore[arg-type]  # what signal() returned
        signal.set_wakeup_fd(self._pipe.before)
        self._pipe.close()

    def fileno(self) -> int:
        """Readable when a signal was received that nobody has looked at."""
        return self._pipe.fileno()

    def clear(self) -> None:
        """Make :meth:`fileno` unreadable again; what was received stays."""
        while self._pipe.take():
            pass

    def take_to_pass_on(self) -> list[int]:
        """Signals that are meant for the workers, since the last call."""
        taken, self._to_pass_on = self._to_pass_on, []
        return taken

    def take_quit(self) -> bool:
        """Whether somebody has asked with SIGQUIT where the workers are, since the last call."""
        taken, self._asks_where = self._asks_where, False
        return taken

    @contextmanager
    def quit_is_ours(self) -> Iterator[None]:
        """In here programs are started that Ctrl and backslash in our terminal must not end.

        What is executed either has a signal's default action or ignores it, as a shell's background
        jobs do this one. Without a terminal nobody presses keys, and they have the default.
        """
        if signal.SIGQUIT not in self._before or not _has_terminal():
            yield
            return
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        try:
            yield
        finally:
            signal.signal(signal.SIGQUIT, self._note)

    @contextmanager
    def impatient(self, *, at_first: bool = False) -> Iterator[None]:
        """In here a further request to end raises :class:`ImpatientError`, once.

        One that came since the first, but before this, raises at once. The first does only if
        ``at_first``: a scheduler sends it to all launchers, also those that stop workers already.
        """
        self._raises, self._raises_at_first = True, at_first
        try:
            if self._is_asked_again:
                self._raise()
            yield
        finally:
            self._raises = self._raises_at_first = False

    def _note(self, number: int, _: FrameType | None) -> None:
        if number in PASSED_ON:
            self._to_pass_on.append(number)
            return
        if number == signal.SIGQUIT:
            self._asks_where = True
            return
        if number == signal.SIGINT and self.takes_interrupt and not self.takes_interrupt():
            return
        now = time.monotonic()
        is_first = self.ending is None
        if is_first:
            self.ending, self._asked_at = number, now
        elif number == self.ending and is_echo(self._asked_at):
            return
        if number in _INSISTING and (self._raises_at_first or not is_first):
            if self._raises:
                self._raise()
            self._is_asked_again = not is_first

    def _raise(self) -> None:
        self._raises = self._is_asked_again = False
        raise ImpatientError


def _has_terminal() -> bool:
    """Whether a terminal controls this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
