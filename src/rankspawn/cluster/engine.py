"""What starts agents on nodes: the protocol of an engine, and finding one by its name.

An engine brings up one agent per node, ``python -m rankspawn.cluster.agent``, and gives a channel
to each: two descriptors of this process, one to read what the agent writes to its standard
output, one to write to its standard input. All that is the same for every engine (what is said
over the channels, ranks, results, failures, the end) is none of its business.

What an agent expects of whoever starts it:

- its standard input and output are the channel, and nothing else writes there. What comes out
  before its first words, such as the greeting of a shell, is skipped;
- the end of its standard input means that the driver is gone: it stops its ranks, with their grace
  period, and ends. So no copy of that descriptor may outlive the driver;
- SIGTERM asks it to end in the same way, SIGKILL leaves the rest to the guardian of its ranks;
- its standard error says what went wrong before it could speak: an engine that has that gives
  the end of it in :meth:`Channel.why_lost`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

from rankspawn.values import dataclass

# Where others register theirs: a name, and a class that can be called without arguments.
ENTRY_POINTS = "rankspawn.engines"
AGENT_MODULE = "rankspawn.cluster.agent"
# Ours, which need no entry point.
_OURS: dict[str, str] = {
    "local": "rankspawn.cluster.local:Local",
    "ray": "rankspawn.cluster.ray:Ray",
    "slurm": "rankspawn.cluster.slurm:Slurm",
}


@dataclass(frozen=True, slots=True)
class Node:
    """One node that an engine has, or will have.

    Attributes:
        host: What people call it; empty if that is known only once its agent is there.
        slots: How many ranks whoever described it has set aside for it; None if nobody did.
    """

    host: str = ""
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """What an engine is asked to start: one agent on each of its nodes.

    Attributes:
        job: A name for the job that no other one has; fit for a file's name.
        counts: How many ranks each node will have; None for one per device that its agent finds.
        grace: Seconds that ranks get to end. An agent that is to end may need that, and
            :data:`TIME_TO_KILL` more.
        device_type: What ranks are to run on, such as ``gpu`` or ``cpu``; None for whatever their
            node has. For engines that have to ask for it.
    """

    job: str
    counts: tuple[int | None, ...]
    grace: float
    device_type: str | None = None

    def command(self, python: str | None = None) -> list[str]:
        """The command line of an agent; the same for all nodes, and no secret in it.

        Args:
            python: The interpreter there; None for the path of this one.
        """
        return [python or sys.executable, "-m", AGENT_MODULE]


# Seconds that killed ranks, and what they started, take to be gone.
TIME_TO_KILL = 5.0


class Channel(Protocol):
    """A stream of bytes to and from one agent, and what the engine knows of it.

    Any thread may call anything here.
    """

    @property
    def host(self) -> str:
        """The node's name, for people."""

    @property
    def address(self) -> str | None:
        """Where ranks on other nodes reach this one; None to have its agent find out."""

    def read_fileno(self) -> int:
        """A descriptor with what the agent writes; its end means that the agent is gone."""

    def write_fileno(self) -> int:
        """A descriptor for what the agent reads; may be the same, of a socket."""

    def why_lost(self) -> str:
        """What the engine says of an agent that is gone, in one sentence or the last lines.

        Asked after the end of the stream; may wait for what is just ending, for two seconds at
        most. Empty if it has nothing to say.
        """

    def kill(self) -> None:
        """End the agent by force, as far as the engine can, without waiting for that."""

    def close(self) -> None:
        """Let go of both descriptors, and have the agent end; a second call does nothing.

        It has ended already, as a rule. Whoever is left has its grace period. The last one that is
        closed takes along what the engine holds for all of them.
        """


class Engine(Protocol):
    """Starts agents, one on each node. Made by the caller of ``spawn``, checked when it is made.

    It may be used for several groups, one after the other or at once.
    """

    @property
    def name(self) -> str:
        """What messages call it: ``Ssh``."""

    @property
    def start_timeout(self) -> float | None:
        """Seconds in which an agent says hello; None for as long as it takes, as in a queue."""

    @property
    def lease(self) -> float | None:
        """Seconds of silence after which driver and agent take each other for lost.

        For links that can be cut without an end of the stream; None where that cannot be.
        """

    @property
    def shares_files(self) -> bool:
        """All nodes see this machine's files, under the same paths.

        Then functions of a script go by reference, as they do on one machine; else by value.
        """

    def nodes(self) -> Sequence[Node]:
        """The nodes, in the order of their ranks; asked once before each start.

        Raises:
            Exception: It cannot work here (no program, no allocation); nothing was started.
        """

    def start(self, request: AgentRequest) -> Sequence[Channel]:
        """Start all agents, and give their channels in the order of :meth:`nodes`.

        Does not wait for agents to come up: whether they do, their channels say. Signals may
        interrupt it; after any exception nothing is left running.
        """


def find_engine(given: Any) -> Engine:
    """The engine that was given, or the one of that name with its defaults.

    Raises:
        ValueError: There is none of that name; the message has those that there are.
        TypeError: It is no engine.
    """
    if isinstance(given, str):
        given = _load(given)()
    missing = [name for name in ("name", "nodes", "start") if not hasattr(given, name)]
    if missing or isinstance(given, type):
        called = given.__name__ if isinstance(given, type) else type(given).__name__
        hint = (
            f"call it: cluster={called}()" if isinstance(given, type) else "see rankspawn.cluster"
        )
        raise TypeError(f"cluster must be an engine or the name of one, not {called}: {hint}")
    engine: Engine = given
    return engine


def _load(name: str) -> Any:
    """The class of this name: one of ours, or of an entry point."""
    from importlib import import_module
    from importlib.metadata import entry_points

    if name in _OURS:
        module, _, attribute = _OURS[name].partition(":")
        return getattr(import_module(module), attribute)
    if name == "ssh":
        raise ValueError("cluster='ssh': Ssh has to know its hosts: cluster=Ssh('gpu1,gpu2')")
    others = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in others:
        there_are = ", ".join(sorted({*_OURS, *others}))
        raise ValueError(
            f"cluster={name!r} is no engine: there are {there_are}; others are found by the entry "
            f"point group {ENTRY_POINTS}"
        )
    return others[name].load()
