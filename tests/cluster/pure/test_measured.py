"""What agents say of CPU, memory and collectives of their ranks, and what no agent says."""

from __future__ import annotations

from typing import Any

import pytest

from rankspawn.cluster.frames import GarbledError
from rankspawn.cluster.measured import Measured
from rankspawn.parallel.statistics import Talk
from rankspawn.view.ranks import Usage
from tests.cluster.pure.simulated import Cluster, running

USAGE = [12.5, 1 << 30, None]
TALK = {"calls": {"barrier": [3, 0.25]}, "bytes": 7, "for": [[1, 0.125]]}


def says(cluster: Cluster, node: int, index: int, **measured: Any) -> None:
    header = {"is": "steps", "index": index, "state": "running"}
    cluster.says(node, {**header, **({"measured": measured} if measured else {})})


def test_the_last_numbers_of_each_rank_are_kept() -> None:
    cluster = running(1, 2)
    measured = Measured(cluster.driver)
    assert (measured.usage_of(2), measured.talks()) == (Usage(), {})

    says(cluster, 1, 1, usage=USAGE)
    says(cluster, 1, 0, usage=[None, None, 5], talk=TALK)
    says(cluster, 1, 0)  # nothing new
    usages = [measured.usage_of(rank) for rank in range(3)]
    assert usages == [Usage(), Usage(None, None, 5), Usage(12.5, 1 << 30, None)]
    # Ranks are known here by their number among all.
    assert measured.talks() == {1: Talk({"barrier": 3}, {"barrier": 0.25}, 7, {2: 0.125})}

    says(cluster, 1, 1, usage=[0, 4096, None])
    assert measured.usage_of(2) == Usage(0.0, 4096, None)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        [1.0, 2],
        [1.0, 2, 3, 4],
        {"cpu": 1.0},
        ["1", 2, 3],
        [True, 2, 3],
        [float("nan"), 2, 3],
        [float("inf"), 2, 3],
        [-0.5, 2, 3],
        [1e12, 2, 3],
        [1.0, 2.5, 3],
        [1.0, -2, 3],
        [1.0, 1 << 63, 3],
        [1.0, 2, 10**400],
        [10**400, 2, 3],
    ],
)
def test_what_no_rank_can_take_is_an_error_of_the_channel(usage: object) -> None:
    cluster = running(2)
    with pytest.raises(GarbledError):
        says(cluster, 0, 1, usage=usage)
    assert Measured(cluster.driver).usage_of(1) == Usage()


@pytest.mark.parametrize(
    "change",
    [
        {"calls": None},
        {"calls": {"no_collective": [1, 1.0]}},
        {"calls": {"barrier": 3}},
        {"calls": {"barrier": [-1, 0.5]}},
        {"calls": {"barrier": [1.5, 0.5]}},
        {"calls": {"barrier": [1, float("nan")]}},
        {"calls": {"barrier": [1, 1e300]}},
        {"bytes": None},
        {"bytes": -1},
        {"bytes": 1 << 64},
        {"for": None},
        {"for": {"1": 2.0}},
        {"for": [[2, 0.5]]},
        {"for": [[-1, 0.5]]},
        {"for": [[True, 0.5]]},
        {"for": [[1, -0.5]]},
        {"for": [[1, 0.5]] * 3},
        {"for": [1, 0.5]},
    ],
)
def test_what_no_rank_can_exchange_is_an_error_of_the_channel(change: dict[str, object]) -> None:
    cluster = running(2)
    with pytest.raises(GarbledError):
        says(cluster, 0, 1, usage=USAGE, talk={**TALK, **change})
    assert Measured(cluster.driver).talks() == {}


@pytest.mark.parametrize("measured", [5, [], {"talk": TALK}])
def test_what_has_no_numbers_is_one_too(measured: object) -> None:
    header = {"is": "steps", "index": 0, "state": "running", "measured": measured}
    with pytest.raises((KeyError, TypeError)):
        running(1).says(0, header)
