"""The names of torch's spawn, without torch. Parity with torch itself is in tests/interop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    assert "RANK" not in environ


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
