"""Groups and jobs that really run, seen from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import rankspawn
from rankspawn import MultiprocessContext
from rankspawn.cli import main
from rankspawn.inspect import finding, showing
from rankspawn.inspect.asking import stacks_of
from rankspawn.inspect.finding import RunningJob, find_jobs
from rankspawn.workers import forked
from rankspawn.workers.inherited import redirect_output
from rankspawn.workers.tail import Growth
from tests import jobs, rights
from tests.jobs import DEADLOCK
from tests.launch.running import COMMAND, environment, write_script

ME = str(os.getpid())
HERE = ["[rank 0] here is 0", "[rank 1] here is 1"]
FORK: Any = {"backend": "cpu", "start_method": "fork"}


def jobs_of(parent: int) -> list[RunningJob]:
    return [job for job in find_jobs() if job.parent == parent]


@contextmanager
def waiting(run: Callable[..., MultiprocessContext], **options: object) -> Iterator[RunningJob]:
    """A group of this process, all of whose ranks have reported and wait."""
    with run(jobs.report_and_wait, nprocs=2, join=False, **options) as context:
        deadline = time.monotonic() + DEADLOCK
        while len(context.reports()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (job,) = jobs_of(os.getpid())
        yield job


def test_a_group_is_seen_with_all_that_it_reports(
    run: Callable[..., MultiprocessContext], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with waiting(run, log_dir=str(tmp_path), grace_period=3) as job:
        assert job.what.startswith("report_and_wait")
        assert (job.kind, job.grace) == ("spawn", 3.0)
        assert abs(job.started - time.time()) < DEADLOCK
        assert [rank.rank for rank in job.ranks] == [0, 1]
        assert {rank.state for rank in job.ranks} == {"running"}

        assert main(["ps", "--json"]) == 0
        (data,) = [each for each in json.loads(capfd.readouterr().out) if each["job"] == job.id]
        assert data["pid"] == os.getpid()
        first = data["ranks"][0]
        assert (first["step"], first["total"], first["values"]) == (0.0, 10.0, {"loss": 0.5})
        assert first["device"] == "cpu"
        assert first["memory"] > 1 << 20
        assert first["log"] == str(tmp_path / "workerlog.0")

        assert main(["ps"]) == 0
        assert f"{job.id}  report_and_wait" in capfd.readouterr().out

        stacks = stacks_of(job, job.ranks)
        assert sorted(stacks) == [0, 1]
        assert all("in report_and_wait" in text for text in stacks.values())

        assert main(["logs", ME]) == 0
        assert sorted(capfd.readouterr().out.splitlines()) == HERE
        assert main(["logs", ME, "--rank", "1"]) == 0
        assert capfd.readouterr().out == "here is 1\n"
        assert main(["stacks", ME, "--rank", "5"]) == 1
        assert "has no rank 5 on this machine: there are 0, 1" in capfd.readouterr().err
    assert jobs_of(os.getpid()) == []


def ended_after_a_look(context: Any, logs: Path) -> Callable[[Growth, float | None], None]:
    """A wait that ends the ranks, once it was looked at them since all have printed."""
    printed = False

    def wait(_: Growth, timeout: float | None = None) -> None:
        nonlocal printed
        assert timeout
        if printed:
            context.terminate()
        printed = sum(path.read_text().count("\n") for path in logs.iterdir()) == 2
        time.sleep(0.01)

    return wait


def test_logs_are_followed_to_the_end_of_the_ranks(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options: Any = {"log_dir": str(tmp_path), **FORK}
    with rankspawn.spawn(jobs.report_and_wait, nprocs=2, join=False, **options) as context:
        monkeypatch.setattr(Growth, "wait", ended_after_a_look(context, tmp_path))
        assert main(["logs", ME, "--follow"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == HERE


def test_a_log_that_a_rank_opens_late_is_followed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A rank under way prints to where its parent does, until it has opened its own log."""
    looked = tmp_path / "looked"

    def redirect(log: int) -> None:
        while not looked.exists():
            time.sleep(0.01)
        redirect_output(log)

    monkeypatch.setattr(forked, "redirect_output", redirect)
    logs = tmp_path / "logs"
    options: Any = {"log_dir": str(logs), **FORK}
    with rankspawn.spawn(jobs.report_and_wait, nprocs=2, join=False, **options) as context:
        monkeypatch.undo()
        ended = ended_after_a_look(context, logs)

        def wait(growth: Growth, timeout: float | None = None) -> None:
            looked.touch()
            ended(growth, timeout)

        monkeypatch.setattr(Growth, "wait", wait)
        assert main(["logs", ME, "--follow"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == HERE


def test_what_ranks_print_to_files_in_memory(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with waiting(rankspawn.spawn, tee=(), **FORK) as job:
        assert [rank.log for rank in job.ranks] == [f"/proc/{r.pid}/fd/1" for r in job.ranks]
        assert main(["logs", ME]) == 0
        assert sorted(capfd.readouterr().out.splitlines()) == HERE

        # Ranks print to a pipe of the program's where nothing else is said.
        monkeypatch.setattr(finding, "CAPTURE_FILE", "another-file")
        assert main(["logs", ME]) == 1
        assert "keeps no logs" in capfd.readouterr().err


def test_a_table_follows_a_job_to_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = rankspawn.spawn(jobs.sleep_for_ever, nprocs=2, join=False, **FORK)
    looks = []

    def look(_: float) -> None:
        looks.append(capsys.readouterr().out)
        if len(looks) == 2:
            context.terminate()

    monkeypatch.setattr(time, "sleep", look)
    assert main(["top", ME]) == 0
    assert "rank 0 (cpu)" in looks[0]
    assert "has ended" in capsys.readouterr().out


def test_the_live_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with rankspawn.spawn(jobs.sleep_for_ever, nprocs=1, join=False, **FORK) as context:
        (job,) = jobs_of(os.getpid())
        monkeypatch.setattr(time, "sleep", lambda _: context.terminate())
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        showing.show_top(job, None)
    shown = capsys.readouterr().out
    assert job.id in shown
    assert "memory" in shown


PROGRAM = """
import signal, sys, time
import rankspawn

def work(stubborn):
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        time.sleep(0.1)

if __name__ == "__main__":
    stubborn = sys.argv[1] == "stubborn"
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rankspawn.spawn(work, args=(stubborn,), nprocs=2, backend="cpu", start_method="fork",
                    grace_period=1)
"""


@contextmanager
def program(folder: Path, how: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose two ranks are ready."""
    path = write_script(folder, PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(path), how], env=environment(), stdout=-1, stderr=-1
    ) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
            yield process
        finally:
            process.kill()


def runs(pid: int) -> bool:
    """Whether such a process is there; one that ended and that nobody has reaped is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_stop_asks_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with program(tmp_path, "willing") as process:
        (job,) = jobs_of(process.pid)
        assert main(["stop", job.id]) == 0
        told = capsys.readouterr().out
        assert told.startswith(f"stopped job {job.id} (work (train.py)): all 2 ranks ended within")
        assert process.wait(DEADLOCK) == -signal.SIGTERM
        assert not any(runs(rank.pid) for rank in job.ranks)


def test_stop_kills_what_does_not_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with program(tmp_path, "stubborn") as process:
        (job,) = jobs_of(process.pid)
        assert main(["stop", job.id, "--grace", "0.1"]) == 0
        assert "2 of 2 ranks did not end within 0.1 s" in capsys.readouterr().out
        assert process.wait(DEADLOCK) == 1
        assert jobs_of(process.pid) == []


def test_a_killed_group_is_not_there(tmp_path: Path) -> None:
    with program(tmp_path, "willing") as process:
        (job,) = jobs_of(process.pid)
        process.kill()
        process.wait(DEADLOCK)
        assert jobs_of(process.pid) == []
        deadline = time.monotonic() + DEADLOCK
        while any(runs(rank.pid) for rank in job.ranks):  # their guardian is at it
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_another_user_sees_nothing() -> None:
    with rankspawn.spawn(jobs.sleep_for_ever, nprocs=1, join=False, **FORK):
        assert jobs_of(os.getpid())
        read, write = os.pipe()
        child = os.fork()
        if not child:  # what follows must not return into pytest
            try:
                rights.drop()
                os.write(write, b"%d" % len(jobs_of(os.getppid())))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        with os.fdopen(read, "rb") as file:
            assert file.read() == b"0"


SCRIPT = """
import os, time
if os.environ["RANK"] == "0":
    import rankspawn
print("ready", flush=True)
time.sleep(600)
"""


def test_a_job_of_rankrun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(tmp_path, SCRIPT)
    command = [*COMMAND, "--nproc_per_node", "2", "--device_type", "cpu", "train.py", "--lr", "1"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=-1, stderr=subprocess.DEVNULL
    ) as launcher:
        try:
            assert launcher.stdout is not None
            while b"ready" not in launcher.stdout.readline():
                assert launcher.poll() is None
            # The first rank may be ready before the launcher has listed them.
            deadline = time.monotonic() + DEADLOCK
            while len((job := jobs_of(launcher.pid)[0]).ranks) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert (job.kind, job.what) == ("rankrun", "train.py --lr 1")
            assert [(rank.rank, rank.device) for rank in job.ranks] == [(0, "cpu"), (1, "cpu")]
            assert job.ranks[1].log == str(tmp_path / "log" / "workerlog.1")

            monkeypatch.setenv("PATH", str(tmp_path))
            monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
            assert main(["stacks", job.id]) == 0
            first, _, second = capsys.readouterr().out.partition("--- rank 1 ---\n")
            assert 'train.py", line 6 in <module>' in first
            assert "has not imported rankspawn" in second
            assert "pip install py-spy" in second
            py_spy = tmp_path / "py-spy"
            py_spy.write_text("#!/bin/sh\necho 'Thread 1 (idle)'\necho '    f (a.py:'$3')'\n")
            py_spy.chmod(0o755)
            assert main(["stacks", job.id, "--rank", "1"]) == 0
            pid = job.ranks[1].pid
            assert f'  File "a.py", line {pid} in f' in capsys.readouterr().out

            assert main(["stop", job.id[:6]]) == 0
            assert launcher.wait(DEADLOCK) == 128 + signal.SIGTERM
        finally:
            launcher.kill()
