"""How long a payload takes to all nodes of a cluster, by a model of its network. Pure.

Each node, and the driver, has one way out and one way in of the same bandwidth, without anything
between them that is full before these are. What leaves a node in several directions takes turns,
piece by piece. A node that passes something on begins with a piece when it has all of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Network:
    """What it is like.

    Attributes:
        bandwidth: Bytes in a second, out of each node and into it.
        latency: Seconds from one to another.
        overhead: Seconds of work for each piece that is sent, of whoever sends it.
    """

    bandwidth: float = 1.25e9
    latency: float = 100e-6
    overhead: float = 20e-6


def parents(nodes: int, width: int) -> list[int]:
    """Who sends to each node, so that nobody sends to more than ``width``; -1 is the driver."""
    return [(number - width) // width if number >= width else -1 for number in range(nodes)]


def one_after_the_other(network: Network, nodes: int, pieces: Sequence[int]) -> float:
    """Seconds until the last node has all, if the driver waits for each node's word."""
    one = sum(network.overhead + size / network.bandwidth for size in pieces)
    return nodes * (one + 2 * network.latency)


def along(network: Network, senders: Sequence[int], pieces: Sequence[int]) -> float:
    """Seconds until the last node has all, if each piece goes on as soon as it has come.

    Args:
        network: What it is like.
        senders: Of each node, -1 for the driver; nobody before the one that it is sent by.
        pieces: Their sizes, in their order.
    """
    children: dict[int, list[int]] = {}
    for node, sender in enumerate(senders):
        children.setdefault(sender, []).append(node)
    came: dict[int, list[float]] = {-1: [0.0] * len(pieces)}
    for sender in sorted(children):
        is_free = 0.0
        arrivals = {node: [0.0] * len(pieces) for node in children[sender]}
        for number, size in enumerate(pieces):
            for node in children[sender]:
                is_free = max(is_free, came[sender][number]) + network.overhead
                is_free += size / network.bandwidth
                arrivals[node][number] = is_free + network.latency
        came.pop(sender)
        for node, times in arrivals.items():
            came[node] = times
    # Of those that have no children.
    return max(times[-1] for times in came.values())


def cut(size: int, piece: int) -> list[int]:
    """The sizes of the pieces of a payload."""
    whole, rest = divmod(size, piece)
    return [piece] * whole + [rest] * bool(rest)
