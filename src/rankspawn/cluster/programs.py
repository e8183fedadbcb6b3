"""A channel that is the standard input and output of a program: of ssh, of srun."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from rankspawn.descriptors import Owned

# How long a program that lost its agent may take to say why, and to go.
_TO_SAY_WHY = 2.0
# What a login shell, a scheduler and an interpreter say at most; the end of it counts.
_LAST_BYTES = 8192

# From the code that the program ended with, None if it runs, and its last words.
Explain = Callable[[int | None, str], str]


class SharedDeadline:
    """When all channels of a group must have ended: counts from the first one that is closed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._end: float | None = None

    def seconds_left(self) -> float:
        """How long one may still wait."""
        with self._lock:
            if self._end is None:
                self._end = time.monotonic() + self._seconds
            return max(0.0, self._end - time.monotonic())


class ProgramChannel:
    """A program that carries our bytes to an agent and back.

    Attributes:
        host: The node's name, for people.
        address: Where ranks on other nodes reach it; None to have its agent find out.
    """

    def __init__(
        self,
        host: str,
        command: Sequence[str],
        *,
        address: str | None = None,
        environ: Mapping[str, str] | None = None,
        deadline: SharedDeadline,
        explain: Explain,
    ) -> None:
        """Start the program; raises OSError if there is none."""
        self.host: str = host
        self.address: str | None = address
        self._deadline, self._explain = deadline, explain
        self._lock = threading.Lock()
        self._is_closed = False
        # A file and no pipe: nobody has to read it, and it may be held by one that stays on,
        # as a shared connection of ssh does.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the channel
        ours, theirs = socket.socketpair()
        # A process that is forked here must not keep an agent that this one has left.
        self._socket = Owned(ours.detach())
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._said,
                    env=environ,
                    # Ctrl-C in the terminal is for the driver, which stops the ranks by itself.
                    start_new_session=True,
                )
        except BaseException:
            self._socket.close()
            self._said.close()
            raise

    def read_fileno(self) -> int:
        """The socket."""
        return self._socket.fileno()

    def write_fileno(self) -> int:
        """The socket."""
        return self._socket.fileno()

    def why_lost(self) -> str:
        """What the program said at last."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TO_SAY_WHY)
        with self._lock:
            if self._is_closed:
                return ""
            size = os.fstat(self._said.fileno()).st_size
            words = os.pread(self._said.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES))
        return self._explain(self._process.poll(), words.decode(errors="replace").strip())

    def kill(self) -> None:
        """Cut the connection: the agent finds its input at an end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """Let go of the descriptors; wait for the end of the program, at last by force."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._socket.close()
        self._said.close()
        end(self._process, self._deadline.seconds_left())


def close_all(channels: Sequence[ProgramChannel]) -> None:
    """End those that were started before one could not be."""
    for channel in channels:
        channel.kill()
    for channel in channels:
        channel.close()


def end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Reap a program that is about to end; after these seconds by force."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
