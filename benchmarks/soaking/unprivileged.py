"""Programs of a user without privileges: workers that nobody may look at, no process to spare."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from pathlib import Path

import psutil
from soaking.work import GRACE_SECONDS, HANG_SECONDS, hide_and_wait, work

import rankspawn


def wait_to_be_killed(method: str, nprocs: int, hides: bool, folder: str) -> None:
    """Run as a program of its own; says when its workers are there, then what it was asked."""
    context = rankspawn.spawn(
        hide_and_wait,
        args=(folder, hides),
        nprocs=nprocs,
        backend="gloo",
        start_method=method,
        join=False,
        grace_period=GRACE_SECONDS,
    )
    while len(os.listdir(folder)) < nprocs:
        time.sleep(0.01)
    hidden = [pid for pid in context.pids() if not _is_readable(pid)]
    print("ready" if len(hidden) == (nprocs if hides else 0) else "not hidden", flush=True)
    input()
    _limit_processes()
    try:
        if os.fork() == 0:
            os._exit(0)
        print("not limited", flush=True)
    except BlockingIOError:
        print("limited", flush=True)
    while True:
        signal.pause()


def _limit_processes() -> None:
    """Nobody of this user can have another one; also not the guardian."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if process.uids().real == os.getuid():
                resource.prlimit(process.pid, resource.RLIMIT_NPROC, (1, 1))


def _is_readable(pid: int) -> bool:
    try:
        Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return False
    return True


def start_within_a_limit(method: str, nprocs: int, processes: int) -> None:
    """Run as a program of its own, with so many processes allowed: all of them run, or none."""
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    try:
        results = rankspawn.spawn(
            work,
            args=(-1, "none", False),
            nprocs=nprocs,
            backend="gloo",
            start_method=method,
            grace_period=GRACE_SECONDS,
            timeout=HANG_SECONDS / 2,
        ).results()
    except OSError as error:
        print("refused" if isinstance(error, BlockingIOError) else f"refused: {error!r}"[:300])
    except Exception as error:
        print(f"{type(error).__name__}: {str(error)[:300]}")
    else:
        print("ran" if results == list(range(nprocs)) else f"results {results}")
