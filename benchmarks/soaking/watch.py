"""A program under watch: all that it leaves is found, whether it carries a mark or not."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence

import psutil

_PR_SET_CHILD_SUBREAPER = 36

Program = subprocess.Popen[str]


def watched(
    command: Sequence[str], act: Callable[[Program], str], *, patience: float
) -> tuple[str, list[str]]:
    """What ``act`` says of a program, and what is left of it so many seconds after its end.

    What is left is ended. The program is started by a copy of this process which all its orphans
    come to, guardians as well; not by this process, where they would be taken for its own.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, json.dumps(_watch(command, act, patience)).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    verdict, left = json.loads(told or '["the watch itself failed", []]')
    return verdict, left


def _watch(
    command: Sequence[str], act: Callable[[Program], str], patience: float
) -> tuple[str, list[str]]:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            verdict = act(program)
        finally:
            if program.poll() is None:
                program.kill()
    try:
        deadline = time.monotonic() + patience
        while _reap() and time.monotonic() < deadline:
            time.sleep(0.02)
        return verdict, [_story(child) for child in psutil.Process().children(recursive=True)]
    finally:
        while _reap():
            _kill_children()


def _kill_children() -> None:
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGKILL)
    time.sleep(0.02)  # theirs are ours then


def _reap() -> bool:
    """Collect those that ended; say whether there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _story(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} ({process.status()}) {' '.join(process.cmdline())[-60:]}"
    except psutil.Error:
        return f"process {process.pid}"
