"""Large clusters in bad weather: never two generations at once, and a way back every time."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from rankspawn.launch.rendezvous import fence, node_logic
from rankspawn.launch.rendezvous.job_state import JobTerms, Phase
from rankspawn.launch.rendezvous.participant import Over
from rankspawn.launch.rendezvous.records import read_state
from tests.launch.rendezvous.pure.simulation import Cluster, Conditions, SimNode

LEASE = 10.0
# Where a thousand nodes have to come together again: with more loss one of them is always lost.
FAIR = Conditions(slow=0.002, loss=0.0002)
# Seconds of simulated time after which something that should come back has not.
PATIENCE = 20 * LEASE


@pytest.fixture(autouse=True)
def _read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand nodes read the same text; here it is read once for all of them."""
    monkeypatch.setattr(node_logic, "read_state", functools.lru_cache(16)(read_state))


def elastic(low: int, high: int, level: int = 1) -> JobTerms:
    return JobTerms(low, high, max_restart=10**6, elastic_level=level, elastic_timeout=5.0)


def join_all(cluster: Cluster, within: float) -> None:
    for node in cluster.nodes:
        cluster.later(cluster.random.uniform(0, within), functools.partial(cluster.join, node))


def run_until_all_work(cluster: Cluster) -> None:
    count = len(cluster.nodes)
    assert cluster.run(cluster.time + PATIENCE, lambda: cluster.working == count), (
        f"{cluster.working} of {count} work after {cluster.time:.0f} s, {cluster.phase}"
    )


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_nodes_join_at_once_split_in_two_and_meet_again(count: int) -> None:
    cluster = Cluster(elastic(count // 3, count), count, seed=1, conditions=FAIR)
    join_all(cluster, within=1.0)
    run_until_all_work(cluster)

    for node in cluster.nodes[::2]:
        node.linked = False
    others = cluster.nodes[1::2]
    half_works = functools.partial(is_working, cluster, others, len(others))
    assert cluster.run(cluster.time + PATIENCE, half_works), cluster.processes
    # The half without a store is quiet, and stays so.
    cluster.run(cluster.time + 2 * LEASE)
    assert not any(node.alive for node in cluster.nodes[::2])

    for node in cluster.nodes[::2]:
        node.linked = True
    run_until_all_work(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_bad_weather(seed: int) -> None:
    cluster = Cluster(elastic(2, 30), 30, seed=seed)

    weather_a_storm(cluster, seconds=40 * LEASE, every=8.0)

    assert len(cluster.most_nodes) > 10, "too few generations to say anything"


def weather_a_storm(cluster: Cluster, *, seconds: float, every: float) -> None:
    join_all(cluster, within=3.0)
    storm(cluster, seconds=seconds, every=every)
    run_until_all_work(cluster)


@pytest.mark.slow
def test_a_thousand_nodes_in_bad_weather() -> None:
    cluster = Cluster(elastic(300, 1000), 1000, seed=101, conditions=FAIR)

    weather_a_storm(cluster, seconds=3 * LEASE, every=6.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_few_nodes_in_very_bad_weather(seed: int) -> None:
    terrible = Conditions(delay=(0.0, 0.5), slow=0.2, slow_delay=6.0, loss=0.1)
    cluster = Cluster(elastic(1, 5), 5, seed=seed, conditions=terrible)
    join_all(cluster, within=3.0)

    storm(cluster, seconds=100 * LEASE, every=10.0)

    cluster.conditions = Conditions()
    run_until_all_work(cluster)


def test_the_leading_node_dies_again_and_again() -> None:
    cluster = Cluster(elastic(1, 8), 8, seed=5)
    join_all(cluster, within=1.0)
    run_until_all_work(cluster)
    for _ in range(5):
        leader = next(node for node in cluster.nodes if node.logic and node.logic.leads)
        cluster.kill_launcher(leader)
        alive = [node for node in cluster.nodes if node is not leader]
        seven_work = functools.partial(is_working, cluster, alive, 7)
        assert cluster.run(cluster.time + PATIENCE, seven_work)
        cluster.join(leader)
        run_until_all_work(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("level", [-1, 0, 1])
def test_a_failed_worker_of_a_large_fixed_job(level: int) -> None:
    terms = JobTerms(200, 200, elastic_level=level, elastic_timeout=5.0)
    cluster = Cluster(terms, 200, seed=3)
    join_all(cluster, within=1.0)
    run_until_all_work(cluster)

    failing = cluster.nodes[17]
    cluster.fail_worker(failing)

    if level == 1:
        assert cluster.run(cluster.time + PATIENCE, lambda: cluster.processes == {2: 200})
        return
    everywhere = lambda: all(node.outcomes for node in cluster.nodes)  # noqa: E731
    assert cluster.run(cluster.time + PATIENCE, everywhere)
    first = [node.outcomes[0] for node in cluster.nodes]
    # The root cause reaches every node; at level 0 the rest wait in vain for a replacement.
    assert {step.result.exit_code for step in first if isinstance(step, Over)} == {7}


@pytest.mark.slow
def test_success_reaches_every_node() -> None:
    cluster = Cluster(JobTerms(300, 300), 300, seed=4)
    join_all(cluster, within=1.0)
    run_until_all_work(cluster)

    for node in cluster.nodes:
        cluster.later(cluster.random.uniform(0, 5), functools.partial(cluster.finish, node))

    assert cluster.run(
        cluster.time + PATIENCE, lambda: all(node.outcomes for node in cluster.nodes)
    )
    assert cluster.phase is Phase.ENDED
    for node in cluster.nodes:
        outcome = node.outcomes[0]
        assert isinstance(outcome, Over)
        assert outcome.result.succeeded


@pytest.mark.slow
def test_a_fence_that_acts_too_late_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation can tell: without the times that follow from the lease, it fails."""
    monkeypatch.setattr(fence, "_FENCE", 1.5)
    with pytest.raises(AssertionError, match="two generations"):
        weather_storms(range(10))


def weather_storms(seeds: range) -> None:
    for seed in seeds:
        weather_a_storm(Cluster(elastic(2, 30), 30, seed=seed), seconds=60 * LEASE, every=8.0)


def is_working(cluster: Cluster, nodes: list[SimNode], count: int) -> bool:
    newest = max(cluster.processes, default=0)
    return sum(node.alive.get(node.life) == newest for node in nodes) == count == cluster.working


def storm(cluster: Cluster, *, seconds: float, every: float) -> None:
    """Trouble of all kinds, and at the end everybody is back and awake."""
    end = cluster.time + seconds
    while cluster.time < end:
        cluster.run(cluster.time + cluster.random.expovariate(1 / every))
        cluster.random.choice(TROUBLES)(cluster)
    for node in cluster.nodes:
        node.linked = True
        node.frozen_until = 0.0
    # Who was about to leave has left by then.
    cluster.run(cluster.time + 3 * LEASE)
    for node in cluster.nodes:
        revive(cluster, node)


def some(cluster: Cluster, share: float) -> Iterator[SimNode]:
    count = max(1, int(share * len(cluster.nodes) * cluster.random.random()))
    yield from cluster.random.sample(cluster.nodes, count)


def cut_off(cluster: Cluster) -> None:
    for node in some(cluster, 0.1):
        node.linked = False
        back = functools.partial(setattr, node, "linked", True)
        cluster.later(cluster.random.uniform(0, 2.5 * LEASE), back)


def split(cluster: Cluster) -> None:
    for node in some(cluster, 1.0):
        node.linked = False
        back = functools.partial(setattr, node, "linked", True)
        cluster.later(cluster.random.uniform(0.3, 2.0) * LEASE, back)


def freeze(cluster: Cluster) -> None:
    for node in some(cluster, 0.1):
        cluster.freeze(node, cluster.random.uniform(0, 2.5 * LEASE))


def kill(cluster: Cluster) -> None:
    """Launchers die, and are started again on the same machines."""
    for node in some(cluster, 0.1):
        cluster.kill_launcher(node)
        cluster.later(
            cluster.random.uniform(0, 2 * LEASE), functools.partial(revive, cluster, node)
        )


def revive(cluster: Cluster, node: SimNode) -> None:
    if node.logic is None:
        cluster.join(node)


def fail(cluster: Cluster) -> None:
    for node in some(cluster, 0.02):
        cluster.fail_worker(node)


def leave(cluster: Cluster) -> None:
    for node in some(cluster, 0.05):
        cluster.leave(node)
        cluster.later(
            cluster.random.uniform(0, 2 * LEASE), functools.partial(revive, cluster, node)
        )


TROUBLES = (cut_off, split, freeze, kill, fail, leave)
