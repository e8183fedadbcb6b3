"""The engine ``Local``: agents as processes of this machine, for tests and CI.

All that is true of nodes is true of them but for the network: each has its own ranks, its own
guardian, and a channel that can break.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from rankspawn.cluster.engine import AGENT_MODULE, TIME_TO_KILL, AgentRequest, Node
from rankspawn.descriptors import Owned
from rankspawn.option_values import read_count
from rankspawn.supervise.outcome import signal_name
from rankspawn.workers.popen import command

# For an agent that is just ending to be gone.
_SECONDS_TO_END = 2.0


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
        channels: list[LocalChannel] = []
        try:
            for node in self.nodes():
                channels.append(LocalChannel(node.host, request.grace))
        except BaseException:
            for channel in channels:
                channel.kill()
                channel.close()
            raise
        return channels


class LocalChannel:
    """A socket pair with an agent at its other end."""

    address: str | None = "127.0.0.1"

    def __init__(self, host: str, grace: float) -> None:
        self.host = host
        self._seconds_to_close = grace + TIME_TO_KILL
        ours, theirs = socket.socketpair()
        self._socket = Owned(ours.detach())
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command(AGENT_MODULE, [f"rankspawn-agent-{host}"]),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    # A Ctrl-C in the terminal is the driver's matter.
                    start_new_session=True,
                )
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
        pid = self._process.pid
        try:
            code = self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return f"its agent (pid {pid}) has closed its channel, and runs on"
        if code < 0:
            return f"its agent (pid {pid}) was ended by {signal_name(-code)}"
        return f"its agent (pid {pid}) exited with code {code}"

    def kill(self) -> None:
        """SIGKILL."""
        with suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """Close the socket, and reap the agent."""
        self._socket.close()
        try:
            self._process.wait(self._seconds_to_close)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
