"""``await`` under trio: no thread waits, and nothing is polled."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

import rankspawn
from rankspawn import (
    MultiprocessContext,
    ProcessRaisedException,
    SpawnTimeoutError,
    handlers,
)
from rankspawn.supervise.supervisor import SupervisionPolicy
from tests import jobs
from tests.jobs import DEADLOCK
from tests.supervise.scripted_group import ScriptedEngine, ScriptedGroup

trio: Any = pytest.importorskip("trio")
pytest.importorskip("trio.testing")


async def join(context: MultiprocessContext) -> bool:
    return await context


def all_return(group: ScriptedGroup) -> None:
    for index in range(2):
        group.returns(index)


def test_real_workers() -> None:
    context = rankspawn.spawn(rankspawn.get_rank, nprocs=2, backend="gloo", join=False)
    assert trio.run(join, context) is True
    assert context.results() == [0, 1]


def test_cancelling_it_stops_real_workers() -> None:
    context = rankspawn.spawn(jobs.sleep_for_ever, nprocs=2, backend="gloo", join=False)

    async def main() -> bool:
        with trio.CancelScope() as scope:
            scope.cancel()
            await context
        return bool(scope.cancelled_caught)

    assert trio.run(main)
    assert context.exitcodes() == [-signal.SIGTERM] * 2


def test_while_the_loop_runs_on() -> None:
    engine = ScriptedEngine()

    async def main(context: MultiprocessContext) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(join, context)
            await trio.testing.wait_all_tasks_blocked()  # it has begun
            for index in range(2):
                await trio.to_thread.run_sync(engine.groups[0].returns, index)

    with engine.context() as context:
        trio.run(main, context)
        assert context.join(0)


def test_what_another_thread_noted() -> None:
    engine = ScriptedEngine()
    with engine.context() as context:
        thread = threading.Thread(target=context.join)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(join, context)
                await trio.testing.wait_all_tasks_blocked()
                thread.start()
                all_return(engine.groups[0])

        trio.run(main)
        thread.join(DEADLOCK)
        assert context.join(0)


def test_a_failure() -> None:
    engine = ScriptedEngine(lambda group: group.raises(0, ValueError("on purpose")))
    with engine.context() as context, pytest.raises(ProcessRaisedException, match="purpose"):
        trio.run(join, context)


def test_time_that_is_over() -> None:
    policy = SupervisionPolicy(DEADLOCK, timeout=0.001)
    with ScriptedEngine().context(policy) as context, pytest.raises(SpawnTimeoutError):
        trio.run(join, context)


@pytest.mark.parametrize("is_main_task", [True, False])
def test_ctrl_c_stops_the_ranks_and_a_second_one_kills_them(
    monkeypatch: pytest.MonkeyPatch, is_main_task: bool
) -> None:
    monkeypatch.setattr(handlers, "_ECHO", 0.0)
    engine = ScriptedEngine(stubborn=(0,))

    def interrupt_twice(group: ScriptedGroup) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert group.is_being_stopped.wait(DEADLOCK)
        assert group.kills == 0
        os.kill(os.getpid(), signal.SIGINT)

    async def interrupt() -> None:
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            # In a thread: what comes while a task runs is raised in that task.
            await trio.to_thread.run_sync(interrupt_twice, engine.groups[0])

    async def main(context: MultiprocessContext) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt)
            if is_main_task:
                await context
            else:
                nursery.start_soon(join, context)

    with engine.context() as context:
        # In a nursery it is in a group; what the main task was not told, trio raises in the end.
        with pytest.raises((BaseExceptionGroup, KeyboardInterrupt), match=r"Exception|^$"):
            trio.run(main, context)
        assert engine.groups[0].stops == [(DEADLOCK, True)]
        assert context.exitcodes() == [-9, -15]
        assert engine.groups[0].kills == 1
