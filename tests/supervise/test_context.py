"""Supervising a group: joining, queues, stopping, asyncio, threads."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessExitedException, ProcessRaisedException
from rankspawn.plan.ports import HeldPorts, hold_ports
from rankspawn.plan.topology import Topology
from rankspawn.workers.group import WorkerGroup
from tests import jobs
from tests.jobs import DEADLOCK

Run = Callable[..., MultiprocessContext]
mp = multiprocessing.get_context("spawn")


@pytest.fixture
def run(start_method: str) -> Run:
    return functools.partial(rankspawn.spawn, backend="gloo", start_method=start_method, join=False)


@contextmanager
def gates(count: int) -> Iterator[tuple[list[Connection], list[tuple[Connection]]]]:
    """For each rank a pipe: the test's end, and the end that the worker waits on."""
    pipes = [mp.Pipe() for _ in range(count)]
    try:
        yield [ours for ours, _ in pipes], [(theirs,) for _, theirs in pipes]
    finally:
        for pair in pipes:
            for end in pair:
                end.close()


def wait_for_gate(gate: Connection) -> int:
    assert gate.poll(DEADLOCK)
    what = gate.recv()
    if isinstance(what, BaseException):
        raise what
    return jobs.rank()


def test_join_says_false_while_they_run_and_true_ever_after(run: Run) -> None:
    with gates(2) as (ours, theirs):
        context = run(wait_for_gate, nprocs=2, rank_args=theirs)
        assert context.join(timeout=0) is False
        assert context.join(timeout=0.01) is False
        assert [process.is_alive() for process in context.processes] == [True, True]
        assert context.exitcodes() == [None, None]
        for gate in ours:
            gate.send(None)
        while not context.join(timeout=0.5):
            pass

    assert context.join() is True
    assert context.join(timeout=0) is True
    assert context.exitcodes() == [0, 0]


def test_repr_tells_what_became_of_the_ranks(run: Run) -> None:
    with gates(3) as (ours, theirs):
        context = run(wait_for_gate, nprocs=3, rank_args=theirs)
        assert repr(context) == "<MultiprocessContext: 3 ranks, 3 running>"
        ours[0].send(None)
        wait([context.processes[0].sentinel], DEADLOCK)
        # Nobody has taken note so far: the first is known by its report, the second by its end.
        assert repr(context) == "<MultiprocessContext: 3 ranks, 2 running, 1 returned>"
        os.kill(context.pids()[1], signal.SIGKILL)
        wait([context.processes[1].sentinel], DEADLOCK)
        assert repr(context) == "<MultiprocessContext: 3 ranks, 1 running, 1 returned, 1 exited>"
        with pytest.raises(ProcessExitedException):
            context.join()

    assert repr(context) == "<MultiprocessContext: 3 ranks, 1 returned, 1 stopped, 1 failed>"


def test_repr_waits_for_nobody(run: Run) -> None:
    with run(jobs.sleep_for_ever, nprocs=1) as context:
        group = context._group
        assert isinstance(group, WorkerGroup)
        texts: list[str] = []
        with group._changed:  # as somebody does who waits for a fork server's answer
            thread = threading.Thread(target=lambda: texts.append(repr(context)))
            thread.start()
            thread.join(DEADLOCK)
        assert texts == ["<MultiprocessContext: 1 rank, 1 running>"]

        if (child := os.fork()) == 0:  # where the group's descriptors are closed
            os._exit(len(repr(context)))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == len(texts[0])


def test_sentinels_shrink_as_ranks_end(run: Run) -> None:
    with gates(2) as (ours, theirs):
        context = run(wait_for_gate, nprocs=2, rank_args=theirs)
        assert sorted(context.sentinels.values()) == [0, 1]
        assert sorted(process.sentinel for process in context.processes) == sorted(
            context.sentinels
        )
        ours[1].send(None)
        (ready,) = wait(context.sentinels, DEADLOCK)
        assert context.sentinels[ready] == 1  # type: ignore[index]
        assert context.join(timeout=0) is False
        assert list(context.sentinels.values()) == [0]
        ours[0].send(None)
        assert context.join()


def test_a_result_can_be_read_before_the_others_ended(run: Run) -> None:
    with gates(3) as (ours, theirs):
        context = run(wait_for_gate, nprocs=3, rank_args=theirs)
        assert context.return_queues[2].empty()
        with pytest.raises(queue.Empty):
            context.return_queues[2].get_nowait()
        with pytest.raises(queue.Empty):
            context.return_queues[2].get(timeout=0.01)
        ours[2].send(None)
        assert context.return_queues[2].get(timeout=DEADLOCK) == 2
        assert context.return_queues[2].empty()
        with pytest.raises(queue.Empty):  # a second one would wait for ever elsewhere
            context.return_queues[2].get()
        for gate in ours[:2]:
            gate.send(None)
        assert context.results() == [0, 1, 2]


