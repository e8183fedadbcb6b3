"""The conversation with a fork server, and what comes between: signals, stops, silence."""

from __future__ import annotations

import functools
import itertools
import linecache
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil
import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessExitedException, SpawnTimeoutError
from rankspawn.workers import forkserver, marker, popen
from rankspawn.workers.popen import is_readable
from tests import jobs
from tests.jobs import DEADLOCK

Run = Callable[..., MultiprocessContext]
fork = functools.partial(rankspawn.spawn, backend="gloo", start_method="forkserver")
NEVER_LOADED = "import time\ntime.sleep(10000)\n"


class OnPurpose(TimeoutError):
    """What a handler raises: of a kind that the system's own calls raise, too."""


def throw(*_: object) -> NoReturn:
    raise OnPurpose


@contextmanager
def at_first_wait(monkeypatch: pytest.MonkeyPatch, act: Callable[..., object]) -> Iterator[None]:
    """A signal, handled by ``act``, when the server was asked and has not been heard yet."""
    signals = [signal.SIGALRM]

    def wait(fd: int, timeout: float | None) -> bool:
        if signals:
            signal.raise_signal(signals.pop())
        return is_readable(fd, timeout)

    before = signal.signal(signal.SIGALRM, act)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(forkserver, "is_readable", wait)
            yield
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not signals


@contextmanager
def raising_at_line(number: int, *modules: Any) -> Iterator[list[str]]:
    """Raise at this line, of those of the modules that are executed in here; says which it was."""
    paths = {module.__file__ for module in modules}
    left = itertools.count(number, -1)
    places: list[str] = []

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in paths:
            return None
        # Python traces the exit of a `with` as its line, where it runs no handler of a signal.
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not line.startswith("with ") and next(left) == 0:
            places.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            throw()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield places
    finally:
        sys.settrace(before)


@contextmanager
def descriptors_in_use(count: int) -> Iterator[None]:
    with ExitStack() as stack:
        for fd in itertools.chain.from_iterable(os.pipe() for _ in range(count)):
            stack.callback(os.close, fd)
        yield


def server_of(context: MultiprocessContext) -> psutil.Process:
    server = psutil.Process(context.pids()[0]).parent()
    assert server is not None
    assert "rankspawn-forkserver" in server.cmdline()
    return server


def children_of(process: psutil.Process) -> list[int]:
    return [child.pid for child in process.children()]


def assert_answers_are_its_own() -> None:
    """Of the next start, with the server that is there."""
    context = fork(os.getpid, nprocs=2)
    assert context.results() == context.pids()


