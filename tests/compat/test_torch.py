"""The names of torch's spawn, without torch. Parity with torch itself is in tests/interop."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rankspawn.compat import torch as mp
from rankspawn.option_types import StartMethod
from tests import jobs


def index_and(index: int, *args: object) -> tuple[object, ...]:
    return index, *args


def fail_if(index: int, which: int, how: str) -> None:
    if index == which:
        jobs.fail(how)
    jobs.sleep_for_ever()


def test_joined_returns_none(start_method: StartMethod) -> None:
    answer = mp.start_processes(index_and, args=("a",), nprocs=2, start_method=start_method)

    assert answer is None


def test_the_index_comes_first(start_method: StartMethod) -> None:
    context = mp.start_processes(
        index_and, args=("a", "b"), nprocs=2, join=False, start_method=start_method
    )

    assert isinstance(context, mp.ProcessContext)
    assert len(context.pids()) == 2
    assert context.results() == [(0, "a", "b"), (1, "a", "b")]
    assert context.join() is True


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("SIGKILL", mp.ProcessExitedException, "process 1 terminated with signal SIGKILL"),
        ("os._exit 7", mp.ProcessExitedException, "process 1 terminated with exit code 7"),
        ("exit 7", mp.ProcessExitedException, "process 1 terminated with exit code 7"),
        # torch prints the text instead.
        ("exit text", mp.ProcessExitedException, "process 1 terminated with exit code 1: no data"),
    ],
)
def test_messages_are_torchs(how: str, kind: type[mp.ProcessException], message: str) -> None:
    with pytest.raises(kind) as caught:
        mp.spawn(fail_if, args=(1, how), nprocs=2)

    assert str(caught.value) == message
    assert (caught.value.error_index, caught.value.msg) == (1, message)
    assert caught.value.error_pid == caught.value.pid > 0


def test_the_message_of_an_exception_is_torchs(start_method: StartMethod) -> None:
    with pytest.raises(mp.ProcessRaisedException) as caught:
        mp.start_processes(fail_if, args=(0, "raise"), nprocs=2, start_method=start_method)

    lines = str(caught.value).splitlines()
    assert lines[:4] == [
        "",
        "",
        "-- Process 0 terminated with the following error:",
        "Traceback (most recent call last):",
    ]
    assert lines[-1] == "ValueError: on purpose"
    assert str(caught.value).endswith("\n")


def test_the_environment_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "another-machine")
    monkeypatch.delenv("RANK", raising=False)

    context = mp.spawn(environment_of, nprocs=1, join=False)

    assert context is not None
    (environ,) = context.results()
    assert environ["MASTER_ADDR"] == "another-machine"
    added = environ.keys() - os.environ.keys()
    assert {**os.environ, **{name: environ[name] for name in added}} == environ
    # Those that the page names.
    assert added == {"RANKSPAWN_JOB", "RANKSPAWN_MEETING"}


def environment_of(_: int) -> dict[str, str]:
    return dict(os.environ)


def test_torch_is_not_imported(tmp_path: Path) -> None:
    code = "import sys, rankspawn.compat.torch; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout == "False\n"


@pytest.mark.untraced
def test_a_worker_does_not_import_what_starts_workers(tmp_path: Path) -> None:
    """Although it imports these names, with the script."""
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "import rankspawn.compat.torch as mp\n"
        "def loaded(_):\n"
        "    return {'multiprocessing', 'rankspawn.spawning'} & {*sys.modules}\n"
        "if __name__ == '__main__':\n"
        "    print(mp.spawn(loaded, nprocs=1, join=False).results())\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout == "[set()]\n"


@pytest.mark.parametrize("nprocs", [0, -1, True, "2"])
def test_a_wrong_number_of_processes_is_refused(nprocs: object) -> None:
    with pytest.raises((TypeError, ValueError), match="nprocs"):
        mp.spawn(index_and, nprocs=nprocs)  # type: ignore[call-overload]


def test_another_start_method_is_warned_about_and_not_used() -> None:
    with pytest.warns(FutureWarning, match="start_processes"):
        mp.spawn(index_and, nprocs=1, start_method="fork")


def test_an_unknown_start_method_is_refused() -> None:
    with pytest.raises(ValueError, match="bogus"):
        mp.start_processes(index_and, nprocs=1, start_method="bogus")  # type: ignore[call-overload]


def test_wrong_arguments_have_a_traceback() -> None:
    with pytest.raises(mp.ProcessRaisedException, match=r"Traceback \(most recent call last\):"):
        mp.spawn(environment_of, args=(1, 2), nprocs=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [str, dict, iter])
def test_arguments_are_of_any_iterable(kind: Any, start_method: StartMethod) -> None:
    args: Any = {str: "ab", dict: {"a": 1, "b": 2}, iter: iter("ab")}[kind]
    context = mp.start_processes(index_and, args=args, join=False, start_method=start_method)

    assert context.results() == [(0, "a", "b")]


def test_arguments_that_are_not_iterable_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^args must be a tuple or another iterable, not 3"):
        mp.spawn(index_and, args=3)  # type: ignore[call-overload]


def test_start_method_of_none_is_the_default_of_multiprocessing() -> None:
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        for method in ("spawn", None):
            multiprocessing.set_start_method(method, force=True)
            expected = method or multiprocessing.get_all_start_methods()[0]
            context = mp.start_processes(is_copy_of, (os.getpid(),), join=False, start_method=None)
            assert context.results() == [expected == "fork"]
            assert multiprocessing.get_start_method(allow_none=True) == method
    finally:
        multiprocessing.set_start_method(before, force=True)


_first_pid = os.getpid()


def is_copy_of(_: int, pid: int) -> bool:
    """Whether this module was imported in the process with that id."""
    return _first_pid == pid


def end_after_rank_1(index: int, first: Connection, second: Connection) -> None:
    """Rank 1 fails, and rank 0, which watches it, ends by itself once it is gone."""
    if index == 1:
        second.send(os.getpid())
        second.recv()
        jobs.fail("raise")
    other = select.poll()
    other.register(os.pidfd_open(first.recv()), select.POLLIN)
    first.send("watched")
    other.poll(jobs.DEADLOCK * 1000)


def test_others_may_end_by_themselves_for_the_grace_period(start_method: StartMethod) -> None:
    ends = multiprocessing.get_context("spawn").Pipe()
    context = mp.start_processes(
        end_after_rank_1, ends, nprocs=2, join=False, start_method=start_method
    )

    with pytest.raises(mp.ProcessRaisedException, match="on purpose"):
        context.join(grace_period=jobs.DEADLOCK)

    assert context.exitcodes() == [0, 1]
    for end in ends:
        end.close()


@pytest.mark.parametrize("grace_period", [None, 0.01])
def test_after_that_they_are_terminated_and_that_is_logged(
    grace_period: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    context = mp.start_processes(fail_if, (1, "raise"), 2, join=False, start_method="fork")
    first, _ = context.pids()

    with pytest.raises(mp.ProcessRaisedException, match="on purpose"):
        context.join(grace_period=grace_period)

    # The short time counts after SIGTERM, too, and may be over before that has worked.
    ends = [-signal.SIGTERM] if grace_period is None else [-signal.SIGTERM, -signal.SIGKILL]
    assert context.exitcodes()[0] in ends
    assert caplog.messages[0] == f"Terminating process {first} via signal SIGTERM"


def test_error_files_are_there_for_who_asks() -> None:
    with mp.start_processes(fail_if, (1, "raise"), 2, join=False, start_method="fork") as context:
        paths = context.error_files
        with pytest.raises(mp.ProcessRaisedException) as caught:
            context.join()

    assert [os.path.exists(path) for path in paths] == [False, True]
    assert pickle.loads(Path(paths[1]).read_bytes()) == caught.value.traceback
    os.unlink(paths[1])


# Contexts over processes that somebody else started.

fork = multiprocessing.get_context("fork")


def write_error_and_exit(path: str) -> None:
    Path(path).write_bytes(pickle.dumps("the traceback\n"))
    os._exit(1)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
class TestAdopted:
    """``ProcessContext(processes, error_files)``."""

    def start(self, target: Any, *args: Any) -> Any:
        process = fork.Process(target=target, args=args)
        process.start()
        return process

    def test_success(self) -> None:
        processes = [self.start(jobs.do_nothing) for _ in range(2)]
        context: mp.ProcessContext[None] = mp.ProcessContext(processes, ["a", "b"])

        assert context.pids() == [process.pid for process in processes]
        assert context.error_files == ["a", "b"]
        assert context.join() is True
        assert context.sentinels == {}
        assert context.exitcodes() == [0, 0]

    def test_none(self) -> None:
        assert mp.ProcessContext([], []).join() is True

    def test_running(self) -> None:
        context: mp.ProcessContext[None] = mp.ProcessContext(
            [self.start(jobs.sleep_for_ever)], ["a"]
        )

        assert context.join(timeout=0) is False
        assert [*context.sentinels.values()] == [0]
        context.terminate()
        assert context.exitcodes() == [-signal.SIGTERM]

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ("os._exit 7", "process 1 terminated with exit code 7"),
            ("SIGKILL", "process 1 terminated with signal SIGKILL"),
        ],
    )
    def test_failure(self, how: str, message: str) -> None:
        first, second = self.start(jobs.sleep_for_ever), self.start(jobs.fail, how)
        context: mp.ProcessContext[None] = mp.ProcessContext([first, second], ["a", "b"])

        for _ in range(2):
            with pytest.raises(mp.ProcessExitedException) as caught:
                context.join()

            assert str(caught.value) == message
            assert caught.value.error_pid == second.pid
        assert first.exitcode == -signal.SIGTERM

    def test_traceback_in_an_error_file(self, tmp_path: Path) -> None:
        path = str(tmp_path / "error")
        process = self.start(write_error_and_exit, path)
        context: mp.ProcessContext[None] = mp.ProcessContext([process], [path])

        with pytest.raises(mp.ProcessRaisedException) as caught:
            context.join()

        assert str(caught.value).endswith("following error:\nthe traceback\n")


# Where torch is loaded; a small one, of the same shape.


class TheirException(Exception):
    __slots__ = ("error_index", "error_pid")

    def __init__(self, msg: str, error_index: int, pid: int) -> None:
        super().__init__(msg)
        self.msg, self.error_index, self.pid = msg, error_index, pid


class TheirRaisedException(TheirException):
    pass


class TheirExitedException(TheirException):
    __slots__ = ("exit_code",)


class TheirContext:
    def __init__(self, *_: object) -> None:
        raise AssertionError("ours is made in our way")


@pytest.fixture
def torch_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "torch.multiprocessing", "torch.multiprocessing.spawn"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    theirs: Any = sys.modules["torch.multiprocessing.spawn"]
    theirs.ProcessException = TheirException
    theirs.ProcessRaisedException = TheirRaisedException
    theirs.ProcessExitedException = TheirExitedException
    theirs.ProcessContext = TheirContext


@pytest.mark.usefixtures("torch_loaded")
@pytest.mark.parametrize(
    ("how", "theirs", "ours"),
    [
        ("raise", TheirRaisedException, mp.ProcessRaisedException),
        ("SIGKILL", TheirExitedException, mp.ProcessExitedException),
    ],
)
def test_exceptions_are_caught_under_torchs_names(
    how: str, theirs: type[TheirException], ours: type[mp.ProcessException]
) -> None:
    with pytest.raises(theirs) as caught:
        mp.start_processes(fail_if, (1, how), 2, start_method="fork")

    error: Any = caught.value
    assert isinstance(error, ours)
    copy = pickle.loads(pickle.dumps(error))
    for each in (error, copy):
        assert type(each) is type(error)
        assert (each.error_index, each.msg) == (1, str(error))
        assert each.error_pid == each.pid > 0
        assert getattr(each, "exit_code", None) == (-9 if how == "SIGKILL" else None)
    # Where torch is not loaded, it is ours alone.
    del sys.modules["torch.multiprocessing.spawn"]
    assert type(pickle.loads(pickle.dumps(error))) is ours


@pytest.mark.usefixtures("torch_loaded")
def test_the_context_is_torchs_too() -> None:
    context = mp.start_processes(index_and, join=False, start_method="fork")

    assert isinstance(context, TheirContext)
    assert type(context) is mp.ProcessContext is mp.SpawnContext
    assert isinstance(mp.ProcessContext([], []), TheirContext)
    assert context.results() == [(0,)]


@pytest.mark.usefixtures("torch_loaded")
def test_all_other_names_are_torchs_own() -> None:
    theirs: Any = sys.modules["torch.multiprocessing"]
    theirs.Queue = theirs._private = object()

    assert mp.Queue is mp._private is theirs.Queue
    for name in ("nothing", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(mp, name)


def test_without_torch_its_names_are_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(
        AttributeError, match=r"'Queue'.*torch\.multiprocessing's, but torch is not"
    ):
        _ = mp.Queue
    assert not hasattr(mp, "_repr_html_")
