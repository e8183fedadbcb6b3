"""What the driver knows of one node. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import Enum

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.cluster.frames import Header
    from rankspawn.parallel.statistics import Talk
    from rankspawn.view.ranks import Usage


_WHO_ENDS_AGENTS = "(a time limit, a preemption, or somebody ended it)"


class Phase(Enum):
    """How far a node is."""

    CALLED = "its agent had not said a word"
    GREETED = "it was being asked what it has"
    READY = "its ranks were being started"
    STARTED = "its ranks ran"
    STOPPED = "stopped"
    LOST = "lost"


@dataclass(slots=True)
class Report:
    """What a rank left: its text, and a pickle in pieces that nobody has looked into."""

    text: str
    tail: str
    crash: str
    steps: bytes
    sizes: list[int] | None
    data: bytearray
    received: int = 0

    def pieces(self) -> list[memoryview]:
        """The stream and its buffers."""
        view, start, pieces = memoryview(self.data), 0, []
        for size in self.sizes or ():
            pieces.append(view[start : start + size])
            start += size
        return pieces


@dataclass(slots=True)
class NodeState:
    """One node.

    Attributes:
        number: Its place among the nodes.
        host: What people call it.
        address: Where ranks of others reach it; None until its agent says.
        count: How many ranks it has.
        first: The rank of the first one.
        offset_ns: Its clock minus ours.
        error_ns: How wrong that may be; None as long as it was not measured.
        hosts: Of each rank, if they are several.
        heard_ns: When it said something last, on our clock.
    """

    number: int
    host: str
    address: str | None = None
    phase: Phase = Phase.CALLED
    count: int = 0
    first: int = 0
    ports: list[int] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    device_type: str = "cpu"
    backend: str = "gloo"
    warning: str | None = None
    pids: list[int] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    is_same_clock: bool = True
    offset_ns: int = 0
    error_ns: int | None = None
    heard_ns: int = 0
    pinged_ns: int = 0
    why_ending: str | None = None
    reports: dict[int, Report] = field(default_factory=dict)
    steps: dict[int, tuple[bytes, str]] = field(default_factory=dict)
    usages: dict[int, Usage] = field(default_factory=dict)
    talks: dict[int, Talk] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def note_resources(self, header: Header) -> None:
        """What it says that it has."""
        self.ports = [int(port) for port in header["ports"]]
        self.count = len(self.ports)
        self.address = self.address or str(header["address"])
        self.devices = [str(device) for device in header["devices"]]
        self.device_type, self.backend = str(header["device_type"]), str(header["backend"])
        self.warning = header["warning"]

    def as_host(self) -> list[object]:
        """What all nodes are told of it."""
        return [self.address, self.count, self.ports]

    def host_of(self, local: int) -> str:
        """Where a rank is: a keeper has those of several hosts."""
        return self.hosts[local] if self.hosts else self.host

    def local_of(self, header: Header) -> int:
        """The place on this node of the rank that a frame is about."""
        local = header["index"]
        if not isinstance(local, int) or not 0 <= local < self.count:
            raise ValueError(f"there is no rank {local!r} on {self.host}")
        return local

    def index_of(self, header: Header) -> int:
        """Its place among all."""
        return self.first + self.local_of(header)

    def set_clock(self, sent: int, theirs: int, now: int) -> None:
        """Learn from the answer to a ping how its clock differs; the quickest one counts.

        The answer was given somewhere between: half of the round trip is how wrong this may be.
        """
        if self.is_same_clock or not sent <= now:
            return
        error = (now - sent) // 2
        if self.error_ns is None or error < self.error_ns:
            self.error_ns, self.offset_ns = error, theirs - (sent + now) // 2

    def to_our_clock(self, when: int) -> int:
        """A time of its clock on ours."""
        return int(when) - self.offset_ns

    def expect_report(self, local: int, header: Header, blob: bytes) -> bool:
        """Keep what a rank said at its end; whether all of it is here."""
        sizes = header["pieces"]
        size = sum(sizes or ())
        parts, start = [], 0
        for length in (header["text"], header["tail"], header["crash"]):
            parts.append(blob[start : start + length].decode("utf-8", "surrogatepass"))
            start += length
        text, tail, crash = parts
        self.reports[local] = Report(text, tail, crash, blob[start:], sizes, bytearray(size))
        return not size

    def take_data(self, local: int, offset: int, data: bytes) -> bool:
        """Keep a piece of a report; whether that was the last one.

        Raises:
            ValueError: Something before it is missing.
        """
        report = self.reports[local]
        if offset < report.received:  # it came twice
            return False
        end = offset + len(data)
        if offset > report.received or end > len(report.data):
            raise ValueError(f"a piece of a report from {offset} to {end}, out of order")
        report.data[offset:end] = data
        report.received = end
        return end == len(report.data)

    def note_steps(self, header: Header, record: bytes) -> None:
        """What a rank reported last, does, and, if somebody looks, takes and exchanges.

        Raises:
            GarbledError: This cannot be.
        """
        local = self.local_of(header)
        self.steps[local] = (record, str(header["state"]))
        measured = header.get("measured")
        if measured is not None:
            from rankspawn.cluster.measured import read_talk, read_usage

            self.usages[local] = read_usage(measured["usage"])
            if "talk" in measured:
                self.talks[local] = read_talk(measured["talk"], self.count, self.first)

    def evidence_of(self, outcome: Header) -> str | None:
        """What is known of a rank's death: a scheduler's SIGTERM is for all of a node."""
        evidence: str | None = outcome["evidence"]
        if evidence is None and outcome["code"] == -signal.SIGTERM and self.why_ending is not None:
            return f"it was ended by the signal, and {self.why_ending} {_WHO_ENDS_AGENTS}"
        return evidence

    def describe_loss(self, phase: Phase, why: str) -> str:
        """One sentence on this node, which is lost."""
        when = f"while {phase.value}" if phase is not Phase.CALLED else f"when {phase.value}"
        why = why.strip()
        if self.why_ending is not None:
            why = f"{self.why_ending} {_WHO_ENDS_AGENTS}. {why}"
        said = f": {why}" if why else ""
        return f"the node {self.host or self.number} was lost {when}{said}".rstrip()
