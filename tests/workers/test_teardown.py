"""Stopping a group: the stubborn, the stopped, and whatever they started."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessException, ProcessRaisedException
from rankspawn.option_types import StartMethod
from rankspawn.workers import marker
from rankspawn.workers.group import WorkerGroup
from tests import jobs
from tests.descendants import Watched, start_descendants
from tests.jobs import DEADLOCK

Run = Callable[..., MultiprocessContext]
mp = multiprocessing.get_context("spawn")


def receive(end: Connection) -> Any:
    assert end.poll(DEADLOCK), "the worker never reported"
    return end.recv()


def have_children_and(ready: Connection, how: str) -> None:
    ready.send(start_descendants())
    assert ready.poll(DEADLOCK)
    if how == "return":
        return
    if how != "wait":
        jobs.fail(how)
    jobs.sleep_for_ever()


@pytest.mark.parametrize("how", ["raise", "os._exit 7", "SIGKILL", "wait"])
def test_descendants_of_every_rank_are_gone_after_a_failure(run: Run, how: str) -> None:
    """The failed rank's own, too; and those of a group that its caller stops."""
    pipes = [mp.Pipe() for _ in range(2)]
    ends = [(pipes[0][1], how), (pipes[1][1], "wait")]
    context = run(have_children_and, nprocs=2, join=False, rank_args=ends)
    pids = [pid for ours, _ in pipes for pid in receive(ours).values()]
    with Watched(pids) as descendants:
        assert descendants.alive() == pids
        pipes[0][0].send("go")
        if how == "wait":
            context.terminate()
        else:
            with pytest.raises(ProcessException):
                context.join()
        assert descendants.alive() == []
    for pair in pipes:
        for end in pair:
            end.close()


def test_descendants_are_left_alone_after_a_success(run: Run) -> None:
    ours, theirs = mp.Pipe()
    with ours, theirs:
        context = run(leave_a_daemon, args=(theirs,), nprocs=1, join=False)
        with Watched([receive(ours)]) as descendants:
            assert context.join()
            context.terminate()
            assert len(descendants.alive()) == 1


def leave_a_daemon(ready: Connection) -> None:
    ready.send(start_descendants_of_success())


def start_descendants_of_success() -> int:
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid


def test_strangers_are_not_touched(run: Run) -> None:
    """Also not one with the same command, or with another job's mark."""
    environ = {**os.environ, "RANKSPAWN_JOB": "0" * 32}
    stranger = subprocess.Popen(["sleep", "1000"], env=environ)
    with Watched([stranger.pid]) as strangers:
        with pytest.raises(ProcessRaisedException):
            run(jobs.rank_fails, args=(0, "raise"), nprocs=2)
        assert strangers.alive() == [stranger.pid]
    stranger.wait()


def be_stubborn(ready: Connection, how: str) -> None:
    if how == "ignores":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif how == "blocks":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    elif how == "handler hangs":
        signal.signal(signal.SIGTERM, lambda *_: jobs.sleep_for_ever())
    elif how == "holds the GIL":
        signal.signal(signal.SIGTERM, lambda *_: None)
    ready.send(os.getpid())
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "holds the GIL":
        # PyDLL keeps the GIL, so that no Python code of this process runs any more.
        ctypes.PyDLL(None).sleep(1000)
    jobs.sleep_for_ever()


@pytest.mark.parametrize("how", ["ignores", "blocks", "handler hangs", "stopped", "holds the GIL"])
def test_the_stubborn_are_ended(run: Run, how: str) -> None:
    ours, theirs = mp.Pipe()
    with ours, theirs:
        context = run(be_stubborn, args=(theirs, how), nprocs=2, join=False)
        pids = {receive(ours), receive(ours)}
        assert pids == set(context.pids())
        context.terminate(grace_period=0.2)

    expected = -signal.SIGTERM if how == "stopped" else -signal.SIGKILL
    assert context.exitcodes() == [expected] * 2


def fail_or_sleep() -> None:
    if rankspawn.get_rank() == 1:
        jobs.fail("raise")
    jobs.sleep_for_ever()


@pytest.mark.parametrize("grace", [0, 0.01])
def test_a_short_grace_period_does_not_cost_the_cause(run: Run, grace: float) -> None:
    with pytest.raises(ProcessRaisedException, match="ValueError: on purpose") as caught:
        run(fail_or_sleep, nprocs=2, grace_period=grace)

    assert isinstance(caught.value.exception, ValueError)


