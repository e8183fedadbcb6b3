"""Signals to the launcher: noted, so that the workers are ended first and in order."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager

from rankspawn.descriptors import Owned

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# Ctrl-C, a scheduler or a container's end, a terminal that was closed.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Said again, these two mean "at once". A closing terminal says SIGHUP twice by itself.
_INSISTING = (signal.SIGINT, signal.SIGTERM)
# Seconds in which the same signal again is the same request. `timeout` sends its signal to its
# child and then to the whole process group, which the child belongs to; some wrappers pass on a
# Ctrl-C that the terminal has sent to all of them. Nobody presses a key twice that fast.
_ECHO = 0.2
# What schedulers send ahead of the end, and programs have handlers for.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class ImpatientError(BaseException):
    """Somebody who asked us to end asks again: not an error that anybody should handle."""


class Signals:
    """What was received, with a descriptor that becomes readable when something was.

    A signal that is ignored when we start stays ignored: that is how ``nohup`` and a shell's
    background jobs want it. Programs that are executed have the default actions, or ignore what
    we ignore.

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
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._read, self._write = Owned(read), Owned(write)
        self._wakeup_before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (*ENDING, *PASSED_ON):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        # Without it a system collects the status of our workers before we can.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *_: object) -> None:
        for number, action in self._before.items():
            signal.signal(number, action)  # type: ignore[arg-type]  # what signal() returned
        signal.set_wakeup_fd(self._wakeup_before)
        self._read.close()
        self._write.close()

    def fileno(self) -> int:
        """Readable when a signal was received that nobody has looked at."""
        return self._read.fileno()

    def clear(self) -> None:
        """Make :meth:`fileno` unreadable again; what was received stays."""
        try:
            while os.read(self._read.fileno(), 512):
                pass
        except BlockingIOError:
            return

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
