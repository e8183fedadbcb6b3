"""When a node ends its job by itself, and where its workers are then, or when somebody asks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from rankspawn.interrupts import Signals
from rankspawn.launch import limits
from rankspawn.launch.config import LaunchConfig
from rankspawn.launch.limits import Limits, Prints, describe_others, describe_where
from rankspawn.supervise import stalls
from rankspawn.workers.board import STEPS_VARIABLE
from tests.jobs import DEADLOCK
from tests.launch.running import COMMAND, environment, run_script, write_script
from tests.terminal import Terminal

if TYPE_CHECKING:
    from rankspawn.launch.pod import Pod

CPU = ("--device_type", "cpu")
SLEEP = "import time; time.sleep(1000)"


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock says."""
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(limits, "time", clock)
    monkeypatch.setattr(stalls, "time", clock)
    return now


@pytest.fixture
def pod(tmp_path: Path) -> SimpleNamespace:
    """Two trainers, each of which prints to two files."""
    outputs: dict[int, list[str]] = {}
    steps = {4: b"", 5: b""}
    for rank in (4, 5):
        outputs[rank] = [str(tmp_path / f"{name}.{rank}") for name in ("out", "err")]
        for path in outputs[rank]:
            Path(path).touch()
    return SimpleNamespace(
        has_trainers=True,
        is_done=False,
        failures=[],
        outputs=outputs,
        steps=steps,
        steps_of=lambda rank: steps[rank],
    )


def begun(pod: SimpleNamespace, **options: float) -> Limits:
    limits = Limits(LaunchConfig(script="train.py", **options))  # type: ignore[arg-type]
    limits.begin(cast("Pod", pod))
    return limits


def prints(path: str) -> None:
    with open(path, "a") as file:
        file.write("a line\n")


def test_no_limits(now: list[float], pod: SimpleNamespace) -> None:
    limits = begun(pod)
    now[0] += 1e6
    assert not limits.are_reached()
    assert limits.seconds_left() is None


def test_what_one_rank_prints_anywhere_is_enough(now: list[float], pod: SimpleNamespace) -> None:
    limits = begun(pod, stall_timeout=10.0)
    assert not limits.are_reached()
    assert limits.seconds_left() == 1.0
    for path in (pod.outputs[4][0], pod.outputs[5][1]):
        now[0] += 9
        prints(path)
        assert not limits.are_reached()
    now[0] += 9
    pod.steps[4] = b"step 7"
    assert not limits.are_reached()
    now[0] += 10
    assert limits.are_reached()
    assert limits.why == (
        "ended after 10 s without a report or output of any rank of this node (--stall_timeout); "
        "last heard of: rank 4 10.0 s ago, rank 5 19.0 s ago"
    )
    limits.end()
    assert limits.seconds_left() is None


@pytest.mark.parametrize(
    "change", [{"has_trainers": False}, {"is_done": True}, {"failures": ["rank 4 failed"]}]
)
def test_who_need_not_print(
    now: list[float], pod: SimpleNamespace, change: dict[str, object]
) -> None:
    limits = begun(pod, stall_timeout=10.0)
    assert not limits.are_reached()
    vars(pod).update(change)
    now[0] += 100
    assert not limits.are_reached()
    assert limits.seconds_left() is None
    limits.end()


def test_a_start_is_a_sign_of_life_but_no_more_time(now: list[float], pod: SimpleNamespace) -> None:
    limits = begun(pod, stall_timeout=10.0, timeout=15.0)
    assert not limits.are_reached()
    now[0] += 9
    limits.end()
    limits.begin(cast("Pod", pod))
    assert not limits.are_reached()
    now[0] += 5
    assert not limits.are_reached()
    now[0] += 1
    assert limits.are_reached()
    assert limits.why == "ended after 15 s, the time that --timeout gives the whole job"
    limits.end()


def test_a_log_that_somebody_removed(tmp_path: Path) -> None:
    gone = Prints({0: [str(tmp_path / "gone"), str(tmp_path / "gone as well")]}, lambda _: b"")
    assert gone.open_output(0) is None
    assert gone.steps_of(0) == b"0"


@pytest.fixture
def py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has what is in the shell script be py-spy; its third word is the process."""

    def write(text: str) -> None:
        path = tmp_path / "bin" / "py-spy"
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")

    return write


def never() -> bool:
    return False


ANSWERS = """
import rankspawn, sys

def wait():
    print("ready", flush=True); input()

def lag_behind():
    print("ready", flush=True); input()

