"""The driver's bookkeeping, with agents in memory: every loss, in every phase."""

from __future__ import annotations

import signal

import pytest

from rankspawn import NodeLostError
from rankspawn.supervise.outcome import End, failures_in
from tests.cluster.pure.simulated import Cluster, SimulatedAgent, driver_of, outcome, running

SECOND = 1_000_000_000


def test_all_nodes_are_told_where_all_ranks_are() -> None:
    own = [(10, 8), (20, 11), (30, 13)]
    cluster = running(1, 2, payload=memoryview(b"a task0011122"), own=own, shared=6)

    first, second = cluster.agents
    assert first.hosts == second.hosts == [["10.0.0.1", 1, [5000]], ["10.0.0.1", 2, [5000, 5001]]]
    assert (first.start["node_rank"], second.start["node_rank"]) == (0, 1)
    # Of what is each rank's own a node gets that of its ranks, at the place where it was.
    assert (first.payload, second.payload) == (b"a task00", b"a task??11122")
    assert second.start["payload"] == {"task": 0, "end": 13, "own": [20, 30]}
    assert cluster.driver.is_started
    assert [node.first for node in cluster.driver.nodes] == [0, 1]
    assert [cluster.driver.node_of(rank).number for rank in range(3)] == [0, 1, 1]


def test_a_node_says_how_many_ranks_it_has() -> None:
    cluster = running(-1, 1, env=lambda rank: {"OWN": str(rank)})

    assert [node.count for node in cluster.driver.nodes] == [2, 1]
    assert cluster.agents[1].start["env"] == [{"OWN": "2"}]


def test_results_come_in_pieces_and_count_when_whole() -> None:
    cluster = running(2)
    cluster.says(0, outcome(1, pieces=[3, 2]))
    driver = cluster.driver
    assert (driver.outcomes[1].end, driver.has_ended(1)) == (End.RETURNED, False)

    cluster.says(0, {"is": "data", "index": 1, "offset": 0}, b"abc")
    cluster.says(0, {"is": "data", "index": 1, "offset": 0}, b"abc")  # twice
    assert not driver.has_ended(1)
    cluster.says(0, {"is": "data", "index": 1, "offset": 3}, b"de")

    assert driver.has_ended(1)
    assert not driver.all_ended
    assert [bytes(piece) for piece in driver.nodes[0].reports[1].pieces()] == [b"abc", b"de"]


def test_what_comes_out_of_order_is_an_error_of_the_channel() -> None:
    cluster = running(1)
    cluster.says(0, outcome(0, pieces=[6]))

    with pytest.raises(ValueError, match="out of order"):
        cluster.says(0, {"is": "data", "index": 0, "offset": 3}, b"def")


@pytest.mark.parametrize("header", [{"is": "output", "index": 7}, {"is": "output"}, outcome(-1)])
def test_a_frame_about_no_rank_is_an_error_of_the_channel(header: dict[str, object]) -> None:
    cluster = running(1)

    with pytest.raises((ValueError, KeyError)):
        cluster.says(0, header)


def test_the_same_frame_twice_changes_nothing() -> None:
    cluster = running(1, 1)
    for _ in range(2):
        cluster.says(0, cluster.agents[0].greeting)
        cluster.says(0, cluster.agents[0].ready())
        cluster.says(0, {"is": "started", "pids": [5], "plan": ""})
        cluster.says(0, outcome(0))
        cluster.says(0, outcome(0, "RAISED"))

    assert cluster.driver.outcomes[0].end is End.RETURNED
    assert cluster.driver.outcomes[0].pid == 0
    assert not cluster.driver.has_failed


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"version": "0.1.0"}, "node0 has rankspawn 0.1.0 on Python 3.11.9 .* rankspawn 0.2.0 on"),
        ({"python": "3.12.1"}, "node0 has rankspawn 0.2.0 on Python 3.12.1 .*Python 3.11.9"),
    ],
)
def test_other_versions_are_an_error_that_names_both(hello: dict[str, str], words: str) -> None:
    cluster = Cluster(driver_of(1), [SimulatedAgent(0, hello=hello)])
    cluster.start([1])

    assert not cluster.driver.is_started
    with pytest.raises(RuntimeError, match=words):
        raise cluster.driver.error or AssertionError


def test_a_python_with_another_last_number_will_do() -> None:
    cluster = Cluster(driver_of(1), [SimulatedAgent(0, hello={"python": "3.11.2"})])
    cluster.start([1])

    assert cluster.driver.is_started


def test_what_a_node_refuses_is_raised_with_its_name() -> None:
    cluster = Cluster(driver_of(1), [SimulatedAgent(0)])
    cluster.greet(0)
    cluster.says(0, {"is": "refused", "kind": "ValueError", "text": "gpus has 4, which is hidden"})

    with pytest.raises(ValueError, match="node0: gpus has 4, which is hidden"):
        raise cluster.driver.error or AssertionError


PHASES = {
    "before hello": 0,
    "between hello and start": 1,
    "while starting": 2,
    "while running": 3,
    "while results travel": 4,
}


