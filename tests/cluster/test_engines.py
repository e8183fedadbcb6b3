"""``spawn(cluster=...)`` over every engine: the same call, the same context, the same errors."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rankspawn
from rankspawn import (
    MultiprocessContext,
    NodeLostError,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnTimeoutError,
)
from rankspawn.cluster import Engine
from tests.cluster import cluster_cases as cases
from tests.cluster.engines import Place, parameters
from tests.jobs import DEADLOCK


# Above the fixture that looks for what is left: what is up here is there before each test.
@pytest.fixture(scope="module", params=parameters())
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with request.param() as place:
        yield place


@pytest.fixture
def make_engine(place: Place) -> Iterator[Callable[[int], Engine]]:
    yield place.make
    place.settle()


@pytest.fixture
def engine(make_engine: Callable[[int], Engine]) -> Engine:
    return make_engine(2)


def test_every_rank_is_told_who_it_is_and_gives_its_result(engine: Engine) -> None:
    context: MultiprocessContext = rankspawn.spawn(
        cases.describe,
        ("all",),
        nprocs=(1, 2),
        cluster=engine,
        backend="gloo",
        kwargs={"key": b"value"},
        rank_args=[("zero",), ("one",), ("two",)],
        env=lambda rank: {"OWN": f"own {rank}"},
    )
    told = context.results()

    assert [each["rank"] for each in told] == [0, 1, 2]
    assert [each["LOCAL_RANK"] for each in told] == ["0", "0", "1"]
    assert [each["GROUP_RANK"] for each in told] == ["0", "1", "1"]
    assert [each["LOCAL_WORLD_SIZE"] for each in told] == ["1", "2", "2"]
    assert [each["args"] for each in told] == [("all", "zero"), ("all", "one"), ("all", "two")]
    assert [each["OWN"] for each in told] == ["own 0", "own 1", "own 2"]
    assert all(each["size"] == 3 and each["kwargs"] == {"key": b"value"} for each in told)
    (endpoints,) = {tuple(each["endpoints"]) for each in told}
    assert len(set(endpoints)) == 3
    assert {each["MASTER_PORT"] for each in told} == {endpoints[0].rpartition(":")[2]}
    assert context.pids() == [each["pid"] for each in told]
    assert context.exitcodes() == [0, 0, 0]
    hosts = [process.host for process in context.processes]
    assert hosts[0] != hosts[1] == hosts[2]
    assert context.return_queues[2].get()["rank"] == 2
    assert context.error_queues[2].empty()
    assert context.join()


def test_a_failure_stops_all_nodes_and_is_raised(engine: Engine) -> None:
    context = rankspawn.spawn(
        cases.fail, (2, "raise"), nprocs=2, cluster=engine, backend="gloo", join=False
    )
    with pytest.raises(ProcessRaisedException) as caught:
        context.join()

    assert [queue.empty() for queue in context.error_queues] == [True, True, False, True]
    assert "ValueError: on purpose" in context.error_queues[2].get()
    error = caught.value
    assert (error.rank, type(error.exception), len(error.failures)) == (2, ValueError, 1)
    assert str(error).startswith("Process 2 terminated with the following error:\n")
    assert str(error).endswith("ValueError: on purpose")


def test_a_signal_is_named(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(
        ProcessExitedException, match="Process 3 terminated with signal SIGKILL"
    ) as e:
        rankspawn.spawn(
            cases.fail,
            (3, "kill"),
            nprocs=2,
            cluster=engine,
            backend="gloo",
            log_dir=tmp_path,
            max_restarts=0,
        )

    assert (e.value.exit_code, e.value.rank) == (-9, 3)
    # Its log is here, whatever machine it ran on.
    assert "  | about to fail\n" in f"{e.value}\n"
    assert (tmp_path / "workerlog.3").read_text() == "about to fail\n"
    assert sorted(os.listdir(tmp_path)) == [f"workerlog.{rank}" for rank in range(4)]


def test_a_lost_agent_is_an_error_that_names_its_node(engine: Engine, tmp_path: Path) -> None:
    started = tmp_path / "started"
    context = rankspawn.spawn(
        cases.fail, (2, "agent", str(started)), nprocs=2, cluster=engine, backend="gloo", join=False
    )
    started.touch()
    with pytest.raises(NodeLostError) as caught:
        context.join()

    assert caught.value.rank == 2
    assert caught.value.host == context.processes[2].host
    assert caught.value.host in str(caught.value)
    assert [type(failure) for failure in caught.value.failures] == [NodeLostError]


def test_what_ranks_print_is_shown_with_their_host(
    engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    context = rankspawn.spawn(
        cases.speak, (1 << 20,), nprocs=1, cluster=engine, backend="gloo", tee=True
    )

    hosts = [process.host for process in context.processes]
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == sorted(
        f"[{host} rank {rank}] {line}"
        for rank, host in enumerate(hosts)
        for line in (f"rank {rank} speaks", "half a line")
    )
    assert [len(result) for result in context.results()] == [1 << 20] * 2


def test_without_options_it_goes_where_the_programs_own_does(
    engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    rankspawn.spawn(cases.speak, (0,), nprocs=1, cluster=engine, backend="gloo")

    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == ["half a line"] * 2 + ["rank 0 speaks", "rank 1 speaks"]


def test_a_context_looks_in_and_stops(engine: Engine) -> None:
    with rankspawn.spawn(
        cases.report_and_wait, nprocs=1, cluster=engine, backend="gloo", join=False
    ) as context:
        assert not context.join(timeout=0)
        assert repr(context) == "<MultiprocessContext: 2 ranks, 2 running>"
        assert sorted(context.dump_stacks()) == [0, 1]
        assert sorted(context.sentinels.values()) == [0, 1]
        deadline = time.monotonic() + DEADLOCK
        while len(context.reports()) < 2:
            assert not context.join(timeout=0.05)
            assert time.monotonic() < deadline
        assert {rank: steps.step for rank, steps in context.reports().items()} == {0: 3.0, 1: 3.0}
        context.processes[1].terminate()
        with pytest.raises(ProcessExitedException, match="signal SIGTERM") as caught:
            asyncio.run(asyncio.wait_for(_wait(context), DEADLOCK))
        assert caught.value.rank == 1
        assert context.exitcodes()[1] == -signal.SIGTERM


def test_a_context_is_terminated(engine: Engine) -> None:
    context = rankspawn.spawn(
        cases.sleep_for_ever,
        nprocs=2,
        cluster=engine,
        backend="gloo",
        join=False,
        grace_period=DEADLOCK,
    )
    context.terminate()
    assert context.exitcodes() == [-signal.SIGTERM] * 4
    assert not any(process.is_alive() for process in context.processes)


async def _wait(context: MultiprocessContext) -> None:
    await context


def test_what_ranks_take_is_measured_where_they_run(engine: Engine, tmp_path: Path) -> None:
    with rankspawn.spawn(
        cases.wait_for_word,
        (str(tmp_path),),
        nprocs=1,
        cluster=engine,
        backend="gloo",
        progress=True,
        join=False,
    ) as context:
        group = context._supervisor.group
        assert group.measured is not None
        usage_of = group.measured.usage_of
        assert group.wait(
            lambda: all((usage_of(rank).memory or 0) > 1 << 20 for rank in range(2)),
            time.monotonic() + DEADLOCK,
        )
        (tmp_path / "word").write_text("known")
        assert context.results() == [(0, 0), (1, 0)]


def test_a_timeout_has_the_stacks_of_all_nodes(engine: Engine) -> None:
    context = rankspawn.spawn(
        cases.sleep_for_ever, nprocs=1, cluster=engine, backend="gloo", join=False, timeout=1e4
    )
    context._supervisor.deadline = 0.0  # the time is over

    with pytest.raises(SpawnTimeoutError) as caught:
        context.join()
    assert sorted(caught.value.stacks) == [0, 1]


def test_all_nodes_start_again(engine: Engine, tmp_path: Path) -> None:
    context: MultiprocessContext = rankspawn.spawn(
        cases.fail_once, (str(tmp_path),), nprocs=2, cluster=engine, backend="gloo", max_restarts=1
    )

    assert context.results() == ["1"] * 4


def test_what_cannot_be_sent_is_an_error_before_anything_starts(
    make_engine: Callable[[int], Engine],
) -> None:
    with pytest.raises(TypeError, match=r"args\[0\] cannot be sent .* On a cluster, ranks talk"):
        rankspawn.spawn(
            print, (multiprocessing.Queue(),), nprocs=1, cluster=make_engine(1), backend="gloo"
        )
