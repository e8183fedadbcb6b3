"""What the names of a group's files in memory tell whoever looks at its parent. Pure.

``workers/meeting.py`` gives these names.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankspawn.workers.meeting import GROUP_FILE, RANK_FILE


@dataclass(frozen=True, slots=True)
class GroupLabel:
    """What the name of a group's meeting place tells.

    Attributes:
        parent: The process that started it.
        mark: The first part of its mark.
        grace: Seconds that its workers get to end.
        what: The function that it runs; empty for programs.
    """

    parent: int
    mark: str
    grace: float
    what: str


@dataclass(frozen=True, slots=True)
class RankLabel:
    """What the name of a rank's outcome file tells."""

    mark: str
    index: int
    rank: int
    device: str


def read_group(link: str) -> GroupLabel | None:
    """What a link to such a file tells; None for any other."""
    words = _words(link, GROUP_FILE, 4)
    try:
        return GroupLabel(int(words[0]), words[1], float(words[2]), words[3]) if words else None
    except ValueError:
        return None


def read_rank(link: str) -> RankLabel | None:
    """What a link to such a file tells; None for any other."""
    words = _words(link, RANK_FILE, 4)
    try:
        return RankLabel(words[0], int(words[1]), int(words[2]), words[3]) if words else None
    except ValueError:
        return None


def _words(link: str, kind: str, count: int) -> list[str] | None:
    _, found, rest = link.partition(f"{kind}:")
    words = rest.split(":")
    # What follows the last colon is the system's.
    return words[:count] if found and len(words) == count + 1 else None
