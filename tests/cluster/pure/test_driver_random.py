"""Random walks of a driver and its agents: whatever happens, nothing is left open."""

from __future__ import annotations

import random
import sys
import tracemalloc

import pytest

from rankspawn.supervise.outcome import End, failures_in
from tests.cluster.pure.simulated import Cluster, SimulatedAgent, driver_of, outcome

Frame = tuple[dict[str, object], bytes]


def script_of(count: int, dice: random.Random) -> list[Frame]:
    """What an agent says when its ranks run."""
    frames: list[Frame] = []
    for local in range(count):
        size = dice.choice([None, 0, 5])
        end = dice.choice(["RETURNED", "RETURNED", "RAISED", "DIED", "STOPPED"])
        frames.append(({"is": "output", "index": local}, b"line\n"))
        if end == "RAISED":
            early = {**outcome(local, end, when=dice.randrange(10**9)), "final": False}
            frames.append((early, b""))
        frames.append(
            (
                outcome(
                    local, end, when=dice.randrange(10**9), pieces=None if size is None else [size]
                ),
                b"",
            )
        )
        if size:
            frames += [({"is": "data", "index": local, "offset": at}, b"x") for at in range(size)]
    if dice.random() < 0.5:
        frames.append(({"is": "ending", "why": "SIGTERM"}, b""))
    frames.append(({"is": "stopped"}, b""))
    return frames


@pytest.mark.parametrize("seed", range(150))
def test_a_random_walk(seed: int) -> None:
    dice = random.Random(seed)
    counts = [dice.randrange(1, 4) for _ in range(dice.randrange(1, 5))]
    agents = [
        SimulatedAgent(number, dice.choice([0, 10**12, -(10**12)])) for number in range(len(counts))
    ]
    cluster = Cluster(driver_of(len(counts), lease=dice.choice([None, 30.0])), agents)
    driver = cluster.driver
    lost: set[int] = set()

    def lose(number: int) -> None:
        lost.add(number)
        driver.lose(number, "gone", cluster.now)

    greeted = dice.sample(range(len(counts)), len(counts))
    driver.begin(counts)
    for number in greeted:
        if dice.random() < 0.05:
            lose(number)
        else:
            cluster.greet(number)
        cluster.deliver(lambda: dice.randrange(1000))
    if driver.error is not None:
        assert lost
        assert not driver.is_started
        return
    assert driver.is_started

    scripts = [script_of(count, dice) for count in counts]
    last: dict[int, Frame] = {}
    while any(scripts):
        number = dice.choice([number for number, script in enumerate(scripts) if script])
        cluster.now += dice.randrange(10**9)
        event = dice.random()
        if event < 0.03 and number not in lost:
            lose(number)
        elif event < 0.05:
            driver.stop(1.0, cluster.now)
            driver.sends.clear()
        elif event < 0.07:
            for silent in driver.tick(cluster.now):
                lose(silent)
        elif event < 0.15 and number in last:
            cluster.says(number, *last[number])  # twice
        else:
            frame = last[number] = scripts[number].pop(0)
            cluster.says(number, *frame)
    for number in range(len(counts)):
        if driver.expects(number):
            lose(number)

    assert driver.all_stopped
    assert driver.all_ended
    assert sorted(driver.outcomes) == list(range(sum(counts)))
    assert all(driver.has_ended(index) for index in driver.outcomes)
    failures = failures_in(driver.outcomes)
    assert driver.has_failed or not failures
    times = [each.when_ns for _, each in failures]
    assert times == sorted(times)
    of_lost = [each.host for _, each in failures if each.end is End.LOST]
    assert len(of_lost) == len(set(of_lost))


def play(nodes: int, ranks: int) -> Cluster:
    """From the start to results on so many nodes."""
    cluster = Cluster(driver_of(nodes), [SimulatedAgent(number) for number in range(nodes)])
    cluster.start([ranks] * nodes)
    for number in range(nodes):
        for local in range(ranks):
            cluster.says(number, outcome(local, pieces=[4]))
            cluster.says(number, {"is": "data", "index": local, "offset": 0}, b"done")
    assert cluster.driver.all_ended
    return cluster


@pytest.mark.untraced
def test_work_and_memory_grow_with_the_number_of_ranks_only() -> None:
    calls, sizes = [], []
    for nodes in (60, 120):
        count = 0

        def note(*_: object) -> None:
            nonlocal count
            count += 1

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            play(nodes, 4)
        finally:
            sys.setprofile(before)
        tracemalloc.start()
        cluster = play(nodes, 4)
        cluster.agents = []
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        calls.append(count)

    assert calls[1] <= 2.2 * calls[0]
    assert sizes[1] <= 2.3 * sizes[0]