lag_behind() if sys.argv[1] == "2" else wait()
"""


def test_where_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_SURVIVORS_SECONDS", DEADLOCK)
    variables = environment(**{STEPS_VARIABLE: f"{os.getpid()}:3:0:0:0:0"})
    with ExitStack() as stack:
        programs = []
        for rank in range(4):
            command = [sys.executable, "-c", ANSWERS if rank else SLEEP, str(rank)]
            program = subprocess.Popen(
                command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            programs.append(stack.enter_context(program))
            stack.callback(program.kill)
            assert program.stdout is not None
            assert not rank or program.stdout.readline() == b"ready\n"
        pids = {rank: program.pid for rank, program in enumerate(programs)}
        noted: dict[int, str] = {}
        text = describe_others(pids, note=noted.update)
        assert sorted(noted) == [1, 2, 3]
        assert text.startswith("meanwhile rank 2 was not where the other 2 were:\n--- rank 2 ---\n")
        assert " in lag_behind\n" in text
        assert " in wait\n" not in text
        assert describe_others({0: pids[0], 2: pids[2]}) == ""


def test_where_they_are(py_spy: Callable[[str], None]) -> None:
    py_spy("""echo 'Thread 1 (idle): "MainThread"'; echo "    f (a.py:$(($3 / 10)))" """)
    noted: dict[int, str] = {}
    text = describe_where({0: 11, 1: 12, 2: 99}, is_called_off=never, note=noted.update)
    assert sorted(noted) == [0, 1, 2]
    assert text.startswith(
        "rank 2 differs from the other 2, look there first:\n--- rank 2 ---\nThread 1 (idle)"
    )
    assert text.count('File "a.py", line 1 in f') == 2


def test_where_they_are_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, py_spy: Callable[[str], None]
) -> None:
    assert describe_where({}, is_called_off=never) == "no rank runs on this node"
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        patched.setattr(sys, "executable", str(tmp_path / "python"))
        text = describe_where({0: 11, 1: 12}, is_called_off=never)
    assert text.startswith("rank 0 (process 11), rank 1 (process 12): (not known: ")
    assert text.count("pip install py-spy") == 1

    py_spy("echo 'no such process' >&2; exit 1")
    text = describe_where({0: 11}, is_called_off=never)
    assert text == "rank 0 (process 11): (not known: py-spy says: no such process)"


def test_who_is_asked_to_end_does_not_wait(py_spy: Callable[[str], None]) -> None:
    py_spy("exec sleep 1000")
    text = describe_where({0: 11}, is_called_off=lambda: True)
    assert text == "rank 0 (process 11): (not known: py-spy did not answer in time)"


def test_ranks_that_print_nothing(tmp_path: Path, py_spy: Callable[[str], None]) -> None:
    py_spy("echo 'Thread 1 (idle)'; echo '    f (a.py:7)'")
    done = run_script(tmp_path, SLEEP, *CPU, "--stall_timeout", "0.2")

    assert done.code == 124
    last = done.errors.splitlines()[-1]
    assert last.startswith(
        "rankrun: ended after 0.2 s without a report or output of any rank of this node ("
    )
    assert last.endswith("; still running: rank 0, rank 1")
    assert "rankrun: where the ranks of this node are:\n--- rank 0 ---\n" in done.errors
    assert done.errors.count('  File "a.py", line 7 in f') == 2


WAIT = """
    import os, time
    print("ready")
    while not os.path.exists("go"):
        time.sleep(0.01)
"""


def test_ctrl_backslash_shows_where_all_are_and_goes_on(
    tmp_path: Path, py_spy: Callable[[str], None]
) -> None:
    py_spy("echo 'Thread 1 (idle)'; echo '    f (a.py:7)'")
    write_script(tmp_path, WAIT)
    arguments = [*COMMAND[1:], "--nproc_per_node", "2", *CPU, "train.py"]
    session = Terminal(arguments, cwd=tmp_path, env=environment())
    try:
        session.read_until("ready")
        # While it starts the second one, it passes it over.
        while session.output.count("line 7 in f") < 2:
            os.write(session.master, b"\x1c")
            session.read_for(0.2)
            assert session.process.poll() is None, session.output
        (tmp_path / "go").touch()
        assert session.finish() == 0, session.output
    finally:
        session.close()
    assert "rankrun: SIGQUIT\r\n--- rank 0 ---\r\n" in session.output


def test_without_a_terminal_programs_have_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    try:
        for has_terminal in (True, False):
            monkeypatch.setattr("rankspawn.interrupts._has_terminal", lambda it=has_terminal: it)
            with Signals() as signals:
                with signals.quit_is_ours():
                    is_ignored = signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN
                    assert is_ignored == has_terminal
                assert not signals.take_quit()
                signal.raise_signal(signal.SIGQUIT)
                assert signals.take_quit()
                assert not signals.take_quit()
            assert signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGQUIT, before)


def test_where_it_was_ignored_it_stays_so() -> None:
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        with Signals() as signals, signals.quit_is_ours():
            assert signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGQUIT, before)
