"""The agent of one node: ``python -m rankspawn.cluster.agent``, started by an engine.

It reads frames from its standard input, runs a group of local ranks, and says on its standard
output what becomes of them. The end of its input is the end of the driver: the ranks are
stopped, with their grace period.
"""

from __future__ import annotations

import os
import sys

from rankspawn.cluster.frames import GREETING, Outbox

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import NoReturn

    from rankspawn.cluster.frames import Header


def main() -> NoReturn:
    """Run the agent on its standard input and output."""
    run(*take_channel())


def take_channel() -> tuple[int, int]:
    """The channel's descriptors, moved away: what else reads or prints here must not hit them."""
    import fcntl

    read, write = (fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10) for number in (0, 1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return read, write


def run(read: int, write: int) -> NoReturn:
    """Do what the driver says, until it is gone or this agent is told to end."""
    code = 1
    try:
        for fd in (read, write):
            os.set_blocking(fd, False)
        outbox = Outbox()
        outbox.put_raw(GREETING)
        outbox.put(greet())
        outbox.write_to(write)
        # Takes long to load; the greeting is on its way meanwhile.
        from rankspawn.cluster.agent_loop import AgentLoop

        code = AgentLoop(read, write, outbox).run()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def greet() -> Header:
    """The first frame: who and where this agent is."""
    import rankspawn

    return {
        "is": "hello",
        "version": rankspawn.__version__,
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "clock": clock_name(),
    }


def clock_name() -> str:
    """What two processes have in common whose monotonic clocks are the same one."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return ""


if __name__ == "__main__":
    main()
