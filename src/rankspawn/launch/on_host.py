"""``rankrun`` on a host, told by another one what to run: ``python -m rankspawn.launch.on_host``.

What it is told comes over its standard input, so that nobody else reads it; see ``host_jobs``. The
end of that input, or silence there, means that whoever started this is gone: the job is ended, as
by SIGTERM.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import threading
import time

from rankspawn.launch.host_jobs import LOST_SECONDS, Greeting, farewell
from rankspawn.plan.environ import TOKEN_VARIABLES

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# All hosts are told their jobs at once, when the slowest is there.
_PATIENCE = 120.0
# Seconds between the requests to a launcher whose job has nobody any more: the last is SIGKILL,
# which leaves its workers to their guardian.
_BETWEEN_REQUESTS = 5.0


class Input:
    """Lines from a descriptor, each within a time."""

    def __init__(self, fd: int) -> None:
        self._fd, self._rest = fd, b""

    def take(self, seconds: float) -> bytes | None:
        """The next line without its end; None if nobody is there any more."""
        while b"\n" not in self._rest:
            poller = select.poll()
            poller.register(self._fd, select.POLLIN)
            if not poller.poll(seconds * 1000):
                return None
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return None
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def obey(given: Input, kill: Callable[[int], None]) -> None:
    """Take the signals that are said, until nobody is there any more."""
    while (line := given.take(LOST_SECONDS)) is not None:
        if line.isdigit():
            kill(int(line))


def run(job: dict[str, Any], given: Input) -> int:
    """Run a job to its end, and say the end; the exit code."""
    from rankspawn.launch.cli import main as rankrun

    for name in (*TOKEN_VARIABLES, "PADDLE_HOSTS", "PADDLE_SSH"):
        os.environ.pop(name, None)
    if job["token"]:
        os.environ[TOKEN_VARIABLES[0]] = job["token"]
    try:
        os.chdir(job["folder"])
    except OSError as error:
        os.write(2, f"rankrun: cannot run in {job['folder']}: {error.strerror}\n".encode())
        return 1
    grace = float(job["grace"])
    # Signals are for the main thread, which acts on them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Thread(
        target=_obey_to_the_end, args=(given, grace), name="rankspawn-input", daemon=True
    ).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = rankrun(job["argv"])
    try:
        os.write(1, farewell(job["key"], code))
    except OSError:  # nobody is there any more
        return code
    return code


def _obey_to_the_end(given: Input, grace: float) -> None:
    own = os.getpid()
    obey(given, lambda number: os.kill(own, number))
    os.kill(own, signal.SIGTERM)
    time.sleep(grace + _BETWEEN_REQUESTS)
    os.kill(own, signal.SIGTERM)
    time.sleep(_BETWEEN_REQUESTS)
    os.kill(own, signal.SIGKILL)


def main() -> int:
    """Say who is here, hear the job, and run it."""
    import rankspawn
    from rankspawn.cluster.node_ranks import own_address
    from rankspawn.machine import RealMachine
    from rankspawn.plan.ports import HeldPorts

    # Away from the number that workers inherit.
    fd = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 10)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    address = own_address(RealMachine())
    # Held to the end: the master can bind it all the same, and nobody else gets it.
    held = HeldPorts(1, "")
    try:
        version, python = rankspawn.__version__, sys.version.split()[0]
        os.write(1, Greeting(version, python, address, held.ports[0]).line())
        given = Input(fd)
        line = given.take(_PATIENCE)
        return 1 if line is None else run(json.loads(line), given)
    except BrokenPipeError:
        return 1
    finally:
        held.close()


if __name__ == "__main__":
    sys.exit(main())
