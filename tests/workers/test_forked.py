"""What a worker is like that is a copy of its parent, and what becomes of the parent's things."""

from __future__ import annotations

import _thread
import atexit
import errno
import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessExitedException
from rankspawn.workers import forked, start
from rankspawn.workers.popen import is_readable
from tests import jobs
from tests.jobs import DEADLOCK

Run = Callable[..., MultiprocessContext]

fork = partial(rankspawn.spawn, backend="gloo", start_method="fork")


def test_warnings_are_treated_as_in_the_parent() -> None:
    (filters,) = fork(lambda: repr(warnings.filters), nprocs=1).results()

    assert filters == repr(warnings.filters)


def test_two_threads_that_fork_leave_the_filters_of_warnings_alone() -> None:
    before = repr(warnings.filters)
    threads = [threading.Thread(target=fork, args=(jobs.do_nothing, (), 4)) for _ in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads
        within = repr(warnings.filters)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert repr(warnings.filters) == within

    assert repr(warnings.filters) == before


@contextmanager
def foreign_thread(call: Callable[[], object]) -> Iterator[None]:
    """A thread that ``threading`` only lists; it has ended when the block has."""
    listed = threading.Event()

    def run() -> None:
        threading.current_thread()
        listed.set()
        call()

    ident = _thread.start_new_thread(run, ())
    assert listed.wait(DEADLOCK)
    try:
        yield
    finally:
        deadline = time.monotonic() + DEADLOCK
        while ident in sys._current_frames():  # there is nothing else to wait for
            assert time.monotonic() < deadline
            time.sleep(0)


def test_a_foreign_thread_that_has_ended_is_no_danger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_warned_about_threads", [])
    with foreign_thread(os.getpid):
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fork(os.getpid, nprocs=1)


def test_a_foreign_thread_that_runs_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_warned_about_threads", [])
    done = threading.Event()
    with foreign_thread(done.wait):
        try:
            with pytest.warns(RuntimeWarning, match="Threads: .*Dummy"):
                fork(os.getpid, nprocs=1)
        finally:
            done.set()


@pytest.mark.filterwarnings("ignore:start_method='fork'")
def test_a_parent_thread_that_python_did_not_start() -> None:
    queue: Any = multiprocessing.SimpleQueue()
    slow: Any = multiprocessing.Queue()

    def call() -> None:
        fork(slow.put, args=("late",), nprocs=1)
        queue.put("ended well")

    with foreign_thread(call):
        pass

    assert not queue.empty()
    assert queue.get() == "ended well"
    assert slow.get(timeout=DEADLOCK) == "late"
    slow.close()
    slow.join_thread()
    queue.close()


def leave_with_a_failing_wait(path: str) -> None:
    atexit.register(Path(path).touch)
    threading._register_atexit(_fail)  # type: ignore[attr-defined]  # called by the wait for threads


def _fail() -> None:
    raise RuntimeError("on the way out")


def test_exit_handlers_run_after_a_wait_for_threads_that_fails(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(leave_with_a_failing_wait, args=(str(tmp_path / "left"),), nprocs=1)

    assert (tmp_path / "left").exists()
    assert "RuntimeError: on the way out" in capfd.readouterr().err


def die_or_complain() -> None:
    if rankspawn.get_rank() == 0:
        os._exit(3)
    raise ConnectionError("rank 0 is gone")


def test_a_death_during_the_start_counts_as_the_cause(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt = start._adopt

    def adopt_late(order: Any, popen: Any) -> Any:
        assert is_readable(popen.sentinel, DEADLOCK)
        return adopt(order, popen)

    monkeypatch.setattr(start, "_adopt", adopt_late)
    with pytest.raises(ProcessExitedException) as caught:
        run(die_or_complain, nprocs=2)

    assert [one.rank for one in caught.value.failures] == [0, 1]


def test_what_cannot_be_sent_leaves_the_logs_of_an_earlier_run(run: Run, tmp_path: Path) -> None:
    if run.keywords["start_method"] == "fork":  # type: ignore[attr-defined]
        pytest.skip("a fork is sent nothing")
    run(print, args=("kept",), nprocs=1, log_dir=str(tmp_path))

    with pytest.raises(TypeError):
        run(print, args=(threading.Lock(),), nprocs=1, log_dir=str(tmp_path))

    assert (tmp_path / "workerlog.0").read_text() == "kept\n"


def test_a_program_that_replaced_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))

    assert fork(jobs.return_rank, nprocs=2).results() == [0, 1]


UNHEARD = """
import rankspawn
def fail():
    raise ValueError("unheard")
def call():
    inner = rankspawn.spawn(fail, nprocs=1, backend="gloo", start_method="fork", join=False)
    inner.processes[0].join()
rankspawn.spawn(call, nprocs=1, backend="gloo", start_method="fork")
"""


def test_a_failure_that_nobody_waited_for_in_a_worker() -> None:
    done = run_code(UNHEARD)

    assert "rank 0 failed, and nobody joined the group" in done.stderr


def run_code(code: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "default", "-c", code],
        input=text,
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=True,
    )


