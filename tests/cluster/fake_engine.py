"""An engine whose agents are threads of the test, each with a channel that breaks as asked for.

What the driver does is real: its thread, its channels, its group, the context over it. What an
agent would do is said by :class:`tests.cluster.pure.simulated.SimulatedAgent`; its ranks return
their number, unless a script says otherwise.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import rankspawn
from rankspawn.cluster import AgentRequest, Node
from rankspawn.cluster.agent import clock_name
from rankspawn.cluster.frames import GREETING, FrameReader, encode
from rankspawn.cluster.terms import Send
from rankspawn.descriptors import Owned
from tests.cluster.pure.simulated import Header, SimulatedAgent, outcome
from tests.jobs import DEADLOCK

# What an agent does at a moment: after it heard a word ("prepare", "start", …), or at its "begin".
Script = Callable[["FakeAgent"], None]


class Cut(Exception):
    """The channel is gone."""


class FakeAgent:
    """One agent: a thread and its end of a channel."""

    def __init__(self, number: int, engine: FakeEngine) -> None:
        self.number = number
        self.engine = engine
        self.is_cut = threading.Event()
        ours, self.socket = socket.socketpair()
        self.channel = FakeChannel(self, Owned(ours.detach()))
        greeting = {
            "version": rankspawn.__version__,
            "python": sys.version.split()[0],
            "clock": clock_name(),
        }
        self.simulated = SimulatedAgent(number, hello=greeting)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def says(self, header: Header, blob: bytes = b"") -> None:
        self.writes(encode(header, blob) + blob)

    def writes(self, data: bytes) -> None:
        """All of it, in pieces as small as the engine's."""
        size = self.engine.piece or len(data) or 1
        for start in range(0, len(data), size):
            try:
                self.socket.sendall(data[start : start + size])
            except OSError:
                raise Cut from None

    def returns(self, local: int, *, keep: int = 0) -> None:
        """A rank returns its place; the last bytes of its result are kept back."""
        data = pickle.dumps((self.number, local))
        self.says(outcome(local, when=time.monotonic_ns(), pieces=[len(data)]))
        sent = data[: len(data) - keep]
        self.says({"is": "data", "index": local, "offset": 0}, sent)

    def fails(self, local: int, when: int) -> None:
        text = b"Traceback (most recent call last):\nValueError: on purpose\n"
        self.says({**outcome(local, "RAISED", when=when), "text": len(text)}, text)

    def _run(self) -> None:
        try:
            self._serve()
        except Cut:
            pass
        finally:
            self.socket.close()

    def _serve(self) -> None:
        self._act("begin")
        self.writes(GREETING)
        self.says(self.simulated.greeting)
        reader = FrameReader(is_greeted=True)
        while data := self._read():
            for header, blob in reader.feed(data):
                send = Send(self.number, header, blob, header.get("offset"))
                if header["is"] == "bye":
                    return
                self._act(f"before {header['is']}")
                for answer in self.simulated.hear(send, time.monotonic_ns()):
                    self.says(answer)
                self._act(header["is"])

    def _read(self) -> bytes:
        try:
            return self.socket.recv(1 << 16)
        except OSError:
            return b""

    def _act(self, moment: str) -> None:
        script = self.engine.scripts.get((self.number, moment))
        if script is not None:
            script(self)
        elif moment == "start":
            for local in range(self.simulated.count):
                self.returns(local)


class FakeChannel:
    """The driver's end."""

    address = "127.0.0.1"

    def __init__(self, agent: FakeAgent, end: Owned) -> None:
        self.host = f"fake{agent.number}"
        self._agent, self._end = agent, end
        self.was_killed = False

    def read_fileno(self) -> int:
        return self._end.fileno()

    write_fileno = read_fileno

    def why_lost(self) -> str:
        return "the fake engine cut it"

    def kill(self) -> None:
        self.was_killed = True
        self._agent.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._end.close()
        self._agent.is_cut.set()
        self._agent.thread.join(DEADLOCK)
        assert not self._agent.thread.is_alive()


class FakeEngine:
    """So many nodes.

    Args:
        nodes: How many.
        scripts: What the agent of a node does at a moment, in place of what it would do.
        piece: How many bytes go over a channel at once; None for all.
        limits: Other values of ``start_timeout`` and ``lease``.
    """

    name = "Fake"
    shares_files = True

    def __init__(
        self,
        nodes: int,
        scripts: dict[tuple[int, str], Script] | None = None,
        *,
        piece: int | None = None,
        **limits: Any,
    ) -> None:
        self.scripts = scripts or {}
        self.piece = piece
        self.start_timeout: float | None = limits.get("start_timeout", DEADLOCK)
        self.lease: float | None = limits.get("lease")
        self.agents: list[FakeAgent] = []
        self._count = nodes

    def nodes(self) -> Sequence[Node]:
        return [Node(f"fake{number}") for number in range(self._count)]

    def start(self, request: AgentRequest) -> Sequence[FakeChannel]:
        assert len(request.counts) == self._count
        self.agents = [FakeAgent(number, self) for number in range(self._count)]
        return [agent.channel for agent in self.agents]


def cut(_: FakeAgent) -> None:
    """The channel ends."""
    raise Cut


def hang(agent: FakeAgent) -> None:
    """Nothing more comes, and nothing is heard, until the driver lets go."""
    assert agent.is_cut.wait(DEADLOCK)
    raise Cut


def garbage(agent: FakeAgent) -> None:
    agent.writes(os.urandom(16) + b"\xff" * 64)
    hang(agent)
