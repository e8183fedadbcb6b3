"""Ctrl-C and other signals to a process that supervises workers: what it does with them, when.

Python runs a handler in the main thread between any two instructions, and an interrupt raises
there. Each regime below is a time in which that would be wrong or too late:

- **held back** (``sigint_blocked``): workers are being started, and an exception would leave
  some that nobody knows. ``sigint_let_through`` is the exception within.
- **heard** (``woken_by_signals``, ``loop_woken_by_signals``, ``join_patiently``): a wait in the
  system, which a handler cannot end by itself.
- **watched** (``interrupts_watched``): an event loop turns Ctrl-C into a cancellation, which
  looks like any other; but workers that the terminal interrupted too are not to be hurried.
- **lent** (``LentInterrupts``): Ctrl-C is meant for the debugger of one rank.
- **noted** (``Signals``): the launcher obeys no signal at once; its agent does, in order.

A worker cannot afford this module. It inherits interrupts blocked and takes them once it can
report (``child.work``), or never if another rank is debugged; the fork server ignores them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress

from rankspawn.descriptors import Owned

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import asyncio
    import selectors
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any

# A lock has no descriptor to watch beside it, so who waits for one looks up this often.
_LOOK_UP_SECONDS = 0.5
# Two interrupts within this time mean the whole group, also if one rank is debugged.
_TWICE_SECONDS = 2.0
# Ctrl-C, a scheduler or a container's end, a terminal that was closed.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Said again, these two mean "at once". A closing terminal says SIGHUP twice by itself.
_INSISTING = (signal.SIGINT, signal.SIGTERM)
# Seconds in which the same signal again is the same request. `timeout` sends its signal to its
# child and then to their process group; some wrappers pass on a Ctrl-C that the terminal has
# sent to all of them. Nobody presses a key twice that fast.
_ECHO = 0.2
# What schedulers send ahead of the end, and programs have handlers for.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


def is_main_thread() -> bool:
    """Whether handlers of signals run in this thread."""
    return threading.get_ident() == threading.main_thread().ident


# Held back:
class _Thread(threading.local):
    # This thread holds interrupts back which would otherwise reach it.
    holds_back = False


_thread = _Thread()


class _Held:
    """What the main thread holds back: the handler of interrupts, and whether one came.

    Blocking the signal is not enough: the system then gives it to another thread, and Python runs
    the handler in this one all the same, also in what runs at a fork, where exceptions are lost.
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

    And for what changes the mask itself, as the start of multiprocessing's resource tracker does.
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


# Heard:
class _SignalPipe:
    """Python's wakeup descriptor, readable once a signal with a handler came.

    A signal between Python's last instruction and the system call that waits is not acted on until
    that call returns; nor is one that the kernel gives to another thread. Such a Ctrl-C would
    seem to be lost, did the wait not watch this, too.

    No :class:`~rankspawn.descriptors.Waker`, because Python writes one byte for each signal, its
    number, which an eventfd does not take; and it can be passed on.
    """

    __slots__ = ("_read", "before", "write")

    def __init__(self) -> None:
        self._read, self.write = map(Owned, os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
        # For whoever made this one to restore.
        self.before = signal.set_wakeup_fd(self.write.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._read.fileno()

    def take(self) -> bytes:
        """The numbers of the signals that came, and make it unreadable."""
        with suppress(BlockingIOError, ValueError):  # there is none; closed in a forked child
            return os.read(self._read.fileno(), 4096)
        return b""

    def close(self) -> None:
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
    pipe: _SignalPipe | None = None
    try:
        with suppress(OSError):  # too many open files: then with the gap
            pipe = _SignalPipe()
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


@contextmanager
def loop_woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """In here, the same for an event loop; asyncio itself does it for signals that it was given."""
    pipe: _SignalPipe | None = None
    if is_main_thread():
        with suppress(OSError):  # too many open files: then with the gap
            pipe = _SignalPipe()
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


# Watched:
class Watch:
    """Tells whether an interrupt came since it began."""

    interrupted = False


# Those of the main thread, and the handler that was there before the first of them.
_watches: set[Watch] = set()
_handler: Any = None


@contextmanager
def interrupts_watched() -> Iterator[Watch]:
    """In here, note an interrupt that a handler turns into something else."""
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


# Lent:
class LentInterrupts:
    """Leaves a single Ctrl-C to a rank that has the terminal, where all of the group get it.

    Args:
        is_taken: Whether that rank is still there to take it.
    """

    def __init__(self, is_taken: Callable[[], bool]) -> None:
        self._is_taken = is_taken
        self._last: float | None = None

    @contextmanager
    def lent(self) -> Iterator[None]:
        """In here a single Ctrl-C is not for us; a handler that is not Python's own stays."""
        before = signal.getsignal(signal.SIGINT)
        if not is_main_thread() or before is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        last, self._last = self._last, time.monotonic()
        is_second = last is not None and self._last - last < _TWICE_SECONDS
        if is_second or not self._is_taken():
            signal.default_int_handler(number, frame)


# Noted:
class ImpatientError(BaseException):
    """Somebody who asked us to end asks again: not an error that anybody should handle."""


class Signals:
    """What the launcher received, with a descriptor that becomes readable when something was.

    A signal that is ignored when we start stays so, for ``nohup`` and a shell's background jobs.
    Programs that are executed have the default actions, or ignore what we ignore.

    Attributes:
        ending: The first signal that asks us to end, if there was one.
    """

    def __init__(self) -> None:
        self.ending: int | None = None
        self._asked_at = 0.0
        self._to_pass_on: list[int] = []
        self._raises = False
        self._is_asked_again = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Signals:
        self._pipe = _SignalPipe()
        for number in (*ENDING, *PASSED_ON):
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

    @contextmanager
    def impatient(self) -> Iterator[None]:
        """In here a further request to end raises :class:`ImpatientError`, once.

        One that came since the first, but before this, raises at once.
        """
        self._raises = True
        try:
            if self._is_asked_again:
                self._raise()
            yield
        finally:
            self._raises = False

    def _note(self, number: int, _: FrameType | None) -> None:
        if number in PASSED_ON:
            self._to_pass_on.append(number)
            return
        now = time.monotonic()
        is_first = self.ending is None
        if is_first:
            self.ending, self._asked_at = number, now
        elif number == self.ending and now < self._asked_at + _ECHO:
            return
        if number in _INSISTING and self._raises:
            self._raise()
        elif number in _INSISTING and not is_first:
            self._is_asked_again = True

    def _raise(self) -> None:
        self._raises = self._is_asked_again = False
        raise ImpatientError