@pytest.fixture
def wakeup() -> Iterator[socket.socket]:
    """What an event loop has set in the parent."""
    read, write = socket.socketpair()
    with read, write:
        write.setblocking(False)
        signal.set_wakeup_fd(write.fileno())
        yield read
        signal.set_wakeup_fd(-1)


@pytest.mark.usefixtures("wakeup")
def test_signals_of_a_worker_do_not_wake_its_parent() -> None:
    assert fork(signal.set_wakeup_fd, args=(-1,), nprocs=1).results() == [-1]


def make_folder() -> str:
    global _kept  # noqa: PLW0603 - until the exit
    _kept = tempfile.TemporaryDirectory()
    return _kept.name


_kept: tempfile.TemporaryDirectory[str] | None = None


def test_temporary_folders_go_with_the_process_that_made_them() -> None:
    with tempfile.TemporaryDirectory() as of_parent:
        (of_worker,) = fork(make_folder, nprocs=1).results()

        assert not Path(of_worker).exists()
        assert Path(of_parent).exists()


READ_AHEAD = """
import sys, rankspawn
def read():
    try:
        return sys.__stdin__.read()
    except ValueError as error:
        return str(error)
sys.stdin.readline()
print(rankspawn.spawn(read, nprocs=1, backend="gloo", start_method="fork").results())
print(sys.stdin.read())
"""


def test_what_the_parent_has_read_ahead_is_not_read_again() -> None:
    done = run_code(READ_AHEAD, "one\ntwo\n")

    assert done.stdout == "['I/O operation on closed file.']\ntwo\n\n"


def test_who_changed_how_multiprocessing_starts_a_child_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real: Any = getattr(BaseProcess, "_bootstrap")  # noqa: B009 - private; coverage replaces it

    def bootstrap(self: BaseProcess, *args: Any) -> int:
        os.environ["WAS_HERE"] = multiprocessing.current_process().name
        code: int = real(self, *args)
        return code

    monkeypatch.setattr(BaseProcess, "_bootstrap", bootstrap)
    results = fork(jobs.variable, args=("WAS_HERE",), nprocs=2).results()

    assert results == ["MainProcess"] * 2


class Argument:
    """Something that can be watched."""


def test_a_fork_that_fails_does_not_keep_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    with foreign_thread(os.getpid):  # which is looked at
        pass
    real, forks = os.fork, iter([True, False])

    def fork_once() -> int:
        if next(forks):
            return real()
        raise BlockingIOError(errno.EAGAIN, "no more of them")

    monkeypatch.setattr(os, "fork", fork_once)
    argument = Argument()
    seen = weakref.ref(argument)
    gc.disable()
    try:
        with pytest.raises(BlockingIOError, match="no more"):
            fork(jobs.do_nothing, args=(argument,), nprocs=3)
        del argument
        assert seen() is None
    finally:
        gc.enable()


FORK_BESIDE_A_GROUP = """
import os, signal, rankspawn
options = dict(backend="gloo", start_method="fork", join=False, daemon=True)
rankspawn.spawn(signal.pause, nprocs=1, **options)
if os.fork() == 0:
    os._exit(0)
os.wait()
"""


def test_a_forked_copy_says_nothing_of_its_parents_guardian() -> None:
    assert "ResourceWarning" not in run_code(FORK_BESIDE_A_GROUP).stderr


def work_in_a_pool() -> list[int]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(abs, [-1, -2]))


def test_a_fork_from_a_thread_of_a_pool_ends_without_a_word(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked, "_warned_about_threads", [True])
    with ThreadPoolExecutor(1) as pool:
        context = pool.submit(lambda: fork(work_in_a_pool, nprocs=2)).result(DEADLOCK)

    assert context.results() == [[1, 2]] * 2
    assert capfd.readouterr().err == ""
