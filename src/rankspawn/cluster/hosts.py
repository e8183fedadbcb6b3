"""Lists of hosts as people write them: ``a,b:2``, a file with ``host slots=N``, or a sequence.

Pure but for :func:`read_hosts`, which reads that file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from rankspawn.cluster.engine import Node

# A host of a list and how many ranks it has room for; [::1]:2 is one, and ::1 too.
_HOST = re.compile(r"(?P<host>\[[^\]\s]+\]|[^\s:]+|[^\s:]*(?::[^\s:]*){2,}?)(?::(?P<slots>\d+))?")


def read_hosts(given: str | os.PathLike[str] | Sequence[str]) -> list[Node]:
    """The nodes of a list, of a file of hosts, or of a sequence.

    Raises:
        ValueError: No host is named, one is named twice, or what is said makes no sense.
        TypeError: It is nothing of this kind.
        OSError: The file cannot be read.
    """
    if isinstance(given, str) and not _is_file(given):
        nodes = [_read_word(word.strip(), "hosts") for word in given.split(",") if word.strip()]
    elif isinstance(given, (str, os.PathLike)):
        with open(given, encoding="utf-8") as file:
            nodes = parse_hostfile(file.read(), name=os.fspath(given))
    elif isinstance(given, Sequence) and all(isinstance(word, str) for word in given):
        nodes = [_read_word(word.strip(), "hosts") for word in given]
    else:
        raise TypeError(f"hosts must be 'a,b:2', a file or a sequence of names, not {given!r}")
    if not nodes:
        raise ValueError(f"hosts={given!r} names no host")
    names = [node.host for node in nodes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(
            f"hosts name {twice} twice: a host is one node; for more ranks there say {twice}:2"
        )
    return nodes


def parse_hostfile(text: str, *, name: str = "hostfile") -> list[Node]:
    """The nodes of a file with a host in each line, maybe with ``slots=N`` or ``:N``."""
    nodes = []
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        where = f"{name}, line {number}"
        host, *words = re.sub(r"\s*=\s*", "=", said).split()
        node = _read_word(host, where)
        counts = [word.removeprefix("slots=") for word in words if word.startswith("slots=")]
        if len(counts) > 1 or not all("=" in word for word in words):
            raise ValueError(f"{where}: {line.strip()!r} is no `host` or `host slots=N`")
        if counts:
            node = _node(node.host, counts[0], where)
        nodes.append(node)
    return nodes


def _is_file(text: str) -> bool:
    return "," not in text and (os.sep in text or os.path.isfile(text))


def _read_word(word: str, where: str) -> Node:
    match = _HOST.fullmatch(word)
    # A name that begins with a dash would be an option of the program that gets it.
    if match is None or word.startswith("-"):
        raise ValueError(f"{where}: {word!r} is no host: write name, name:2 or [address]:2")
    return _node(match["host"].strip("[]"), match["slots"], where)


def _node(host: str, slots: str | None, where: str) -> Node:
    if slots is None:
        return Node(host)
    if not slots.isdecimal() or int(slots) < 1:
        raise ValueError(f"{where}: {host} has {slots!r} slots: a node has at least one rank")
    return Node(host, int(slots))
