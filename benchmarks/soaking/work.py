"""What the workers of the soak run."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import rankspawn

# A group that takes longer than this hangs; the slowest round takes a second or two.
HANG_SECONDS = 60.0
GRACE_SECONDS = 1.0
HUGE = 80_000_000
_PR_SET_DUMPABLE = 4


def work(which: int, fault: str, leave_children: bool) -> object:
    """Runs in the worker."""
    if leave_children:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    if fault in ("none", "huge"):
        return b"x" * HUGE if fault == "huge" else rankspawn.get_rank()
    if rankspawn.get_rank() == which:
        fail(fault)
    return wait()


def wait() -> NoReturn:
    """Runs in the worker, until it is ended."""
    while True:
        time.sleep(0.2)  # not pause(), which a handler that ran just before it does not end


def fail(fault: str) -> None:
    """Runs in the worker."""
    if fault == "raise":
        raise ValueError("on purpose" * 20_000)
    if fault == "exit":
        sys.exit(7)
    if fault == "vanish":
        os._exit(0)
    if fault == "stop":  # ignores SIGTERM, then stops; another one ends the group
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV}[fault])


def hide_and_wait(folder: str, hides: bool) -> None:
    """Runs in the worker: nobody without privileges may look at it, nor at its child."""
    if hides:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)
    if os.fork():
        Path(folder, str(rankspawn.get_rank())).touch()
    wait()