def test_a_failure_elsewhere_ends_the_wait_for_a_result(run: Run) -> None:
    with gates(2) as (ours, theirs):
        context = run(wait_for_gate, nprocs=2, rank_args=theirs)
        ours[1].send(ValueError("rank 1 is gone"))

        with pytest.raises(ProcessRaisedException, match="rank 1 is gone") as caught:
            context.return_queues[0].get()

    assert caught.value.rank == 1
    assert context.error_queues[0].empty()
    with pytest.raises(queue.Empty):
        context.error_queues[0].get()


def test_join_raises_the_same_again(run: Run) -> None:
    context = run(jobs.rank_fails, args=(0, "raise"), nprocs=2)

    errors = []
    for _ in range(3):
        with pytest.raises(ProcessRaisedException) as caught:
            context.join()
        errors.append(caught.value)

    assert errors[0] is errors[1] is errors[2]
    assert context.exitcodes()[1] is not None


def test_leaving_the_block_stops_the_workers(run: Run) -> None:
    with run(jobs.sleep_for_ever, nprocs=2) as context:
        pids = context.pids()
        assert len(set(pids)) == 2

    assert not any(process.is_alive() for process in context.processes)
    with pytest.raises(
        ProcessExitedException, match="terminated with signal SIGTERM: it was stopp"
    ):
        context.join()


def test_an_error_in_the_block_stops_the_workers(run: Run) -> None:
    with pytest.raises(ZeroDivisionError), run(jobs.sleep_for_ever, nprocs=2) as context:
        raise ZeroDivisionError

    assert not any(process.is_alive() for process in context.processes)


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace_period(run: Run) -> None:
    with gates(1) as (ours, theirs):
        context = run(ignore_sigterm, nprocs=1, rank_args=theirs)
        assert ours[0].poll(DEADLOCK)
        context.terminate(grace_period=0.1)

    assert context.exitcodes() == [-9]


@pytest.mark.parametrize("grace", ["1", True, -1, float("nan"), []])
@pytest.mark.parametrize("method", ["join", "terminate"])
def test_an_impossible_grace_period_stops_nobody(run: Run, method: str, grace: Any) -> None:
    with run(jobs.sleep_for_ever, nprocs=1) as context:
        with pytest.raises((TypeError, ValueError), match="grace_period"):
            getattr(context, method)(grace_period=grace)
        assert context.exitcodes() == [None]


@pytest.mark.parametrize("timeout", ["1", True, float("nan"), []])
def test_an_impossible_time_to_wait(run: Run, timeout: Any) -> None:
    with run(jobs.sleep_for_ever, nprocs=1) as context:
        with pytest.raises((TypeError, ValueError), match="timeout"):
            context.join(timeout=timeout)
        assert not context.join(timeout=-1)


def ignore_sigterm(gate: Connection) -> None:
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gate.send("ready")
    jobs.sleep_for_ever()


def test_several_threads_join_at_once(run: Run) -> None:
    with gates(2) as (ours, theirs):
        context = run(wait_for_gate, nprocs=2, rank_args=theirs)
        answers: queue.Queue[Any] = queue.Queue()
        asks: list[Callable[[], Any]] = [
            context.join,
            context.results,
            context.return_queues[0].get,
            context.return_queues[1].get,
        ]
        threads = [threading.Thread(target=lambda ask=ask: answers.put(ask())) for ask in asks]
        for thread in threads:
            thread.start()
        for gate in ours:
            gate.send(None)
        for thread in threads:
            thread.join(DEADLOCK)

    assert sorted(map(str, (answers.get_nowait() for _ in asks))) == ["0", "1", "True", "[0, 1]"]


class TestAsyncio:
    def test_await(self, run: Run) -> None:
        async def main() -> tuple[bool, list[int]]:
            context = run(jobs.return_rank, nprocs=2)
            return await context, context.results()

        assert asyncio.run(main()) == (True, [0, 1])

    def test_the_loop_runs_on_while_waiting(self, run: Run) -> None:
        async def main() -> bool:
            with gates(1) as (ours, theirs):
                context = run(wait_for_gate, nprocs=1, rank_args=theirs)

                async def open_gate() -> None:
                    ours[0].send(None)

                answer, _ = await asyncio.gather(_join(context), open_gate())
                return answer

        assert asyncio.run(main()) is True

    def test_a_failure_is_raised(self, run: Run) -> None:
        async def main() -> None:
            await run(jobs.rank_fails, args=(1, "raise"), nprocs=2)

        with pytest.raises(ProcessRaisedException, match="on purpose"):
            asyncio.run(main())

    def test_cancelling_stops_the_workers(self, run: Run) -> None:
        async def main() -> MultiprocessContext:
            context = run(jobs.sleep_for_ever, nprocs=2)
            task = asyncio.ensure_future(_join(context))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return context

        context = asyncio.run(main())
        assert not any(process.is_alive() for process in context.processes)

    def test_two_groups_at_once(self, run: Run) -> None:
        async def main() -> list[bool]:
            groups = [run(jobs.return_rank, nprocs=2) for _ in range(2)]
            return list(await asyncio.gather(*(_join(group) for group in groups)))

        assert asyncio.run(main()) == [True, True]


