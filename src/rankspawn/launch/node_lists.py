"""Lists of hosts in Slurm's notation.

Pure.
"""

from __future__ import annotations

from itertools import product

from rankspawn.launch.flags import UsageError
from rankspawn.launch.scheduler_values import is_number, shortened

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator

# Slurm itself stops at 65,533 nodes.
_MOST_NODES = 100_000


def expand_nodes(text: str, *, name: str = "SLURM_JOB_NODELIST") -> list[str]:
    """The hosts of a list in Slurm's notation, such as ``login,node[01-03,7]``.

    Zeros in front are kept, and a name may hold several brackets.

    Args:
        text: The list.
        name: Where it comes from, for messages.

    Raises:
        UsageError: It is malformed.
    """
    hosts: list[str] = []
    for word in _split_outside_brackets(text, name):
        parts = [_expand_part(part, text, name) for part in _parts(word, text, name)]
        size = 1
        for part in parts:
            size *= len(part)
        if len(hosts) + size > _MOST_NODES:
            raise UsageError(f"{name}={shortened(text)} names more than {_MOST_NODES} nodes")
        hosts.extend("".join(choice) for choice in product(*parts))
    return hosts


def _split_outside_brackets(text: str, name: str) -> Iterator[str]:
    depth, start = 0, 0
    for place, char in enumerate(text):
        depth += {"[": 1, "]": -1}.get(char, 0)
        if depth not in (0, 1):
            raise _malformed(text, name)
        if char == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    if depth:
        raise _malformed(text, name)
    yield text[start:]


def _parts(word: str, text: str, name: str) -> Iterator[str]:
    """``a``, ``[1-2]``, ``b`` of ``a[1-2]b``."""
    word = word.strip()
    if not word or any(char.isspace() for char in word):
        raise _malformed(text, name)
    while word:
        end = word.index("]") + 1 if word.startswith("[") else len(word.partition("[")[0])
        yield word[:end]
        word = word[end:]


def _expand_part(part: str, text: str, name: str) -> list[str]:
    if not part.startswith("["):
        return [part]
    found: list[str] = []
    for entry in part[1:-1].split(","):
        first, dash, last = entry.partition("-")
        last = last if dash else first
        if not (is_number(first) and is_number(last)) or int(first) > int(last):
            raise _malformed(text, name)
        if int(last) - int(first) >= _MOST_NODES:
            raise UsageError(f"{name}={shortened(text)} names more than {_MOST_NODES} nodes")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def _malformed(text: str, name: str) -> UsageError:
    return UsageError(
        f"{name}={shortened(text)} is no list of nodes, such as node[01-03,7]: give --nnodes, "
        "--rank and --master"
    )
