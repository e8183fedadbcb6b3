"""What the driver knows of its nodes, and what follows from each frame. Pure: no channel, no clock.

Frames and times go in, frames to be sent come out (:attr:`Driver.sends`), and what became of ranks
stands in :attr:`Driver.outcomes`. So every loss can be played through without a process.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from rankspawn.cluster.node_state import NodeState, Phase
from rankspawn.cluster.terms import Send, Terms
from rankspawn.errors import NodeLostError
from rankspawn.supervise.outcome import End, Outcome, failures_in

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.cluster.frames import Header

# Between two looks at a clock that is not ours, and at a link that may be cut.
PING_NS = 5_000_000_000
_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (ValueError, TypeError, ImportError, OSError)
}


@dataclasses.dataclass
class Driver:
    """All nodes of one start.

    Attributes:
        nodes: In the order of their ranks.
        terms: What they are told.
        sends: What is to be sent; whoever sends it takes it out.
        outcomes: Index to what became of a rank; final once :meth:`has_ended`.
        printed: Index and piece of what ranks have printed; whoever keeps it takes it out.
        shown: What is to be printed here; likewise.
        stacks: Of the last question, by rank.
        error: Why there is no start.
        is_started: All ranks run, or did.
        stopped_ns: When we began to stop them.
    """

    nodes: list[NodeState]
    terms: Terms
    sends: list[Send] = dataclasses.field(default_factory=list)
    outcomes: dict[int, Outcome] = dataclasses.field(default_factory=dict)
    printed: list[tuple[int, bytes]] = dataclasses.field(default_factory=list)
    shown: list[str] = dataclasses.field(default_factory=list)
    stacks: dict[int, str] = dataclasses.field(default_factory=dict)
    error: Exception | None = None
    is_started: bool = False
    stopped_ns: int | None = None
    has_failed: bool = False
    _waiting_for_stacks: set[int] = dataclasses.field(default_factory=set)
    _ticket: int = 0
    _ended: int = 0

    @property
    def world_size(self) -> int:
        """Ranks on all nodes; known once all are ready."""
        return sum(node.count for node in self.nodes)

    @property
    def all_ended(self) -> bool:
        """Every rank has ended, and all that it left is here."""
        return self.is_started and self._ended == self.world_size

    @property
    def all_stopped(self) -> bool:
        """Nothing runs on any node that can be reached."""
        return all(node.phase in (Phase.STOPPED, Phase.LOST) for node in self.nodes)

    @property
    def has_stacks(self) -> bool:
        """All nodes have answered the last question for stacks."""
        return not self._waiting_for_stacks

    @property
    def needs_no_time(self) -> bool:
        """No link can be cut in silence, and no clock differs."""
        return self.terms.lease is None and all(node.is_same_clock for node in self.nodes)

    def expects(self, number: int) -> bool:
        """The end of this node's channel would be its loss."""
        return self.nodes[number].phase not in (Phase.LOST, Phase.STOPPED)

    def node_of(self, index: int) -> NodeState:
        """The node of a rank."""
        low, high = 0, len(self.nodes)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.nodes[middle].first <= index else (low, middle)
        return self.nodes[low]

    def has_ended(self, index: int) -> bool:
        """The rank is gone, and all that it left is here."""
        node = self.node_of(index)
        return index - node.first in node.ended

    # What is asked of us.

    def begin(self, counts: Sequence[int]) -> None:
        """Ask every node what it has.

        Args:
            counts: How many ranks each will have; -1 for one per device of it.
        """
        for node, count in zip(self.nodes, counts, strict=True):
            header = {**self.terms.prepare, "count": count, "address": node.address}
            self._send(node, header)

    def stop(self, grace: float, now: int | None) -> None:
        """Have all ranks stopped, and what they started; without a time, it is not our wish."""
        if self.stopped_ns is None:
            self.stopped_ns = now
        for node in self.nodes:
            if node.phase is Phase.STARTED:
                self._send(node, {"is": "stop", "grace": grace, "failed": self.has_failed})

    def kill(self, now: int) -> None:
        """Have all ranks killed that run."""
        if self.stopped_ns is None:
            self.stopped_ns = now
        for node in self.nodes:
            if node.phase is Phase.STARTED:
                self._send(node, {"is": "kill"})

    def signal(self, index: int, number: int) -> None:
        """Have a signal sent to one rank."""
        node = self.node_of(index)
        if node.phase is Phase.STARTED and not self.has_ended(index):
            header = {"is": "signal", "index": index - node.first, "number": number}
            self._send(node, header)

    def ask_for_stacks(self, *, quickly: bool = False) -> None:
        """Ask all nodes with running ranks where these are."""
        self._ticket += 1
        self.stacks = {}
        asked = [n for n in self.nodes if n.phase is Phase.STARTED and len(n.ended) < n.count]
        self._waiting_for_stacks = {node.number for node in asked}
        for node in asked:
            self._send(node, {"is": "stacks", "ticket": self._ticket, "quickly": quickly})

    def tick(self, now: int) -> list[int]:
        """Ask who was silent whether it is there; the nodes that are silent for too long."""
        silent = []
        for node in self.nodes:
            if node.phase in (Phase.CALLED, Phase.STOPPED, Phase.LOST):
                continue
            lease = self.terms.lease
            if lease is not None and now - node.heard_ns > lease * 1e9:
                silent.append(node.number)
            elif (lease is not None or not node.is_same_clock) and now - node.pinged_ns > PING_NS:
                self._ping(node, now)
        return silent

    # What is heard.

    def hear(self, number: int, header: Header, blob: bytes, now: int) -> None:
        """Take note of a frame.

        Raises:
            GarbledError, KeyError, TypeError, ValueError: It is none that an agent sends.
        """
        node = self.nodes[number]
        if node.phase in (Phase.LOST, Phase.STOPPED):
            return  # it was given up, or all of it is known
        node.heard_ns = now
        what = header["is"]
        if what == "hello":
            self._hear_hello(node, header, now)
        elif what == "pong":
            node.set_clock(header["at"], header["now"], now)
        elif what == "refused":
            self._refuse(node, header)
        elif what == "ready":
            self._hear_ready(node, header)
        elif what == "started":
            self._hear_started(node, header)
        elif what == "ending":
            node.why_ending = str(header["why"])
        elif node.phase is Phase.STARTED:
            self._hear_of_ranks(node, header, blob, now)

    def _hear_of_ranks(self, node: NodeState, header: Header, blob: bytes, now: int) -> None:
        what = header["is"]
        if what == "output":
            self.printed.append((node.index_of(header), blob))
        elif what == "outcome":
            self._hear_outcome(node, header, blob)
        elif what == "data":
            if node.take_data(node.local_of(header), header["offset"], blob):
                self._end(node, node.local_of(header))
        elif what == "steps":
            node.note_steps(header, blob)
        elif what == "stacks":
            if header["ticket"] == self._ticket:
                self.stacks |= {int(rank): str(text) for rank, text in header["texts"].items()}
                self._waiting_for_stacks.discard(node.number)
        elif what == "stopped":
            self._hear_stopped(node, now)

    def lose(self, number: int, why: str, now: int) -> None:
        """The channel of a node has ended, or it is given up.

        Args:
            number: Which node.
            why: What its engine says; empty if nothing.
            now: When that was, as far as is known.
        """
        node = self.nodes[number]
        self._waiting_for_stacks.discard(number)
        if node.phase in (Phase.LOST, Phase.STOPPED):
            return
        phase, node.phase = node.phase, Phase.LOST
        text = node.describe_loss(phase, why)
        if not self.is_started and self.error is None:
            self.error = NodeLostError(text, node.first if node.count else -1, -1, node.host)
        self.has_failed = True
        for local in range(node.count):
            index = node.first + local
            if local not in node.ended:
                known = self.outcomes.get(index)
                if known is None or not known.is_failure:  # else its own failure came before
                    self._note_outcome(node, local, End.LOST, now, evidence=text)
                self._end(node, local)

    def _hear_hello(self, node: NodeState, header: Header, now: int) -> None:
        if node.phase is not Phase.CALLED:
            return
        node.host = node.host or str(header["host"])
        node.phase = Phase.GREETED
        node.is_same_clock = bool(header["clock"]) and header["clock"] == self.terms.clock
        theirs = (header["version"], header["python"])
        ours = (self.terms.version, self.terms.python)
        if ours[0] != theirs[0] or _minor(ours[1]) != _minor(theirs[1]):
            self._give_up(
                RuntimeError(
                    f"{node.host} has rankspawn {theirs[0]} on Python {theirs[1]} "
                    f"({header['executable']}), and this machine rankspawn {ours[0]} on Python "
                    f"{ours[1]}: what one of them pickles the other may not read; use the same "
                    "version of rankspawn, and of Python but for its last number, on all nodes"
                )
            )
        elif not node.is_same_clock:
            self._ping(node, now)

    def _refuse(self, node: NodeState, header: Header) -> None:
        kind = _ERRORS.get(str(header["kind"]), RuntimeError)
        self._give_up(kind(f"{node.host}: {header['text']}"))

    def _give_up(self, error: Exception) -> None:
        """There will be no start; whoever waits for it ends what there is."""
        if self.error is None and not self.is_started:
            self.error = error

    def _hear_ready(self, node: NodeState, header: Header) -> None:
        if node.phase is not Phase.GREETED:
            return
        node.phase = Phase.READY
        node.note_resources(header)
        if all(other.phase is Phase.READY for other in self.nodes) and self.error is None:
            self._start()

    def _start(self) -> None:
        first = 0
        for node in self.nodes:
            node.first, first = first, first + node.count
        if self.terms.check is not None:
            try:
                self.terms.check([node.count for node in self.nodes])
            except Exception as error:
                self._give_up(error)
                return
        # The same bytes for all: with a thousand nodes they are many.
        hosts = json.dumps([node.as_host() for node in self.nodes]).encode()
        for node in self.nodes:
            self._send_start(node, hosts)

    def _send_start(self, node: NodeState, hosts: bytes) -> None:
        terms = self.terms
        own = terms.own[node.first : node.first + node.count]
        self.sends.append(
            Send(node.number, {"is": "payload"}, terms.payload[: terms.shared], offset=0)
        )
        end = terms.shared
        if own:
            begin = terms.own[node.first - 1][1] if node.first else terms.shared
            end = own[-1][1]
            part = terms.payload[begin:end]
            self.sends.append(Send(node.number, {"is": "payload"}, part, offset=begin))
        env = terms.env
        ranks = range(node.first, node.first + node.count)
        header = {
            **terms.start,
            "node_rank": node.number,
            "env": None if env is None else [env(rank) for rank in ranks],
            "payload": {**terms.start["payload"], "end": end, "own": [table for table, _ in own]},
        }
        self.sends.append(Send(node.number, header, hosts, is_last=True))

    def _hear_started(self, node: NodeState, header: Header) -> None:
        if node.phase is not Phase.READY:
            return
        node.phase = Phase.STARTED
        node.pids = [int(pid) for pid in header["pids"]]
        node.hosts = [str(host) for host in header.get("hosts", ())]
        if header["plan"]:
            self.shown.append(str(header["plan"]))
        self.is_started = all(other.phase is Phase.STARTED for other in self.nodes)

    def _hear_outcome(self, node: NodeState, header: Header, blob: bytes) -> None:
        local = node.local_of(header)
        if local in node.ended or local in node.reports:
            return
        when = node.to_our_clock(header["when"])
        self._note_outcome(node, local, End[header["end"]], when, header)
        if header["final"] and node.expect_report(local, header, blob):
            self._end(node, local)

    def _note_outcome(
        self,
        node: NodeState,
        local: int,
        end: End,
        when: int,
        header: Header | None = None,
        evidence: str | None = None,
    ) -> None:
        told = header or {"code": -9, "reached": True, "returned": False, "follows": False}
        if end not in (End.RETURNED, End.LOST, End.STOPPED) and self._is_victim(when):
            end = End.STOPPED
        index = node.first + local
        outcome = Outcome(
            index,
            node.pids[local] if local < len(node.pids) else -1,
            end,
            int(told["code"]),
            when,
            bool(told["reached"]),
            bool(told["returned"]),
            evidence if header is None else node.evidence_of(header),
            bool(told["follows"]),
            node.host_of(local),
        )
        self.outcomes[index] = outcome
        self.has_failed = self.has_failed or outcome.is_failure

    def _is_victim(self, when: int) -> bool:
        """Its node had not heard yet that all are being stopped."""
        return self.stopped_ns is not None and when >= self.stopped_ns

    def _end(self, node: NodeState, local: int) -> None:
        if local not in node.ended:
            node.ended.add(local)
            self._ended += 1

    def _hear_stopped(self, node: NodeState, now: int) -> None:
        """All of a node is gone; without us asking for it, it was lost."""
        if node.why_ending is not None and self.stopped_ns is None:
            self._lose_stopped(node, now)
        node.phase = Phase.STOPPED
        for local in range(node.count):  # what could not be reaped
            if local not in node.ended:
                if node.first + local not in self.outcomes:
                    self._note_outcome(node, local, End.STOPPED, now)
                self._end(node, local)

    def _lose_stopped(self, node: NodeState, now: int) -> None:
        """Its agent has stopped its ranks because somebody else wanted it to."""
        text = node.describe_loss(Phase.STARTED, "")
        for local in range(node.count):
            outcome = self.outcomes.get(node.first + local)
            if outcome is None or outcome.end is End.STOPPED:
                when = now if outcome is None else outcome.when_ns
                self._note_outcome(node, local, End.LOST, when, evidence=text)

    def _ping(self, node: NodeState, now: int) -> None:
        node.pinged_ns = now
        self._send(node, {"is": "ping", "at": now})

    def _send(self, node: NodeState, header: Header) -> None:
        self.sends.append(Send(node.number, header))

    def failures(self) -> list[tuple[int, Outcome]]:
        """Index and outcome of the ranks that failed by themselves, the first in time first."""
        return failures_in(self.outcomes)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
