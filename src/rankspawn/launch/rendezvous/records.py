"""The values of a job as text in a store, and where they are kept.

::

    rankspawn/<job id>/
      job/state     what all agree on, changed by compare-and-swap       watched by every node
      job/leader    the name of the leading node, bound to its lease     watched by every node
      job/waiting   what the job waits for, for people                   watched by every node
      groups/<g>-…  addresses, ports and devices of generation g         read once by its nodes
      nodes/<name>  a node and its news, bound to its lease              watched by the leading one

So a change of one of a thousand nodes goes to one of them, and only what all must know to all.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rankspawn.launch.programs import Node
from rankspawn.launch.rendezvous.job_state import (
    Cause,
    Dismissal,
    JobState,
    Member,
    News,
    Phase,
    Policy,
)
from rankspawn.launch.rendezvous.store import Entry

__all__ = [
    "Keys",
    "clip",
    "read_group",
    "read_member",
    "read_state",
    "write_group",
    "write_member",
    "write_state",
]

# A report of this length has the whole traceback and the end of the log; a longer one is cut in
# the middle, because what happened stands at its end and who it was at its beginning.
LONGEST_TEXT = 16_384


class Keys:
    """Where the entries of one job are."""

    def __init__(self, job_id: str) -> None:
        # Escaped, or the entries of a job "a/b" would be among those of the job "a".
        escaped = job_id.replace("%", "%25").replace("/", "%2F")
        self.root = f"rankspawn/{escaped}/"
        self.job = f"{self.root}job/"
        self.state = f"{self.job}state"
        self.leader = f"{self.job}leader"
        self.waiting = f"{self.job}waiting"
        self.nodes = f"{self.root}nodes/"
        self.groups = f"{self.root}groups/"

    def node(self, name: str) -> str:
        """Of one member."""
        return self.nodes + name


def clip(text: str) -> str:
    """A text of bounded length, with its beginning and its end."""
    if len(text) <= LONGEST_TEXT:
        return text
    head = LONGEST_TEXT // 4
    tail = LONGEST_TEXT - head
    return f"{text[:head]}\n[… {len(text) - head - tail} characters left out …]\n{text[-tail:]}"


def write_state(state: JobState, group_key: str) -> str:
    """The job's state as text, with where its newest group is described."""
    return _dump({**dataclasses.asdict(state), "group_key": group_key})


def read_state(entry: Entry) -> tuple[JobState, str]:
    """The job's state, and where its newest group is described."""
    data = json.loads(entry.value)
    group_key = data.pop("group_key")
    policy = Policy(**_tuples(data.pop("policy")))
    phase = Phase(data.pop("phase"))
    causes = tuple(Cause(**one) for one in data.pop("causes"))
    dismissed = tuple(
        Dismissal(one["name"], Cause(**one["cause"])) for one in data.pop("dismissed")
    )
    state = JobState(
        policy=policy, phase=phase, causes=causes, dismissed=dismissed, **_tuples(data)
    )
    return state, group_key


def write_member(member: Member) -> str:
    """A node and its news as text; its order is the store's to know."""
    data = dataclasses.asdict(member)
    del data["order"], data["updated"]
    return _dump(data)


def read_member(entry: Entry) -> Member:
    """A node and its news."""
    data = json.loads(entry.value)
    news = data.pop("news")
    for name in ("cause", "leaving"):
        news[name] = news[name] and Cause(**news[name])
    return Member(news=News(**news), order=entry.created, updated=entry.revision, **_tuples(data))


def write_group(names: Sequence[str], members: Mapping[str, Member]) -> str:
    """What the nodes of a generation need to know about each other, as text."""
    return _dump([_describe(members[name]) for name in names])


def read_group(text: str) -> tuple[Node, ...]:
    """The nodes of a generation by rank."""
    return tuple(
        Node(rank=rank, **_tuples(described)) for rank, described in enumerate(json.loads(text))
    )


def _describe(member: Member) -> dict[str, Any]:
    return {
        "host": member.host,
        "ports": member.ports,
        "devices": member.devices,
        "name": member.name,
    }


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows only lists."""
    return {key: tuple(one) if isinstance(one, list) else one for key, one in data.items()}


def _dump(data: object) -> str:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)
