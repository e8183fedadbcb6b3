"""Processes that only sleep, to be ended: the least that a teardown can cost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.trials import meeting

_SLEEP = "import time; open({!r}, 'x').close(); time.sleep(1000)"
# They are asleep some time after they said that they are about to be.
_SETTLE_SECONDS = 0.5


def terminate_and_reap(start: Callable[[str], int], nprocs: int, folder: str) -> float:
    """Seconds from the first SIGTERM to the last status."""
    pids = [start(f"{folder}/ready-{number}") for number in range(nprocs)]
    meeting.wait_for_all(folder, nprocs)
    time.sleep(_SETTLE_SECONDS)
    return end_by_hand(pids)


def end_by_hand(pids: list[int]) -> float:
    """Seconds to signal these and to reap them, with nothing reported and nothing looked for."""
    before = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    for pid in pids:
        os.waitpid(pid, 0)
    return time.monotonic() - before


def fork_and_leave(nprocs: int) -> None:
    """The least that a fork can be: copies of this process that leave at once."""
    pids = []
    for _ in range(nprocs):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


def _start_fork(path: str) -> int:
    pid = os.fork()
    if pid == 0:
        Path(path).touch()
        while True:
            signal.pause()
    return pid


def _start_interpreter(path: str) -> int:
    one = subprocess.Popen([sys.executable, "-c", _SLEEP.format(path)])
    one.returncode = 0  # it is reaped above, and not by subprocess
    return one.pid


STARTERS = {"bare fork": _start_fork, "bare interpreters": _start_interpreter}
