"""Corners that others cut: forgotten contexts, late looks, odd functions, odd surroundings."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessExitedException, ProcessRaisedException
from rankspawn.supervise import context as context_module
from rankspawn.supervise.supervisor import Supervisor
from rankspawn.workers import forked as forked_module
from rankspawn.workers import running as running_groups
from tests import jobs
from tests.descendants import Watched
from tests.jobs import DEADLOCK

Run = Callable[..., MultiprocessContext]
mp = multiprocessing.get_context("spawn")


def wait_for(gate: Connection, size: int = 0) -> bytes:
    assert gate.poll(DEADLOCK)
    what = gate.recv()
    if what is not None:
        raise what
    return b"x" * size


def test_what_the_parent_forks_after_reading_a_large_result_is_not_taken_for_ours(run: Run) -> None:
    pipes = [mp.Pipe() for _ in range(2)]
    ends = [(pipes[0][1], 200_000), (pipes[1][1], 0)]
    context = run(wait_for, nprocs=2, join=False, rank_args=ends)
    pipes[0][0].send(None)
    assert len(context.return_queues[0].get()) == 200_000
    unrelated = os.fork()
    if unrelated == 0:
        signal.pause()
        os._exit(0)
    with Watched([unrelated]) as strangers:
        pipes[1][0].send(ValueError("now"))
        with pytest.raises(ProcessRaisedException, match="now"):
            context.join()
        assert strangers.alive() == [unrelated]
    os.waitpid(unrelated, 0)
    for pair in pipes:
        for end in pair:
            end.close()


def test_workers_of_a_dropped_context_run_to_their_end(run: Run) -> None:
    ours, theirs = mp.Pipe()
    with ours, theirs:
        processes = run(wait_for, args=(theirs,), nprocs=1, join=False).processes
        gc.collect()
        ours.send(None)
        processes[0].join(DEADLOCK)
        assert processes[0].exitcode == 0
    running_groups.close_forgotten()
    assert running_groups.running == set()


def test_an_interrupt_between_start_and_join_stops_the_workers(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(supervisor: Supervisor, *_: object, **__: object) -> None:
        workers.extend(process.popen.pid for process in supervisor.group.processes)
        raise KeyboardInterrupt

    workers: list[int] = []
    monkeypatch.setattr(context_module, "RankQueue", interrupt)

    with pytest.raises(KeyboardInterrupt):
        run(jobs.sleep_for_ever, nprocs=2)

    assert len(workers) == 2
    assert not [pid for pid in workers if psutil.pid_exists(pid)]


@pytest.mark.parametrize("seconds", [30 * 86_400.0, float("inf")])
def test_very_long_times_are_fine(run: Run, seconds: float) -> None:
    context = run(jobs.return_rank, nprocs=1, join=False, grace_period=1e7)

    assert context.join(timeout=seconds, grace_period=seconds)


def test_several_tasks_and_threads_wait_for_one_context(run: Run) -> None:
    async def join(context: MultiprocessContext) -> bool:
        return await context

    async def main(context: MultiprocessContext) -> list[bool]:
        thread = threading.Thread(target=context.join)
        thread.start()
        poller = threading.Thread(
            target=lambda: [context.return_queues[0].empty() for _ in range(99)]
        )
        poller.start()
        answers = await asyncio.wait_for(
            asyncio.gather(*[join(context) for _ in range(3)]), DEADLOCK
        )
        thread.join()
        poller.join()
        return list(answers)

    for _ in range(5):
        context = run(jobs.return_rank, nprocs=2, join=False)
        assert asyncio.run(main(context)) == [True] * 3


def test_an_error_while_restarting_is_the_answer_from_then_on(run: Run) -> None:
    plans: list[int] = []

    def environment(rank: int) -> dict[str, str]:
        plans.append(rank)
        if len(plans) > 1:
            raise LookupError("no second plan")
        return {}

    context = run(jobs.all_fail, nprocs=1, max_restarts=2, env=environment, join=False)

    for _ in range(2):
        with pytest.raises(LookupError, match="no second plan"):
            context.join()


def test_workers_run_where_the_parent_is_now(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(os.getcwd, nprocs=1).results() == [os.getcwd()]
    monkeypatch.chdir(tmp_path)

    assert run(os.getcwd, nprocs=1).results() == [str(tmp_path)]


def test_preload_imports_from_where_the_parent_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_there.py").write_text("VALUE = 5")
    monkeypatch.syspath_prepend(tmp_path)

    context = rankspawn.spawn(
        is_loaded,
        args=("only_there",),
        nprocs=2,
        backend="gloo",
        start_method="forkserver",
        preload=["only_there"],
    )

    assert context.results() == [True, True]


def is_loaded(name: str) -> bool:
    return name in sys.modules


def test_a_module_that_cannot_be_preloaded_is_named_before_anything_starts() -> None:
    options: dict[str, Any] = {"start_method": "forkserver", "preload": ["no_such_module"]}
    with pytest.raises(ImportError, match="preload='no_such_module' failed") as caught:
        rankspawn.spawn(is_loaded, nprocs=1, backend="gloo", **options)

    assert "No module named 'no_such_module'" in str(caught.value).splitlines()[-1]


THREADED = {
    "python": "import threading; threading.Thread(target=threading.Event().wait, daemon=True, "
    "name='pump').start()",
    "c": "import ctypes, ctypes.util\nlibc = ctypes.CDLL(None)\n"
    "libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)",
    "driver": "import os, rankspawn.workers.server as p\n"
    "p._ACCELERATORS = ('/dev/full',)\nos.open('/dev/full', os.O_RDONLY)",
}
STORIES = {
    "python": "started the thread 'pump'",
    "c": "started threads that stay while this process forks",
    "driver": "opened /dev/full",
}


@pytest.mark.parametrize("kind", sorted(THREADED))
def test_a_preloaded_module_that_makes_forking_unsafe_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / f"starts_{kind}.py").write_text(THREADED[kind])
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.warns(RuntimeWarning, match=STORIES[kind]) as caught:
        rankspawn.spawn(
            jobs.return_rank,
            nprocs=1,
            backend="gloo",
            start_method="forkserver",
            preload=["json", f"starts_{kind}", "csv"],
        )

    (warning,) = caught.list
    assert f"preload='starts_{kind}'" in str(warning.message)
    assert warning.filename == __file__


# As Arrow's memory pool does, and with it pandas, if it is installed.
JEMALLOC = """
import ctypes
libc = ctypes.CDLL(None)
thread = ctypes.c_ulong()
libc.pthread_create(ctypes.byref(thread), None, libc.pause, None)
assert libc.pthread_setname_np(thread, b"jemalloc_bg_thd") == 0
"""


@pytest.mark.parametrize("module", ["numpy", "has_jemalloc"])
def test_threads_that_are_ready_for_a_fork_are_no_reason_to_warn(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # OpenBLAS in NumPy ends its own before a fork; jemalloc's stays, and a copy does without.
    (tmp_path / "has_jemalloc.py").write_text(JEMALLOC)
    monkeypatch.syspath_prepend(str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        context = rankspawn.spawn(
            jobs.return_rank,
            nprocs=1,
            backend="gloo",
            start_method="forkserver",
            preload=[module],
        )

    assert context.results() == [0]


def test_a_fork_server_that_was_stopped_goes_on_when_it_is_needed() -> None:
    options: dict[str, Any] = {"nprocs": 1, "backend": "gloo", "start_method": "forkserver"}
    pipe, theirs = multiprocessing.Pipe()
    context = rankspawn.spawn(wait_for, args=(theirs,), join=False, **options)
    server = psutil.Process(context.pids()[0]).parent()
    assert server is not None

    server.suspend()
    pipe.send(None)
    assert context.join()  # the status comes from the server

    server.suspend()
    assert rankspawn.spawn(jobs.return_rank, **options).results() == [0]


def test_a_fork_server_that_was_stopped_does_not_hold_the_end_of_the_program() -> None:
    program = (
        "import psutil, rankspawn\n"
        "from tests import jobs\n"
        "rankspawn.spawn(jobs.do_nothing, nprocs=1, backend='gloo', start_method='forkserver')\n"
        "for child in psutil.Process().children():\n"
        "    if 'rankspawn-forkserver' in child.cmdline():\n"
        "        child.suspend()\n"
        "        print('stopped')\n"
    )
    output = subprocess.check_output([sys.executable, "-c", program], timeout=DEADLOCK)
    assert output == b"stopped\n"


def test_a_death_that_nobody_saw_comes_before_the_exception_it_caused(run: Run) -> None:
    pipes = [mp.Pipe() for _ in range(2)]
    context = run(wait_for, nprocs=2, join=False, rank_args=[(theirs,) for _, theirs in pipes])
    follower, victim = context.pids()
    with Watched([victim]) as first, Watched([follower]) as second:
        os.kill(victim, signal.SIGKILL)
        assert first.wait_gone() == []
        pipes[0][0].send(ConnectionError("rank 1 is gone"))
        assert second.wait_gone() == []
    with pytest.raises(ProcessExitedException, match="SIGKILL") as caught:
        context.join()

    assert [failure.rank for failure in caught.value.failures] == [1, 0]
    for pair in pipes:
        for end in pair:
            end.close()


def test_polling_the_error_queues_sees_a_failure(run: Run) -> None:
    with run(jobs.rank_fails, args=(1, "raise"), nprocs=2, join=False) as context:
        deadline = time.monotonic() + DEADLOCK
        while context.error_queues[1].empty():
            assert time.monotonic() < deadline
        assert context.error_queues[1].get().endswith("ValueError: on purpose\n")
        assert context.processes[0].is_alive()


@pytest.mark.parametrize(("given", "code"), [(256, 1), (-1, 255), (0.0, 1), (True, 1)])
def test_odd_exit_codes_are_failures(run: Run, given: object, code: int) -> None:
    with pytest.raises(ProcessExitedException, match=f"with exit code {code}") as caught:
        run(sys.exit, args=(given,), nprocs=1)

    assert caught.value.signal_name is None


def test_workers_do_not_read_the_parents_input(run: Run) -> None:
    code = (
        "import rankspawn, sys\n"
        "read = eval('lambda: sys.stdin.read()')\n"
        f"print(rankspawn.spawn(read, nprocs=1, backend='gloo', "
        f"start_method={run.keywords['start_method']!r}).results(), sys.stdin.read())"  # type: ignore[attr-defined]
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="for the parent",
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "[''] for the parent\n"


class Private:
    def start(self, run: Run) -> list[Any]:
        return run(self.__run, nprocs=1).results()

    def __run(self) -> str:
        return "ran"


def test_a_private_method(run: Run) -> None:
    assert Private().start(run) == ["ran"]


SCRIPT = """
import functools, rankspawn

