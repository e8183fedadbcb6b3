"""What a context can do over a cluster, beyond what ``test_engines.py`` shows of every engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessExceptionGroup, ProcessRaisedException
from rankspawn.cluster import AgentRequest, Local
from rankspawn.cluster.measured import Measured
from rankspawn.supervise.reports import Steps
from rankspawn.supervise.survivors import describe_kept
from rankspawn.view import viewer
from rankspawn.view.boards import PlainBoard
from rankspawn.view.ranks import Usage
from tests.cluster import cluster_cases as cases
from tests.cluster.fake_engine import FakeAgent, FakeEngine, Script
from tests.jobs import DEADLOCK
from tests.trace import trace_cases
from tests.trace.test_recorder import read_page


def fails_first(agent: FakeAgent) -> None:
    agent.fails(0, time.monotonic_ns())


def runs_on(_: FakeAgent) -> None:
    """Its ranks neither end nor say anything."""


ONE_FAILS: dict[tuple[int, str], Script] = {(0, "start"): fails_first, (1, "start"): runs_on}


def run(engine: FakeEngine, **options: Any) -> MultiprocessContext:
    given: dict[str, Any] = {"backend": "gloo", "grace_period": 1.0, **options}
    context: MultiprocessContext = rankspawn.spawn(print, (), 2, cluster=engine, **given)
    return context


def test_what_one_machine_can_do_ranks_on_nodes_can(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(cases.LOGGER), "level", 7)
    told: dict[int, Steps] = {}
    with pytest.raises(ProcessExceptionGroup) as caught:
        rankspawn.spawn(
            cases.take_part,
            nprocs=(2, 1),
            cluster=Local(nodes=2),
            backend="gloo",
            rank_kwargs=[{"own": own} for own in "abc"],
            logging="inherit",
            on_failure="continue",
            on_report=told.__setitem__,
            trace=tmp_path / "run.json",
        )

    assert caught.value.results == {0: ("a", 7), 2: ("c", 7)}
    (error,) = caught.value.exceptions
    assert isinstance(error, ProcessRaisedException)
    assert (error.rank, str(error.exception)) == (1, "on purpose: b")
    assert {rank: steps.step for rank, steps in told.items()} == {0: 1.0, 1: 1.0, 2: 1.0}
    assert sorted(capfd.readouterr().out.split()) == ["a", "b", "c"]  # as they are, nobody asked
    trace = (tmp_path / "run.json").read_text()
    assert all(f"rank {rank}" in trace for rank in range(3))
    assert all(word in trace for word in ("local0", "local1", "on purpose: b"))


def test_an_error_has_the_stacks_of_ranks_on_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankspawn.cluster.group._TIME_FOR_QUICK_STACKS", DEADLOCK)
    with pytest.raises(ProcessRaisedException) as caught:
        run(FakeEngine(2, ONE_FAILS))

    assert {2: "where", 3: "where"}.items() <= caught.value.stacks.items()
    with pytest.raises(ProcessRaisedException) as caught:
        run(FakeEngine(2, ONE_FAILS), stacks=False)
    assert caught.value.stacks == {}


def test_those_that_are_kept_are_named_with_their_host() -> None:
    with run(FakeEngine(2, ONE_FAILS), join=False) as context:
        group = context._supervisor.group
        assert group.wait(lambda: group.has_failed, time.monotonic() + DEADLOCK)
        text = describe_kept(group)

    assert text.startswith("rank 0 failed, and nothing is stopped")
    assert "rank 2 is 1000 on fake1, rank 3 is 1001 on fake1" in text


def test_nodes_of_which_nothing_is_heard_have_stalled() -> None:
    engine = FakeEngine(2, {(node, "start"): runs_on for node in range(2)})
    with pytest.raises(rankspawn.SpawnTimeoutError, match=r"^no rank reported or printed") as e:
        run(engine, stall_timeout=0.05)

    assert all(f"rank {rank} " in str(e.value) for rank in range(4))
    # So agents look often enough at what is reported.
    starts = [agent.simulated.start for agent in engine.agents]
    assert [start["looked_at"] for start in starts] == [True, True]
    # Nobody is shown what their ranks take.
    assert [(start["measured"], start["traced"]) for start in starts] == [(False, False)] * 2


class Seen(PlainBoard):
    """Calls a function with each view of the ranks, from the first moment on."""

    first, interval = 0.0, 0.01

    def __init__(self, screen: Any, note: Callable[[Any], None]) -> None:
        super().__init__(screen)
        self._note = note

    def draw(self, rows: Any, seconds: float) -> None:
        super().draw(rows, seconds)
        self._note(rows)


def test_what_ranks_of_all_nodes_take_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def note(rows: Any) -> None:
        if all(row.usage.memory and row.usage.cpu_percent is not None for row in rows):
            (tmp_path / "word").write_text("seen")

    monkeypatch.setattr(viewer, "open_board", lambda screen, **_: Seen(screen, note))
    context: MultiprocessContext = rankspawn.spawn(
        cases.wait_for_word,
        (str(tmp_path),),
        nprocs=(2, 1),
        cluster=Local(nodes=2),
        backend="gloo",
        progress=True,
        timeout=DEADLOCK,
    )

    assert context.results() == [(rank, 0) for rank in range(3)]


def test_what_ranks_of_all_nodes_take_is_in_a_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looks: list[int] = []
    usage_of = Measured.usage_of

    def look(self: Measured, index: int) -> Usage:
        usage = usage_of(self, index)
        looks.extend([index] * bool(usage.memory))
        # It was taken note of before the same rank was looked at again.
        if all(looks.count(each) > 1 for each in range(3)):
            (tmp_path / "word").write_text("taken")
        return usage

    monkeypatch.setattr(Measured, "usage_of", look)
    rankspawn.spawn(
        cases.wait_for_word,
        (str(tmp_path),),
        nprocs=(2, 1),
        cluster=Local(nodes=2),
        backend="gloo",
        trace=tmp_path / "run.html",
        timeout=DEADLOCK,
    )

    for lane in read_page(tmp_path / "run.html")["ranks"]:
        assert lane["curves"]["memory"][1][-1] > 1 << 20
        assert lane["curves"]["cpu"][1][-1] >= 0


def test_what_ranks_of_a_node_exchange_is_in_a_trace(tmp_path: Path) -> None:
    """Numbers that are final, though nobody was told them while the ranks ran."""
    path = tmp_path / "run.html"
    rankspawn.spawn(trace_cases.talk, (), 2, cluster=Local(nodes=1), backend="gloo", trace=path)

    for lane in read_page(path)["ranks"]:
        told = lane["collectives"]
        calls = {name: number for name, (number, _) in told["calls"].items()}
        once = ("init_parallel_env", "all_gather_object", "split", "barrier", "all_reduce")
        assert calls == dict.fromkeys(once, 1)
        assert told["bytes"] > 3
        if lane["rank"] == 0:
            assert list(told["for"]) == ["1"]


class Queueing(FakeEngine):
    """Its nodes are busy with others for a thousand seconds, of a clock that the test has."""

    now = 0.0

    def start(self, request: AgentRequest) -> Any:
        self.now += 1000.0
        return super().start(request)


@pytest.mark.parametrize(("has_queue", "queued"), [(True, 1000.0), (False, 0.0)])
def test_the_time_in_a_queue_is_no_part_of_a_timeout(
    monkeypatch: pytest.MonkeyPatch, has_queue: bool, queued: float
) -> None:
    engine = Queueing(1, start_timeout=None if has_queue else DEADLOCK)
    began = time.monotonic()
    # Whole seconds, of which differences are exact.
    clock = SimpleNamespace(monotonic=lambda: int(began) + engine.now)
    monkeypatch.setattr("rankspawn.cluster.agents.time", clock)
    context = run(engine, timeout=10 * DEADLOCK)
    supervisor = context._supervisor

    assert supervisor.group.queued == queued
    assert supervisor.deadline is not None
    supervised_at = supervisor.deadline - queued - 10 * DEADLOCK
    assert began - 0.001 <= supervised_at <= time.monotonic() + 0.001


def test_what_goes_wrong_once_they_run_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("rankspawn.cluster.starting.ClusterStarter._note_nodes", refuse)
    engine = FakeEngine(1, {(0, "start"): runs_on})
    with pytest.raises(OSError, match="no space left"):
        run(engine)

    assert engine.agents[0].simulated.heard[-1] == "stop"
