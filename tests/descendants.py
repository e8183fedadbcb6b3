"""Children and grandchildren of workers, in every way to get away from one's parent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable

from tests.jobs import DEADLOCK


def start_descendants() -> dict[str, int]:
    """Start one of each kind; return their process ids."""
    return {
        "child": subprocess.Popen(["sleep", "1000"]).pid,
        "forked": _fork(_pause),
        "daemon": _double_fork(_close_all_and_pause),
        "executed daemon": _double_fork(lambda: os.execvp("sleep", ["sleep", "1000"])),
    }


def _fork(body: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(1)
    return pid


def _double_fork(body: Callable[[], object]) -> int:
    """The way of a daemon: another session, and a parent that is gone."""
    read, write = os.pipe()

    def middle() -> None:
        os.setsid()
        os.write(write, b"%d" % _fork(body))
        os._exit(0)

    os.waitpid(_fork(middle), 0)
    pid = int(os.read(read, 20))
    os.close(read)
    os.close(write)
    return pid


def _pause() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def _close_all_and_pause() -> None:
    os.closerange(0, 1000)
    _pause()


class Watched:
    """Processes that the test watches from outside; ends what is left of them."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pidfds = {pid: os.pidfd_open(pid) for pid in pids}

    def alive(self) -> list[int]:
        return [pid for pid, fd in self._pidfds.items() if not _is_gone(fd, 0)]

    def wait_gone(self) -> list[int]:
        """Wait until all are gone; those that are not are returned."""
        deadline = time.monotonic() + DEADLOCK
        for fd in self._pidfds.values():
            _is_gone(fd, max(0.0, deadline - time.monotonic()))
        return self.alive()

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._pidfds.values():
            if not _is_gone(fd, 0):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)


def _is_gone(pidfd: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
