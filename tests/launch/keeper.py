"""Starts daemons, and ends them with all that they ever started when its input closes.

Run as a program: each line is a command, as JSON; the answer is its process id. Whatever a daemon
forks comes back here when its parent ends, so nothing gets away; and nothing outlives the tests,
also if these are killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal

_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    deaths, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([0, deaths], [], [])
        if deaths in ready:
            os.read(deaths, 4096)
            _reap()
        if 0 in ready:
            line = os.read(0, 65536)  # one at a time: the next one waits for the answer
            if not line:
                break
            print(_start(json.loads(line)), flush=True)
    _end_all()


def _start(command: list[str]) -> int:
    nothing = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
    said = (os.POSIX_SPAWN_OPEN, 1, "daemons.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return os.posix_spawnp(
        command[0],
        command,
        os.environ,
        file_actions=[nothing, said, (os.POSIX_SPAWN_DUP2, 1, 2)],
        setsid=True,
    )


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _end_all() -> None:
    """Kill our children, and what becomes our child by that, until there are none."""
    try:
        while True:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                for child in map(int, file.read().split()):
                    os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main()