@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES.keys())
def test_a_node_that_is_lost(phase: int) -> None:
    agents = [SimulatedAgent(0), SimulatedAgent(1)]
    cluster = Cluster(driver_of(2), agents)
    driver = cluster.driver
    cluster.greet(0)
    driver.begin([1, 2])
    if phase > 0:
        cluster.greet(1)
    if phase == 2:
        cluster.deaf = {1}
        agents[1].count = 2
        cluster.says(1, agents[1].ready())
    if phase > 1:
        cluster.deliver()
    if phase == 4:
        cluster.says(1, outcome(0, pieces=[100]))
        cluster.says(1, {"is": "data", "index": 0, "offset": 0}, b"x" * 50)
    driver.lose(1, "the cable was cut", cluster.now)

    error = driver.error
    if phase < 3:
        assert isinstance(error, NodeLostError)
        assert error.host == "node1"
        assert "the node node1 was lost" in str(error)
        assert str(error).endswith(": the cable was cut")
        return
    assert error is None
    lost = failures_in(driver.outcomes)
    assert [(index, each.end, each.host) for index, each in lost] == [(1, End.LOST, "node1")]
    assert (driver.has_ended(1), driver.has_ended(2), driver.has_ended(0)) == (True, True, False)
    driver.stop(1.0, cluster.now)
    cluster.deliver()
    assert agents[0].heard[-1] == "stop"
    assert "stop" not in agents[1].heard
    assert driver.all_stopped


def test_the_first_failure_in_time_comes_first_whoever_is_heard_first() -> None:
    cluster = running(1, 1)
    now = cluster.now
    cluster.says(1, outcome(0, "RAISED", when=now + 2))
    cluster.says(0, outcome(0, "RAISED", when=now + 1))

    assert [index for index, _ in failures_in(cluster.driver.outcomes)] == [0, 1]


def test_two_nodes_that_fail_at_the_same_time_are_both_named() -> None:
    cluster = running(1, 1)
    cluster.driver.lose(0, "", cluster.now)
    cluster.driver.lose(1, "", cluster.now)

    lost = [each.host for _, each in failures_in(cluster.driver.outcomes)]
    assert lost == ["node0", "node1"]


def test_clocks_of_other_machines_are_compared_by_the_quickest_answer() -> None:
    far, delays = 500 * SECOND, iter([40, 60, 1, 2, 900, 30])
    agents = [SimulatedAgent(0), SimulatedAgent(1, clock_ns=far)]
    cluster = Cluster(driver_of(2), agents)
    driver = cluster.driver
    for number in range(2):
        cluster.greet(number)
    for _ in range(3):
        cluster.deliver(lambda: next(delays))
        cluster.now += 6 * SECOND
        driver.tick(cluster.now)

    node = driver.nodes[1]
    assert node.error_ns is not None
    # Half of the round trip is how wrong it may be.
    assert node.error_ns <= 2
    assert abs(node.offset_ns - far) <= node.error_ns
    assert not driver.needs_no_time

    driver.sends.clear()
    driver.begin([1, 1])
    cluster.deliver()
    now = cluster.now
    cluster.says(1, outcome(0, "RAISED", when=now + far - 100))
    cluster.says(0, outcome(0, "RAISED", when=now))
    assert [index for index, _ in failures_in(driver.outcomes)] == [1, 0]


def test_what_failed_after_all_were_asked_to_stop_is_a_victim() -> None:
    cluster = running(1, 1)
    cluster.deaf = {1}
    cluster.driver.stop(1.0, cluster.now)
    cluster.says(1, outcome(0, "RAISED", when=cluster.now + 1))

    assert cluster.driver.outcomes[1].end is End.STOPPED
    assert not cluster.driver.has_failed


def test_a_silent_node_is_asked_and_then_given_up() -> None:
    cluster = running(1, 1, lease=30.0)
    driver = cluster.driver
    cluster.deaf = {1}
    for _ in range(4):
        cluster.now += 6 * SECOND
        assert driver.tick(cluster.now) == []
        cluster.deliver()
    cluster.now += 7 * SECOND

    assert driver.tick(cluster.now) == [1]
    assert cluster.agents[0].heard.count("ping") == 4


def test_an_agent_that_somebody_else_ends_is_a_lost_node() -> None:
    cluster = running(1, 1)
    cluster.says(1, {"is": "ending", "why": "its agent was asked to end by SIGTERM"})
    cluster.says(1, outcome(0, "STOPPED", when=cluster.now))
    cluster.says(1, {"is": "stopped"})

    (lost,) = failures_in(cluster.driver.outcomes)
    assert (lost[0], lost[1].end, lost[1].host) == (1, End.LOST, "node1")
    assert "SIGTERM (a time limit, a preemption, or somebody ended it)" in str(lost[1].evidence)


def test_a_rank_that_a_scheduler_ended_with_its_agent_says_so() -> None:
    cluster = running(1, 1)
    cluster.says(1, {"is": "ending", "why": "its agent was asked to end by SIGTERM"})
    for node in (0, 1):
        cluster.says(node, {**outcome(0, "DIED", when=cluster.now), "code": -signal.SIGTERM})

    alone, ended = (cluster.driver.outcomes[rank].evidence for rank in (0, 1))
    assert alone is None
    assert "its agent was asked to end by SIGTERM (a time limit, a preempt" in str(ended)


def test_signals_and_questions_go_to_the_node_of_a_rank() -> None:
    cluster = running(1, 2)
    cluster.driver.signal(2, 15)
    (send,) = cluster.driver.sends
    assert (send.node, send.header) == (1, {"is": "signal", "index": 1, "number": 15})
    cluster.deliver()

    cluster.driver.ask_for_stacks()
    before = cluster.driver.has_stacks
    cluster.deliver()
    assert (before, cluster.driver.has_stacks) == (False, True)
    assert cluster.driver.stacks == dict.fromkeys(range(3), "where")
    cluster.driver.kill(cluster.now)
    cluster.deliver()
    assert [agent.heard[-1] for agent in cluster.agents] == ["kill", "kill"]