class Point:
    pass

@functools.lru_cache
def make():
    return Point()

if __name__ == "__main__":
    (result,) = rankspawn.spawn(make, nprocs=1, backend="gloo").results()
    assert type(result) is Point
    FOUND = True
"""


def test_a_script_under_a_runner_and_a_function_with_a_cache(tmp_path: Path) -> None:
    """Both are looked up by name in a main module that was not always the main module."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    assert runpy.run_path(str(script), run_name="__main__")["FOUND"]


def test_modules_registered_by_value_go_by_value(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import cloudpickle

    monkeypatch.setattr(jobs, "PLACE", "the parent")
    cloudpickle.register_pickle_by_value(jobs)
    try:
        assert run(jobs.place, nprocs=1).results() == ["the parent"]
    finally:
        cloudpickle.unregister_pickle_by_value(jobs)


def test_logs_are_not_kept_open(run: Run, tmp_path: Path) -> None:
    with run(jobs.sleep_for_ever, nprocs=3, join=False, log_dir=tmp_path):
        links = [os.readlink(f"/proc/self/fd/{fd}") for fd in _open_fds()]
        assert not [link for link in links if str(tmp_path) in link]


def _open_fds() -> list[str]:
    listing = os.listdir("/proc/self/fd")
    return [fd for fd in listing if os.path.lexists(f"/proc/self/fd/{fd}")]


def test_stacks_of_ranks_that_are_just_ending_do_no_harm(run: Run) -> None:
    for _ in range(5):
        context = run(jobs.return_rank, nprocs=3, join=False)
        thread = threading.Thread(target=context.dump_stacks)
        thread.start()
        assert context.join()
        thread.join(DEADLOCK)


def test_a_failure_that_nobody_asked_for_is_told_at_exit(start_method: str) -> None:
    code = (
        "import rankspawn\n"
        "from tests import jobs\n"
        "context = rankspawn.spawn(jobs.all_fail, nprocs=1, backend='gloo', join=False, "
        f"start_method={start_method!r})\n"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    # It may have been waited for before.
    assert "rank 0 failed, and nobody joined the group: Traceback" in done.stderr
    assert done.stderr.endswith("ValueError: rank 0\n")


def test_daemons_that_end_with_the_program_have_not_failed(start_method: str) -> None:
    code = (
        "import rankspawn\n"
        "from tests import jobs\n"
        "context = rankspawn.spawn(jobs.sleep_for_ever, nprocs=2, backend='gloo', join=False, "
        f"daemon=True, start_method={start_method!r})\n"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLOCK,
    )

    assert not done.stderr


def test_cancelling_one_of_two_waiters_leaves_the_group_to_the_other(run: Run) -> None:
    async def join(context: MultiprocessContext) -> bool:
        return await context

    async def main() -> bool:
        ours, theirs = mp.Pipe()
        with ours, theirs:
            context = run(wait_for, args=(theirs,), nprocs=1, join=False)
            one, two = (asyncio.ensure_future(join(context)) for _ in range(2))
            await asyncio.sleep(0)
            one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await one
            ours.send(None)
            return await asyncio.wait_for(two, DEADLOCK)

    assert asyncio.run(main())


def test_an_await_leaves_no_thread_listed(run: Run) -> None:
    async def join(context: MultiprocessContext) -> bool:
        return await context

    before = threading.enumerate()
    assert asyncio.run(join(run(os.getpid, nprocs=1, join=False)))

    assert threading.enumerate() == before


def test_forking_with_threads_is_warned_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_module, "_warned_about_threads", [])
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="the other")
    thread.start()
    try:
        with pytest.warns(RuntimeWarning, match=r"Threads: .*the other") as caught:
            fork_twice()
    finally:
        done.set()
        thread.join()

    assert [warning.filename for warning in caught] == [__file__]


def fork_twice() -> None:
    for _ in range(2):
        rankspawn.spawn(os.getpid, nprocs=2, backend="gloo", start_method="fork")


def test_too_many_shared_descriptors_for_a_fork_server_are_refused() -> None:
    queues = [mp.SimpleQueue() for _ in range(130)]
    with pytest.raises(ValueError, match=r"descriptors .* use start_method='spawn'"):
        rankspawn.spawn(
            jobs.echo, args=(queues,), nprocs=1, backend="gloo", start_method="forkserver"
        )
    assert len(rankspawn.spawn(len, args=(queues,), nprocs=1, backend="gloo").results()) == 1
