"""Every way in which an agent or its channel can be lost, over agents that are threads here."""

from __future__ import annotations

import os
import pickle
import time
from multiprocessing import process as processes
from typing import Any

import pytest

import rankspawn
from rankspawn import MultiprocessContext, NodeLostError, ProcessRaisedException, SpawnTimeoutError
from tests.cluster.fake_engine import FakeAgent, FakeEngine, Script, cut, garbage, hang


def run(engine: FakeEngine, nprocs: Any = 2, **options: Any) -> MultiprocessContext:
    given: dict[str, Any] = {"backend": "gloo", "grace_period": 1.0, **options}
    context: MultiprocessContext = rankspawn.spawn(print, (), nprocs, cluster=engine, **given)
    return context


@pytest.mark.parametrize("piece", [None, 1, 1000])
def test_results_come_over_a_slow_channel(piece: int | None) -> None:
    context = run(FakeEngine(3, piece=piece))

    assert context.results() == [(node, local) for node in range(3) for local in range(2)]
    # Also if they ended before they were known as processes.
    assert processes._children.isdisjoint(context.processes)  # type: ignore[attr-defined]


def say_no(agent: FakeAgent) -> None:
    agent.writes(b"python: command not found\n")
    cut(agent)


def lose_result(agent: FakeAgent) -> None:
    agent.returns(0)
    agent.returns(1, keep=3)
    cut(agent)


LOSSES: dict[str, tuple[str, Script]] = {
    "before hello": ("begin", cut),
    "other words in place of a hello": ("begin", say_no),
    "between hello and start": ("before prepare", cut),
    "while it gets ready": ("prepare", cut),
    "while starting": ("before start", cut),
    "while running": ("start", cut),
    "while results travel": ("start", lose_result),
    "garbage while starting": ("before start", garbage),
    "garbage while running": ("start", garbage),
}


@pytest.mark.parametrize(("moment", "script"), LOSSES.values(), ids=LOSSES.keys())
def test_a_lost_agent_ends_the_job_and_is_named(moment: str, script: Script) -> None:
    engine = FakeEngine(2, {(1, moment): script, (0, "start"): lambda _: None})
    with pytest.raises(NodeLostError, match="the node fake1 was lost") as caught:
        run(engine)

    assert caught.value.host == "fake1"
    assert pickle.loads(pickle.dumps(caught.value)).host == "fake1"
    word = "makes no sense" if script is garbage else "the fake engine cut it"
    assert word in str(caught.value)
    if script is say_no:
        assert "it printed: python: command not found" in str(caught.value)


def test_two_nodes_that_are_lost_at_once_are_both_named() -> None:
    with pytest.raises(NodeLostError) as caught:
        run(FakeEngine(3, {(0, "start"): cut, (2, "start"): cut, (1, "start"): lambda _: None}))

    hosts = [getattr(failure, "host", None) for failure in caught.value.failures]
    assert hosts[0] == caught.value.host
    assert set(hosts) <= {"fake0", "fake2"}


def test_the_first_failure_in_time_is_raised_whoever_says_so_first() -> None:
    moment = time.monotonic_ns()
    scripts: dict[tuple[int, str], Script] = {
        (0, "start"): lambda agent: agent.fails(1, moment - 10),
        (1, "start"): lambda agent: agent.fails(0, moment - 20),
    }
    with pytest.raises(ProcessRaisedException) as caught:
        run(FakeEngine(2, scripts))

    assert caught.value.rank in (1, 2)
    times = [failure.rank for failure in caught.value.failures]
    assert times in ([2, 1], [1], [2])


def test_frames_that_come_twice_change_nothing() -> None:
    def twice(agent: FakeAgent) -> None:
        for local in range(2):
            agent.returns(local)
            agent.returns(local)
            agent.says({"is": "started", "pids": [7, 8], "plan": ""})

    engine = FakeEngine(2, {(1, "start"): twice})

    assert run(engine).results() == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_node_that_does_not_say_that_its_ranks_are_gone_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rankspawn.cluster.group._TIME_TO_KILL", 0.05)
    scripts: dict[tuple[int, str], Script] = {
        (0, "start"): lambda agent: agent.fails(0, time.monotonic_ns()),
        (1, "start"): lambda _: None,
        (1, "before stop"): hang,
    }
    engine = FakeEngine(2, scripts)
    with pytest.raises(ProcessRaisedException) as caught:
        run(engine, grace_period=0.05)

    assert [type(each) for each in caught.value.failures] == [ProcessRaisedException, NodeLostError]
    assert "did not say in time that its ranks are gone" in str(caught.value.failures[1])
    assert engine.agents[1].channel.was_killed


def test_an_agent_that_never_says_a_word_is_an_error() -> None:
    engine = FakeEngine(2, {(1, "begin"): hang}, start_timeout=0.05)
    with pytest.raises(NodeLostError, match="no agent has come up on fake1: nothing was heard"):
        run(engine)


def test_a_timeout_holds_for_the_start_as_well() -> None:
    engine = FakeEngine(2, {(1, "before prepare"): hang})
    with pytest.raises(SpawnTimeoutError, match="before all ranks were started: fake1 had not"):
        run(engine, timeout=0.2)


def test_a_silent_node_is_lost_after_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankspawn.cluster.driver.PING_NS", 10_000_000)
    monkeypatch.setattr("rankspawn.cluster.links.PING_NS", 10_000_000)
    engine = FakeEngine(2, {(1, "start"): hang, (0, "start"): lambda _: None}, lease=0.3)
    with pytest.raises(NodeLostError, match=r"fake1 was lost .*nothing was heard of it for 0\.3 s"):
        run(engine)


def test_what_a_node_refuses_is_raised_as_it_is() -> None:
    def refuse(agent: FakeAgent) -> None:
        agent.says({"is": "refused", "kind": "ValueError", "text": "gpus has 4, which is hidden"})
        hang(agent)

    with pytest.raises(ValueError, match="fake0: gpus has 4, which is hidden"):
        run(FakeEngine(1, {(0, "before prepare"): refuse}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ips": "10.0.0.1"}, "ips and cluster cannot be given at once: the engine says"),
        ({"debug": 1}, "debug and cluster cannot be given at once"),
        ({"start_method": "fork"}, "start_method='fork' copies this process"),
        ({"nprocs": (1, 2, 3)}, "nprocs has 3 counts, but there are 2 nodes"),
        ({"rank_args": [(1,)]}, "rank_args has 1 entries, but nprocs is 4"),
        ({"tee": [7]}, "tee names rank 7, but the ranks are 0 to 3"),
    ],
)
def test_what_means_nothing_on_a_cluster_is_refused_before_anything_starts(
    options: dict[str, object], words: str
) -> None:
    engine = FakeEngine(2)
    with pytest.raises(ValueError, match=words):
        run(engine, **options)

    assert engine.agents == []


def test_no_descriptor_for_a_rank_unless_somebody_asks() -> None:
    silent: dict[tuple[int, str], Script] = {(n, "start"): lambda _: None for n in range(2)}
    counts = []
    for nprocs in (2, 50):
        with run(FakeEngine(2, silent), nprocs, join=False) as context:
            counts.append(len(os.listdir("/proc/self/fd")))
            assert context.processes[0].is_alive()
            sentinel = context.processes[0].sentinel
            assert context.sentinels[sentinel] == 0

    assert counts[0] == counts[1]