def fork_in_a_loop(ready: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    ready.send(os.getpid())
    while True:
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                signal.alarm(30)  # a bound for the machine's sake, should the test fail
                jobs.sleep_for_ever()
            os._exit(0)
        signal.sigtimedwait([], 0.001)


def test_a_worker_that_forks_while_it_is_torn_down(run: Run) -> None:
    ours, theirs = mp.Pipe()
    with ours, theirs:
        context = run(fork_in_a_loop, args=(theirs,), nprocs=1, join=False)
        receive(ours)
        assert isinstance(context._group, WorkerGroup)
        mark = context._group.mark
        context.terminate(grace_period=0.1)

    assert list(marker.find_marked(mark)) == []


@contextmanager
def marked_program(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """One that is past its execution: for a moment of that it has no environment."""
    environ = {**os.environ, marker.VARIABLE: mark}
    pipe = subprocess.PIPE
    with subprocess.Popen(["cat"], env=environ, stdin=pipe, stdout=pipe) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"ready\n")
        child.stdin.flush()
        try:
            assert child.stdout.readline() == b"ready\n"
            yield child
        finally:
            child.kill()


def test_what_a_vanishing_process_started_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that forks and ends after it was listed, and before it is looked at."""
    mark = marker.new_mark()
    vanished = subprocess.Popen(["true"])
    vanished.wait()
    with marked_program(mark) as child:
        listings = [[str(vanished.pid)], [str(child.pid)], []]
        monkeypatch.setattr(os, "listdir", lambda _: listings.pop(0) if listings else [])

        killed = marker.kill_marked(mark)
        monkeypatch.undo()

        assert killed == [child.pid]
        assert child.wait(DEADLOCK) == -signal.SIGKILL


def test_a_process_that_becomes_another_program_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a moment it has neither its old mappings nor its new environment."""
    mark = marker.new_mark()
    looks: list[str] = []

    def read(path: str) -> bytes:
        data = Path(path).read_bytes()
        if len(looks) > 5 or f"/{child.pid}/" not in path:
            return data
        looks.append(path)
        if not path.endswith("stat"):
            return b""
        fields = data.split()
        fields[50] = b"0"  # where its environment ends
        return b" ".join(fields)

    with marked_program(mark) as child:
        monkeypatch.setattr(marker, "_read", read)

        assert marker.kill_marked(mark) == [child.pid]
        assert len(looks) > 5
        assert child.wait(DEADLOCK) == -signal.SIGKILL


@pytest.mark.parametrize("after", range(4))
def test_a_process_that_becomes_another_program_between_two_looks(
    monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Forked, it has the mark as a mapping; executed, in its environment."""
    mark = marker.new_mark()
    looks: list[str] = []

    def read(path: str) -> bytes:
        data = Path(path).read_bytes()
        if f"/{child.pid}/" not in path or path.endswith("stat"):
            return data
        looks.append(path)
        if len(looks) > after:
            return data
        return f"rankspawn-job-{mark}".encode() if path.endswith("maps") else b"HOME=/"

    with marked_program(mark) as child:
        monkeypatch.setattr(marker, "_read", read)

        assert marker.kill_marked(mark) == [child.pid]
        assert child.wait(DEADLOCK) == -signal.SIGKILL


def test_an_environment_that_comes_after_the_look_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark = marker.new_mark()
    empty = [b"", b""]

    def read(path: str) -> bytes:
        if f"/{child.pid}/" in path and not path.endswith("stat") and empty:
            return empty.pop()
        return Path(path).read_bytes()

    with marked_program(mark) as child:
        monkeypatch.setattr(marker, "_read", read)

        assert marker.kill_marked(mark) == [child.pid]
        assert child.wait(DEADLOCK) == -signal.SIGKILL


def test_grace_is_shared_and_lets_workers_save_their_state(run: Run) -> None:
    ours, theirs = mp.Pipe()
    with ours, theirs:
        context = run(save_on_sigterm, args=(theirs,), nprocs=3, join=False)
        assert [receive(ours) for _ in range(3)] == ["ready"] * 3
        context.terminate(grace_period=DEADLOCK)
        assert [receive(ours) for _ in range(3)] == ["saved"] * 3

    assert context.exitcodes() == [0, 0, 0]


def save_on_sigterm(ready: Connection) -> None:
    def save(*_: object) -> None:
        ready.send("saved")
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    ready.send("ready")
    jobs.sleep_for_ever()


def test_nested_groups_end_with_the_worker_that_started_them(
    run: Run, start_method: StartMethod
) -> None:
    ours, theirs = mp.Pipe()
    with ours, theirs:
        context = run(nest, args=(theirs, start_method), nprocs=1, join=False)
        with Watched(receive(ours)) as inner:
            os.kill(context.pids()[0], signal.SIGKILL)
            with pytest.raises(ProcessException):
                context.join()
            assert inner.alive() == []


def nest(ready: Connection, start_method: StartMethod) -> None:
    with rankspawn.spawn(
        jobs.sleep_for_ever, nprocs=2, backend="gloo", join=False, start_method=start_method
    ) as inner:
        ready.send(inner.pids())
        jobs.sleep_for_ever()
