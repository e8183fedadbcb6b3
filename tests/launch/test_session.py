"""A job on one machine: a session that answers at once."""

from __future__ import annotations

import logging
import select
from contextlib import closing

import pytest

from rankspawn.launch.backoff import LASTING, Backoff
from rankspawn.launch.config import LaunchConfig
from rankspawn.launch.programs import Node
from rankspawn.launch.session import (
    Cause,
    Instruction,
    JobOver,
    JobResult,
    LocalSession,
    StartWorkers,
    StopWorkers,
)
from tests.jobs import DEADLOCK

NODE = Node(0, "127.0.0.1", (6070, 6071), "abcdef")


class NoPauses(Backoff):
    def pause(self) -> float:
        return 0.0


def begin(level: int = -1, max_restart: int = 3) -> LocalSession:
    config = LaunchConfig(script="train.py", elastic_level=level, max_restart=max_restart)
    return LocalSession(config, NODE, NoPauses())


def take(session: LocalSession) -> Instruction:
    (instruction,) = session.take()
    return instruction


def start(session: LocalSession) -> StartWorkers:
    instruction = take(session)
    assert isinstance(instruction, StartWorkers)
    assert session.may_start(instruction)
    return instruction


def fail(session: LocalSession, generation: int) -> None:
    session.failed(generation, exit_code=3, text="the story", brief="rank 0 failed")
    assert take(session) == StopWorkers(generation)
    session.stopped(generation, fresh_ports=lambda: (7000, 7001))


def test_a_start_without_others() -> None:
    instruction = start(begin())
    assert (instruction.nodes, instruction.node_rank, instruction.restarts) == ((NODE,), 0, 0)
    assert instruction.mark is None


def test_success() -> None:
    session = begin()
    session.done(start(session).generation)
    assert take(session) == JobOver(JobResult())


def test_who_only_served_is_stopped_in_the_end() -> None:
    session = begin()
    generation = start(session).generation
    session.done(generation, gone=False)
    assert take(session) == StopWorkers(generation, succeeded=True)
    session.stopped(generation)
    assert take(session) == JobOver(JobResult())


def test_a_failure_is_the_end() -> None:
    session = begin()
    fail(session, start(session).generation)
    assert take(session) == JobOver(JobResult((Cause("failed", "the story", 3),)))


def test_restarts_on_fresh_ports(caplog: pytest.LogCaptureFixture) -> None:
    session = begin(level=1, max_restart=2)
    first = start(session)
    fail(session, first.generation)
    second = start(session)
    assert second.generation > first.generation
    assert (second.restarts, second.run_id) == (1, first.run_id)
    assert second.nodes[0].ports == (7000, 7001)
    fail(session, second.generation)
    fail(session, start(session).generation)
    assert take(session) == JobOver(JobResult((Cause("failed", "the story", 3),)))
    session.close()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines == ["rank 0 failed; restart 1 of 2", "rank 0 failed; restart 2 of 2"]


def test_no_fresh_ports_for_the_last_failure() -> None:
    session = begin()
    generation = start(session).generation
    session.failed(generation, exit_code=3, text="the story")
    session.take()
    session.stopped(generation, fresh_ports=lambda: pytest.fail("nobody needs them"))
    assert isinstance(take(session), JobOver)


def test_asked_to_end_before_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    session = begin(level=1)
    fail(session, start(session).generation)
    instruction = take(session)
    assert isinstance(instruction, StartWorkers)
    session.stopped(instruction.generation)  # what the agent says of an order that it cannot follow
    assert session.take() == []
    session.leave("Ctrl-C", exit_code=130)
    over = take(session)
    assert isinstance(over, JobOver)
    assert over.result.exit_code == 130
    assert "restart" not in caplog.text


def test_what_cannot_be_started_is_the_launchers_own_error() -> None:
    session = begin()
    with pytest.raises(OSError, match="no such program"):
        session.not_started(start(session), OSError("no such program"))


class TestPauses:
    def test_grow_as_long_as_no_try_lasts(self) -> None:
        now = 0.0
        backoff = Backoff(lambda: now)
        assert [backoff.pause() for _ in range(4)] == [0, 0.5, 1, 2]
        assert [backoff.pause() for _ in range(20)][-1] == 30
        backoff.begin()
        now = LASTING
        assert backoff.pause() == 0
        backoff.begin()
        assert backoff.pause() == 0.5

    def test_a_restart_comes_when_the_pause_is_over(self) -> None:
        with closing(paused(0.05)) as session:
            fail(session, start(session).generation)
            assert session.take() == []
            descriptor = session.fileno()
            assert descriptor is not None
            assert select.select([descriptor], [], [], DEADLOCK)[0]
            assert start(session).restarts == 1

    def test_asked_to_end_in_a_pause(self) -> None:
        with closing(paused(DEADLOCK)) as session:
            fail(session, start(session).generation)
            session.leave("Ctrl-C", exit_code=130)
            assert isinstance(take(session), JobOver)


def paused(seconds: float) -> LocalSession:
    """A session that waits so long before each restart."""
    backoff = Backoff()
    backoff.pause = lambda: seconds  # type: ignore[method-assign]
    config = LaunchConfig(script="train.py", elastic_level=1)
    return LocalSession(config, NODE, backoff)
