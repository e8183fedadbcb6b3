"""Agents in memory: what each would say to a driver, frame by frame.

Frames go through bytes, as on a channel, so that what is sent has to be what can be sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from rankspawn.cluster.driver import Driver
from rankspawn.cluster.frames import GREETING, FrameReader, encode
from rankspawn.cluster.node_state import NodeState
from rankspawn.cluster.terms import Send, Terms

Header = dict[str, Any]

VERSION, PYTHON, CLOCK = "0.2.0", "3.11.9", "this machine"


def terms(**changes: Any) -> Terms:
    values: dict[str, Any] = {
        "version": VERSION,
        "python": PYTHON,
        "clock": CLOCK,
        "prepare": {"is": "prepare", "options": {}, "grace": 1.0, "lease": None},
        "start": {"is": "start", "payload": {"task": 0}},
        "payload": memoryview(b"a task"),
        "shared": 6,
    }
    return Terms(**{**values, **changes})


def driver_of(nodes: int, **changes: Any) -> Driver:
    states = [NodeState(number, f"node{number}", "10.0.0.1") for number in range(nodes)]
    return Driver(states, terms(**changes))


class SimulatedAgent:
    """One agent; :meth:`hear` gives the frames that it answers with.

    Args:
        number: Of its node.
        clock_ns: Its clock minus the driver's.
        hello: What is different in its greeting.
    """

    def __init__(self, number: int, clock_ns: int = 0, hello: Header | None = None) -> None:
        self.number = number
        self.clock_ns = clock_ns
        self.payload = b""
        self.start: Header = {}
        self.hosts: list[Any] = []
        self.count = 0
        self.heard: list[str] = []
        self.greeting: Header = {
            "is": "hello",
            "version": VERSION,
            "python": PYTHON,
            "executable": "/usr/bin/python3",
            "host": f"host{number}",
            "pid": 100 + number,
            "clock": "another machine" if clock_ns else CLOCK,
            **(hello or {}),
        }

    def hear(self, send: Send, now: int) -> list[Header]:
        """The answers, if it answers at once."""
        header, blob = send.header, bytes(send.blob)
        what = header["is"]
        self.heard.append(what)
        if what == "ping":
            return [{"is": "pong", "at": header["at"], "now": now + self.clock_ns}]
        if what == "prepare":
            self.count = 2 if header["count"] == -1 else header["count"]
            return [self.ready()]
        if what == "payload":
            assert send.offset is not None
            self.payload = self.payload.ljust(send.offset, b"?")[: send.offset] + blob
        if what == "start":
            self.start, self.hosts = header, json.loads(blob)
            pids = [1000 * self.number + local for local in range(self.count)]
            return [{"is": "started", "pids": pids, "plan": ""}]
        if what == "stop":
            return [{"is": "stopped"}]
        if what == "stacks":
            first = sum(count for _, count, _ in self.hosts[: self.number])
            texts = {str(first + local): "where" for local in range(self.count)}
            return [{"is": "stacks", "ticket": header["ticket"], "texts": texts}]
        return []

    def ready(self) -> Header:
        return {
            "is": "ready",
            "address": f"10.0.0.{self.number}",
            "ports": list(range(5000, 5000 + self.count)),
            "backend": "gloo",
            "device_type": "cpu",
            "devices": [],
            "warning": None,
        }


def outcome(
    local: int, end: str = "RETURNED", when: int = 0, pieces: Sequence[int] | None = None
) -> Header:
    returned = end == "RETURNED"
    return {
        "is": "outcome",
        "index": local,
        "final": True,
        "end": end,
        "code": 0 if returned else 1,
        "when": when,
        "reached": True,
        "returned": returned,
        "evidence": None,
        "follows": False,
        "text": 0,
        "tail": 0,
        "crash": 0,
        "pieces": None if pieces is None else list(pieces),
    }


class Cluster:
    """A driver and its agents, with a clock that a test sets."""

    def __init__(self, driver: Driver, agents: Sequence[SimulatedAgent]) -> None:
        self.driver, self.agents = driver, agents
        self.now = 1_000_000_000
        self._readers = [FrameReader() for _ in agents]
        self.deaf: set[int] = set()  # what is sent to these gets lost
        self._early: dict[int, list[Send]] = {number: [] for number in range(len(agents))}

    def says(self, number: int, header: Header, blob: bytes = b"") -> None:
        """An agent sends a frame, and it arrives."""
        for heard, rest in self._readers[number].feed(encode(header, blob) + blob):
            self.driver.hear(number, heard, rest, self.now)

    def greet(self, number: int) -> None:
        for heard, rest in self._readers[number].feed(GREETING):
            raise AssertionError((heard, rest))
        self.says(number, self.agents[number].greeting)
        self.driver.sends += self._early.pop(number)

    def deliver(self, delay: Callable[[], int] = lambda: 0) -> None:
        """Everything that the driver wants to send arrives, with the answers to it."""
        while self.driver.sends:
            sends, self.driver.sends = self.driver.sends, []
            for send in sends:
                if send.node in self.deaf:
                    continue
                if send.node in self._early:  # it has not said a word, and answers later
                    self._early[send.node].append(send)
                    continue
                self.now += delay()
                answers = self.agents[send.node].hear(send, self.now)
                self.now += delay()
                for answer in answers:
                    self.says(send.node, answer)

    def start(self, counts: Sequence[int]) -> None:
        """From the first question to ranks that run."""
        for number in range(len(self.agents)):
            self.greet(number)
        self.driver.begin(counts)
        self.deliver()


def running(*counts: int, **changes: Any) -> Cluster:
    """A cluster whose ranks run."""
    agents = [SimulatedAgent(number) for number in range(len(counts))]
    cluster = Cluster(driver_of(len(counts), **changes), agents)
    cluster.start(counts)
    return cluster
