"""The engine ``Local``: agents as processes of this machine, for tests and CI.

All that is true of nodes is true of them but for the network: each has its own ranks, its own
guardian, and a channel that can break.

An agent is a fork of this process where that is safe and quick, so that it need not load again what
is loaded here, or else a fresh interpreter.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from rankspawn.cluster.engine import AGENT_MODULE, TIME_TO_KILL, AgentRequest, Node
from rankspawn.cpython import raw_signal
from rankspawn.descriptors import Owned
from rankspawn.option_values import read_count
from rankspawn.supervise.outcome import signal_name
from rankspawn.workers.popen import WorkerPopen, adopt_child, command
from rankspawn.workers.tracker import tracker_fd

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import NoReturn

# For an agent that is just ending to be gone.
_SECONDS_TO_END = 2.0
# A fork copies the tables of all pages: of this much memory (KiB) in less time than a fresh
# interpreter takes.
_QUICKLY_FORKED = 512 * 1024


class Local:
    """Agents on this machine.

    Args:
        nodes: How many.
    """

    name = "Local"
    # For a machine that is very busy.
    start_timeout: float | None = 120.0
    lease: float | None = None
    shares_files = True

    def __init__(self, nodes: int = 2) -> None:
        self._count = read_count("nodes", nodes, least=1)

    def __repr__(self) -> str:
        return f"Local(nodes={self._count})"

    def nodes(self) -> Sequence[Node]:
        """So many, with made-up names."""
        return [Node(f"local{number}") for number in range(self._count)]

    def start(self, request: AgentRequest) -> Sequence[LocalChannel]:
        """Start the agents."""
        by_fork = _is_fork_good()
        channels: list[LocalChannel] = []
        try:
            for node in self.nodes():
                channels.append(LocalChannel(node.host, request.grace, by_fork=by_fork))
        except BaseException:
            for channel in channels:
                channel.kill()
                channel.close()
            raise
        return channels


class LocalChannel:
    """A socket pair with an agent at its other end."""

    address: str | None = "127.0.0.1"

    def __init__(self, host: str, grace: float, *, by_fork: bool) -> None:
        self.host = host
        self._seconds_to_close = grace + TIME_TO_KILL
        ours, theirs = socket.socketpair()
        self._socket = Owned(ours.detach())
        try:
            with theirs:
                self._process: WorkerPopen = (_fork if by_fork else _execute)(host, theirs)
        except BaseException:
            self._socket.close()
            raise

    def read_fileno(self) -> int:
        """The socket."""
        return self._socket.fileno()

    def write_fileno(self) -> int:
        """The socket."""
        return self._socket.fileno()

    def why_lost(self) -> str:
        """How the agent ended."""
        pid, code = self._process.pid, self._process.wait(_SECONDS_TO_END)
        if code is None:
            return f"its agent (pid {pid}) has closed its channel, and runs on"
        if code < 0:
            return f"its agent (pid {pid}) was ended by {signal_name(-code)}"
        return f"its agent (pid {pid}) exited with code {code}"

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def close(self) -> None:
        """Close the socket, and reap the agent."""
        self._socket.close()
        if self._process.wait(self._seconds_to_close) is None:
            self._process.kill()
            self._process.wait()
        self._process.close()


def _execute(host: str, channel: socket.socket) -> WorkerPopen:
    """A fresh interpreter."""
    child = subprocess.Popen(
        command(AGENT_MODULE, [f"rankspawn-agent-{host}"]),
        stdin=channel.fileno(),
        stdout=channel.fileno(),
        # A Ctrl-C in the terminal is the driver's matter.
        start_new_session=True,
    )
    # It is reaped through WorkerPopen; this keeps subprocess from waiting for it as well.
    child.returncode = 0
    return adopt_child(child.pid)


def _is_fork_good() -> bool:
    """Whether agents can be copies of this process: it has one thread, and is not too large.

    A copy of one with more has locks that nobody will open again; frameworks and drivers of
    devices have threads of their own.
    """
    try:
        threads = len(os.listdir("/proc/self/task"))
    except OSError:
        return False
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return threads == 1 and usage.ru_maxrss < _QUICKLY_FORKED


def _fork(_: str, channel: socket.socket) -> WorkerPopen:
    """A copy of this process."""
    # What it needs is loaded before, once for all of them.
    import rankspawn.cluster.agent_loop

    assert rankspawn.cluster.agent_loop is not None
    number, tracker = channel.fileno(), tracker_fd()
    pid = os.fork()
    if pid == 0:
        _become_agent(number, tracker)
    return adopt_child(pid)


def _become_agent(channel: int, tracker: int) -> NoReturn:
    """Runs in the copy: be like a fresh process, but for what is loaded."""
    try:
        from rankspawn.cluster.agent import run

        os.setsid()
        _forget_signals()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)
        _close_all_but(channel, tracker)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - until the exit
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        run(channel, os.dup(channel))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def _forget_signals() -> None:
    """The program's handlers are not for this process."""
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        if callable(raw_signal.getsignal(number)):
            with suppress(OSError, ValueError):
                raw_signal.signal(number, raw_signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _close_all_but(*kept: int) -> None:
    """The program's files, pipes and sockets end when it closes them, whatever runs here."""
    start = 3
    for number in sorted(kept):
        os.closerange(start, number)
        start = number + 1
    os.closerange(start, 1 + max(map(int, os.listdir("/proc/self/fd"))))
