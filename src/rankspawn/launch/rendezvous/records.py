"""The values of a job as text in a store, and where they are kept.

::

    rankspawn/<job id>/
      job/state     what all agree on, changed by compare-and-swap       watched by every node
      job/leader    the name of the leading node, bound to its lease     watched by every node
      job/waiting   what the job waits for, for people                   watched by every node
      groups/<g>-…  addresses and ports of generation g                  read once by its nodes
      nodes/<name>  a node and its report, bound to its lease            watched by the leading one

So a change of one of a thousand nodes goes to one of them, and only what all must know to all.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from rankspawn.launch.programs import Node
from rankspawn.launch.rendezvous.job_state import (
    JobState,
    JobTerms,
    Member,
    NodeReport,
    Phase,
    Refusal,
)
from rankspawn.launch.rendezvous.store import Entry
from rankspawn.launch.session import Cause

# A report of this length has the whole traceback and the end of the log; a longer one is cut in
# the middle, because what happened stands at its end and who it was at its beginning.
LONGEST_TEXT = 16_384
# Fields whose names in a store are others: nodes with another version of this may be in the job.
_STATE_NAMES = {"terms": "policy", "refused": "dismissed"}
_MEMBER_NAMES = {"flags": "terms", "report": "news"}
_Record = TypeVar("_Record", JobTerms, JobState, Member, NodeReport)


class Keys:
    """The keys of one job's entries."""

    def __init__(self, job_id: str) -> None:
        # Escaped, or the entries of a job "a/b" would be among those of the job "a".
        escaped = job_id.replace("%", "%25").replace("/", "%2F")
        self.root: str = f"rankspawn/{escaped}/"
        self.job: str = f"{self.root}job/"
        self.state: str = f"{self.job}state"
        self.leader: str = f"{self.job}leader"
        self.waiting: str = f"{self.job}waiting"
        self.nodes: str = f"{self.root}nodes/"
        self.groups: str = f"{self.root}groups/"

    def node(self, name: str) -> str:
        """The key of a member's entry."""
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
    return _dump({**_renamed(dataclasses.asdict(state), _STATE_NAMES), "group_key": group_key})


def read_state(entry: Entry) -> tuple[JobState, str]:
    """The job's state, and where its newest group is described."""
    data = json.loads(entry.value)
    group_key = data.pop("group_key")
    terms = _made(JobTerms, data.pop("policy"))
    phase = Phase(data.pop("phase"))
    causes = tuple(Cause(**fields) for fields in data.pop("causes"))
    refused = tuple(
        Refusal(fields["name"], Cause(**fields["cause"])) for fields in data.pop("dismissed")
    )
    known = {"terms": terms, "phase": phase, "causes": causes, "refused": refused}
    return _made(JobState, data | known), group_key


def write_member(member: Member) -> str:
    """A node and its report as text; its order is the store's to know."""
    data = _renamed(dataclasses.asdict(member), _MEMBER_NAMES)
    del data["order"], data["updated"]
    return _dump(data)


def read_member(entry: Entry) -> Member:
    """A node and its report."""
    data = json.loads(entry.value)
    flags, report = data.pop("terms"), data.pop("news")
    for name in ("cause", "leaving", "unable"):
        fields = report.get(name)
        report[name] = fields and Cause(**fields)
    known = {
        "flags": flags,
        "report": _made(NodeReport, report),
        "order": entry.created,
        "updated": entry.revision,
    }
    return _made(Member, data | known)


def write_group(names: Sequence[str], members: Mapping[str, Member]) -> str:
    """What the nodes of a generation need to know about each other, as text."""
    return _dump([_describe(members[name]) for name in names])


def read_group(text: str) -> tuple[Node, ...]:
    """The nodes of a generation by rank."""
    return tuple(
        Node(rank=rank, **_tuples(described)) for rank, described in enumerate(json.loads(text))
    )


def _describe(member: Member) -> dict[str, Any]:
    return {"host": member.host, "ports": member.ports, "name": member.name}


def _renamed(data: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in data.items()}


def _made(kind: type[_Record], data: Mapping[str, Any]) -> _Record:
    """One of these; what a newer version has added is passed over."""
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{key: value for key, value in _tuples(data).items() if key in known})


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same with tuples for lists, the only sequences that JSON knows."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


def _dump(data: object) -> str:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)
