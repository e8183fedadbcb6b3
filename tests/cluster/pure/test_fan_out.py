"""The model by which docs/scale.md says what a tree of nodes would be worth."""

from __future__ import annotations

from collections import Counter

import pytest
from benchmarks.fan_out import Network, along, cut, one_after_the_other, parents

SIMPLE = Network(bandwidth=100.0, latency=1.0, overhead=0.0)


@pytest.mark.parametrize("width", [1, 2, 4, 7])
def test_in_a_tree_nobody_sends_to_more_than_its_width(width: int) -> None:
    senders = parents(1250, width)
    assert all(sender < node for node, sender in enumerate(senders))
    assert max(Counter(senders).values()) == width
    assert senders.count(-1) == width


def test_times_are_those_of_the_narrowest_way() -> None:
    # 200 bytes to each of 3: the driver's way out is what counts.
    assert along(SIMPLE, [-1] * 3, [100, 100]) == 7.0
    assert one_after_the_other(SIMPLE, 3, [200]) == 12.0
    # One to the other: the second piece leaves when the first one has come.
    assert along(SIMPLE, parents(3, 1), [100, 100]) == 2 + 1 + 1 + 1 + 1 + 1


def test_a_tree_is_worth_it_for_many_nodes_and_large_payloads() -> None:
    network, pieces = Network(), cut(16 << 20, 1 << 18)
    assert sum(pieces) == 16 << 20
    at_once = along(network, [-1] * 300, pieces)
    assert at_once > 50 * along(network, parents(300, 4), pieces)
    assert cut(5, 2) == [2, 2, 1]