class TestInterruptedStart:
    @pytest.mark.parametrize("is_stopped", [False, True])
    def test_the_next_start_gets_its_own_workers(
        self, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
    ) -> None:
        with fork(jobs.sleep_for_ever, nprocs=1, join=False) as other:
            server = server_of(other)
            if is_stopped:  # then the worker is forked after its group was given up
                server.suspend()
            with at_first_wait(monkeypatch, throw), pytest.raises(OnPurpose):
                fork(jobs.sleep_for_ever, nprocs=2)
            server.resume()

            assert_answers_are_its_own()

            assert children_of(server) == other.pids()

    def test_a_handler_that_asks_the_server_something_itself(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with fork(jobs.sleep_for_ever, nprocs=2, join=False) as other:
            server = server_of(other)
            # The wait for what the handler has heard already; it is this long, and no longer.
            monkeypatch.setattr(forkserver, "_PATIENCE_SECONDS", 0.01)
            with at_first_wait(monkeypatch, lambda *_: other.terminate(DEADLOCK)):
                context = fork(os.getpid, nprocs=2)

            assert context.results() == context.pids()
            assert other.exitcodes() == [-signal.SIGTERM] * 2
            assert children_of(server) == []

    def test_between_a_descriptor_and_whoever_closes_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fork(jobs.do_nothing, nprocs=1)
        before = os.listdir("/proc/self/fd")

        def make_mark_file(mark: str) -> int:
            fd = marker.make_mark_file(mark)
            signal.raise_signal(signal.SIGALRM)
            return fd

        monkeypatch.setattr(forkserver, "make_mark_file", make_mark_file)
        handler = signal.signal(signal.SIGALRM, throw)
        try:
            with pytest.raises(OnPurpose):
                fork(jobs.do_nothing, nprocs=1)
        finally:
            signal.signal(signal.SIGALRM, handler)

        assert os.listdir("/proc/self/fd") == before

    @pytest.mark.slow
    @pytest.mark.untraced
    def test_at_every_line(self) -> None:
        with fork(jobs.sleep_for_ever, nprocs=1, join=False) as other:
            server = server_of(other)
            for number in itertools.count():
                descriptors = len(os.listdir("/proc/self/fd"))
                with raising_at_line(number, forkserver, popen) as places, suppress(OnPurpose):
                    context = fork(jobs.sleep_for_ever, nprocs=1, join=False)
                if not places:
                    break
                assert_answers_are_its_own()
                assert children_of(server) == other.pids(), places
                assert len(os.listdir("/proc/self/fd")) == descriptors, places
            context.terminate()
        assert number > 40


@pytest.mark.untraced
def test_an_exception_at_any_line_while_a_status_is_read(run: Run) -> None:
    """The status is neither lost nor waited for, for ever, at the exit of the program."""
    for number in itertools.count():
        context = run(os._exit, args=(3,), nprocs=1, join=False)
        (process,) = context.processes
        assert is_readable(process.sentinel, DEADLOCK)
        with raising_at_line(number, forkserver, popen) as places, suppress(OnPurpose):
            process.join()
        assert process not in multiprocessing.active_children(), places
        assert process.exitcode == 3, places
        with pytest.raises(ProcessExitedException, match="exit code 3"):
            context.join()
        if not places:
            break
    assert number > 5


def test_what_is_closed_before_the_end_was_seen_is_still_waited_for(run: Run) -> None:
    with run(jobs.sleep_for_ever, nprocs=1, join=False) as context:
        (process,) = context.processes
        process.popen.close()
        # They would get the numbers of what was closed, and are not readable.
        with descriptors_in_use(16):
            process.kill()
            process.join(DEADLOCK)
            assert process.exitcode == -signal.SIGKILL


class TestMasks:
    def test_the_caller_blocks_sigchld(self, run: Run) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        try:
            assert run(jobs.return_rank, nprocs=2, timeout=DEADLOCK).results() == [0, 1]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def test_later_workers_do_not_inherit_what_the_first_caller_blocks(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD])
        try:
            fork(jobs.do_nothing, nprocs=1)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

        (blocked,) = fork(signal.pthread_sigmask, args=(signal.SIG_BLOCK, ()), nprocs=1).results()
        assert blocked == set()

    @pytest.mark.parametrize(
        "code",
        [
            "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])",
            "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        ],
    )
    def test_a_preloaded_module_blocks_or_ignores_sigchld(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
    ) -> None:
        (tmp_path / "is_deaf.py").write_text(f"import signal\n{code}\n")
        monkeypatch.syspath_prepend(tmp_path)
        args = ("os._exit 7",)
        context = fork(jobs.fail, args=args, nprocs=1, preload=["is_deaf"], join=False)
        with pytest.raises(ProcessExitedException, match="exit code 7"):
            context.join()

    def test_a_preloaded_module_reaps_the_workers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "reaps_all.py").write_text(
            "import os\nos.register_at_fork(after_in_parent=lambda: os.waitpid(-1, 0))\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        context = fork(jobs.return_rank, nprocs=2, preload=["reaps_all"])
        assert context.results() == [0, 1]  # as they report it: their status nobody knows

    def test_a_preloaded_module_has_the_system_reap_the_workers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "ignores_ends.py").write_text(
            "import os, signal\nos.register_at_fork(after_in_parent="
            "lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        context = fork(jobs.sleep_for_ever, nprocs=1, preload=["ignores_ends"], join=False)
        context.processes[0].kill()
        with pytest.raises(ProcessExitedException, match="its status is not known"):
            context.join()


class TestTimeout:
    def test_of_a_preload_that_never_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "never_loaded.py").write_text(NEVER_LOADED)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(SpawnTimeoutError, match=r"still imports preload=\['never_loaded'\]"):
            fork(jobs.do_nothing, nprocs=1, preload=["never_loaded"], timeout=0.3)

    def test_of_an_interpreter_that_never_gets_ready(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "sitecustomize.py").write_text(
            f"import sys\nif 'rankspawn-forkserver' in sys.orig_argv:\n    exec({NEVER_LOADED!r})\n"
        )
        path = os.environ.get("PYTHONPATH", "")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), path]))
        with pytest.raises(SpawnTimeoutError, match="the fork server still gets ready"):
            fork(jobs.do_nothing, nprocs=1, timeout=0.1)

    def test_while_another_thread_starts_the_same_server(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        (tmp_path / "never_loaded.py").write_text(
            f"import os\nos.write(os.open({str(fifo)!r}, os.O_WRONLY), b'%d' % os.getpid())\n"
            + NEVER_LOADED
        )
        monkeypatch.syspath_prepend(tmp_path)
        start = functools.partial(fork, jobs.do_nothing, nprocs=1, preload=["never_loaded"])
        told = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(start)
            assert is_readable(told, DEADLOCK)
            server = int(os.read(told, 20))
            os.close(told)

            with pytest.raises(SpawnTimeoutError, match="still imports preload"):
                start(timeout=0.1)

            assert psutil.pid_exists(server)  # the first one has time
            os.kill(server, signal.SIGKILL)
            with pytest.raises(ConnectionError, match="ended unexpectedly"):
                first.result(DEADLOCK)

    def test_of_a_server_that_was_stopped(self) -> None:
        with fork(jobs.sleep_for_ever, nprocs=1, join=False) as other:
            server = server_of(other)
            server.suspend()
            with pytest.raises(SpawnTimeoutError, match="still owes an answer"):
                fork(jobs.sleep_for_ever, nprocs=2, timeout=0.1)
            server.resume()

            assert_answers_are_its_own()
            assert children_of(server) == other.pids()
