"""A started process: signalled and reaped through its pidfd.

The sentinel is a pidfd. multiprocessing's own is a pipe whose other end the worker's children
inherit, so it does not fire while one of them lives; and signals through a pidfd cannot hit a
stranger who got the same process id.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable

from rankspawn.descriptors import Owned

# What a process is said to have exited with if somebody else collected its status.
STATUS_LOST = 255


class WorkerPopen:
    """A started worker: our own child, or a fork server's, whose status the server tells."""

    def __init__(
        self, pid: int, *, pidfd: int = -1, status: Callable[[], int] | None = None
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.status_lost = False
        self._reaping = threading.Lock()
        try:
            self._pidfd = Owned(_open_child(pid) if pidfd < 0 else pidfd)
        except (ProcessLookupError, ChildProcessError):
            # It ended already, and the system or somebody else has collected its status.
            self._pidfd = Owned(os.eventfd(1, os.EFD_CLOEXEC))
            self.returncode, self.status_lost = STATUS_LOST, True
        self._collect_status = status or self._reap
        self.sentinel = self._pidfd.fileno()

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code, minus the number for a signal; None while it runs."""
        return self.wait(0.0 if flag & os.WNOHANG else None)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end, and reap; None if the time ran out first."""
        if self.returncode is None and is_readable(self.sentinel, timeout):
            with self._reaping:
                if self.returncode is None:
                    self.returncode = self._collect()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens if the process ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.sentinel, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def interrupt(self) -> None:
        """Send SIGINT."""
        self.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Let go of the descriptor."""
        self._pidfd.close()

    def _collect(self) -> int:
        try:
            return self._collect_status()
        except ChildProcessError:
            # SIGCHLD is ignored in this program, or something waited for every child.
            self.status_lost = True
            return STATUS_LOST

    def _reap(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def _open_child(pid: int) -> int:
    """A pidfd of a child of this process, not of a stranger who got its number meanwhile."""
    pidfd = os.pidfd_open(pid)
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except BaseException:
        os.close(pidfd)
        raise
    return pidfd


def adopt_child(pid: int) -> WorkerPopen:
    """Take charge of a process that was just started; if that fails, it is ended."""
    try:
        return WorkerPopen(pid)
    except BaseException:
        end_child(pid)
        raise


def end_child(pid: int) -> None:
    """Kill and reap a process that was just started."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def is_readable(fd: int, timeout: float | None) -> bool:
    """Wait until there is something to read, or the time is over."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if timeout is None else max(0.0, timeout) * 1000))