async def _join(context: MultiprocessContext) -> bool:
    return await context


def test_stacks_of_running_ranks(run: Run) -> None:
    with gates(2) as (ours, theirs):
        context = run(announce_and_wait, nprocs=2, rank_args=theirs)
        for gate in ours:
            assert gate.poll(DEADLOCK)
            gate.recv()
        stacks = context.dump_stacks()
        assert sorted(stacks) == [0, 1]
        for text in stacks.values():
            assert "announce_and_wait" in text
            assert "rankspawn/workers" not in text  # only what the function itself does
        for gate in ours:
            gate.send(None)
        assert context.join()  # it did not disturb them
    assert context.dump_stacks() == {}


def test_asking_for_stacks_does_not_end_another_program(run: Run) -> None:
    with gates(1) as (ours, theirs):
        context = run(become_another_program, nprocs=1, rank_args=theirs)
        assert ours[0].poll(DEADLOCK)
        assert os.read(ours[0].fileno(), 10) == b"ready\n"
        assert "became another program" in context.dump_stacks()[0]
        os.write(ours[0].fileno(), b"go on\n")
        with pytest.raises(ProcessExitedException, match="exit code 7"):
            context.join()


def test_a_rank_that_ended_has_no_stacks(run: Run) -> None:
    with run(jobs.do_nothing, nprocs=1) as context:
        context.processes[0].join()
        assert context.dump_stacks() == {}


def become_another_program(gate: Connection) -> None:
    os.dup2(gate.fileno(), 0)
    os.execv("/bin/sh", ["sh", "-c", "echo ready >&0; read -r _; exit 7"])


def announce_and_wait(gate: Connection) -> None:
    gate.send("ready")
    assert gate.poll(DEADLOCK)


class TestRestarts:
    def test_the_group_is_restarted_until_it_succeeds(self, run: Run) -> None:
        context = run(fail_until, args=(2,), nprocs=2, max_restarts=3)

        assert context.results() == [2, 2]
        assert context.return_queues[0].get() == 2

    def test_the_last_failure_is_raised_with_the_number_of_tries(self, run: Run) -> None:
        with pytest.raises(ProcessRaisedException, match="try 1") as caught:
            run(fail_until, args=(9,), nprocs=2, max_restarts=1).join()

        assert "2 times" in caught.value.__notes__[0]

    def test_results_are_those_of_the_last_try(self, run: Run) -> None:
        context = run(return_beside_a_failure, args=(mp.Event(),), nprocs=2, max_restarts=1)

        assert context.return_queues[0].get() == "try 1"
        assert context.results() == ["try 1", "try 1"]

    def test_each_try_has_its_own_ports(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = []

        def hold(topology: Topology) -> HeldPorts:
            held.append(hold_ports(topology))
            return held[-1]

        monkeypatch.setattr("rankspawn.spawning.hold_ports", hold)
        run(note_endpoints_until, args=(str(tmp_path), 2), nprocs=2, max_restarts=2).join()

        told = [(tmp_path / f"try-{tried}").read_text() for tried in range(3)]
        assert told == [",".join(f"127.0.0.1:{port}" for port in one.ports) for one in held]

    def test_nothing_is_restarted_before_a_rank_reached_the_function(self, run: Run) -> None:
        if run.keywords["start_method"] == "fork":  # type: ignore[attr-defined]
            pytest.skip("a forked worker has nothing to load")
        context = run(jobs.echo, args=(jobs.BreaksWhenRead(),), nprocs=1, max_restarts=5)

        with pytest.raises(ProcessRaisedException, match="while unpickling") as caught:
            context.join()
        assert not hasattr(caught.value, "__notes__")


def return_beside_a_failure(returning: Event) -> str:
    if tries() == 0 and jobs.rank() == 1:
        assert returning.wait(DEADLOCK)  # rank 0 is about to have a result
        raise ValueError("on purpose")
    returning.set()
    return f"try {tries()}"


def note_endpoints_until(folder: str, success: int) -> None:
    if jobs.rank() == 0:
        endpoints = jobs.environment()["PADDLE_TRAINER_ENDPOINTS"]
        Path(folder, f"try-{tries()}").write_text(endpoints)
        fail_until(success)


def tries() -> int:
    return int(jobs.environment()["TORCHELASTIC_RESTART_COUNT"])


def fail_until(success: int) -> int:
    tried = tries()
    if tried < success:
        raise ValueError(f"try {tried}")
    return tried
