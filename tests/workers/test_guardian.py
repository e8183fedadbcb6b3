"""A parent that dies in surroundings in which its guardian has little to work with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankspawn.workers import guardian, marker, orphans
from rankspawn.workers.guardian import Guardian
from rankspawn.workers.marker import VARIABLE, new_mark
from tests.descendants import Watched
from tests.jobs import DEADLOCK
from tests.rights import can_mount

ROOT = Path(__file__).parent.parent.parent

# Prints the ids of its workers and fork server, and of another process, which the test must end.
PROGRAM = """
import ctypes, json, multiprocessing, os, resource, signal, sys
import rankspawn
from rankspawn.workers import forkserver
from tests import jobs, rights

PR_SET_DUMPABLE = 4

def work(ready, case):
    pids = [os.getpid()]
    if case == "not dumpable":
        assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
        pids.append(os.fork())
        if not pids[1]:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            jobs.sleep_for_ever()
    if case == "no clock":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.send(pids)
    jobs.sleep_for_ever()

def use_up_processes():
    # None is left for the guardian, which is one of them.
    for child in open("/proc/thread-self/children").read().split():
        resource.prlimit(int(child), resource.RLIMIT_NPROC, (0, 0))

def fork_in_c():
    libc = ctypes.PyDLL(None)
    pid = libc.fork()
    if pid == 0:
        libc.pause()
        os._exit(0)
    return [pid]

def main(method, case):
    rights.drop()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    context = rankspawn.spawn(work, args=(theirs, case), nprocs=2, backend="gloo", join=False,
                              start_method=method, grace_period=0.2)
    workers = [*ours.recv(), *ours.recv()]
    workers += [server._process.pid for server in forkserver._servers.values()]
    others = []
    if case == "no processes left":
        use_up_processes()
    if case == "forked in C":
        others = fork_in_c()
    print(json.dumps([workers, others]), flush=True)
    context.join()

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.parametrize("case", ["no processes left", "not dumpable", "forked in C"])
def test_workers_are_gone(tmp_path: Path, start_method: str, case: str) -> None:
    _kill_a_parent(tmp_path, start_method, case)


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount something for itself")
def test_workers_are_gone_without_the_systems_uptime(tmp_path: Path, start_method: str) -> None:
    hide = 'mount --bind /dev/null /proc/uptime && exec "$@"'
    _kill_a_parent(tmp_path, start_method, "no clock", ["unshare", "-m", "sh", "-c", hide, "sh"])


def _kill_a_parent(
    tmp_path: Path, start_method: str, case: str, inside: Sequence[str] = ()
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    parent = subprocess.Popen(
        [*inside, sys.executable, str(program), start_method, case],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
    )
    with parent:
        assert parent.stdout is not None
        workers, others = json.loads(parent.stdout.readline())
        with Watched(workers) as watched, Watched(others) as bystanders:
            parent.kill()
            assert watched.wait_gone() == []
            assert bystanders.alive() == others


STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_the_stubborn_have_the_whole_grace_period() -> None:
    mark = new_mark()
    guard = Guardian(mark, 0.4)
    environ = {**os.environ, VARIABLE: mark}
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, env=environ
    ) as stubborn:
        assert stubborn.stdout is not None
        assert stubborn.stdout.readline() == b"ready\n"
        began = time.monotonic()
        guard._lifeline.close()
        assert stubborn.wait(DEADLOCK) == -9
        assert time.monotonic() - began >= 0.4
    assert guard._process is not None
    assert guard._process.wait(DEADLOCK) == 0


def test_whoever_got_a_workers_number_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = new_mark()
    with _sleeping() as stranger, _sleeping(mark) as descendant:
        guard = Guardian(mark, 5.0)
        # The worker with this number was there before whoever has it now.
        earlier = marker.when_started(stranger.pid) - 1
        monkeypatch.setattr(guardian, "ticks_since_boot", lambda: earlier)
        guard.watch(stranger.pid)
        guard._lifeline.close()
        assert descendant.wait(DEADLOCK) == -15
        assert guard._process is not None
        assert guard._process.wait(DEADLOCK) == 0
        assert stranger.poll() is None


def test_known_workers_need_no_mark() -> None:
    with _sleeping() as worker:
        guard = Guardian(new_mark(), 5.0)
        guard.watch(worker.pid)
        guard._lifeline.close()
        assert worker.wait(DEADLOCK) == -15
        assert guard._process is not None
        assert guard._process.wait(DEADLOCK) == 0


def test_without_a_shell_it_is_python_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardian, "_SHELL", "/nonexistent/sh")
    test_known_workers_need_no_mark()


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_every_shell_becomes_python_while_the_lifeline_is_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: str
) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "sh").symlink_to(path)
    monkeypatch.setattr(guardian, "_SHELL", str(tmp_path / "sh"))
    guard = Guardian(new_mark(), 0.1)
    assert guard._process is not None
    deadline = time.monotonic() + DEADLOCK
    command = Path(f"/proc/{guard._process.pid}/cmdline")
    told = b""  # as it is for a moment in the middle of each exec
    while (not told or b"trap" in told) and time.monotonic() < deadline:
        time.sleep(0.01)
        told = command.read_bytes()
    guard.close()
    assert b"rankspawn.workers.orphans" in told
    assert b"trap" not in told


@pytest.mark.parametrize("executable", ["", "/nonexistent/python"])
def test_without_python_there_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, executable: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.delitem(sys.modules, "multiprocessing.spawn", raising=False)
    guard = Guardian(new_mark(), 5.0)
    assert "workers would outlive a killed parent" in caplog.text
    guard.watch(os.getpid())
    guard.close()


def test_looks_on_while_somebody_may_still_be_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that the parent was starting has the lifeline until it carries the mark."""
    ours, theirs = os.pipe()
    looks: list[str] = []

    def kill_marked(mark: str) -> list[int]:
        looks.append(mark)
        if len(looks) == 10:
            os.close(theirs)
        return []

    monkeypatch.setattr(orphans, "kill_marked", kill_marked)
    monkeypatch.setattr(orphans, "_LOOK_SECONDS", 0.0)
    with open(os.devnull, "rb") as table:
        orphans.end_orphans(new_mark(), 0.0, table.fileno(), ours)
    os.close(ours)
    assert len(looks) == 10


@contextmanager
def _sleeping(mark: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    environ = dict(os.environ)
    if mark is not None:
        environ[VARIABLE] = mark
    with subprocess.Popen(["sleep", "1000"], env=environ) as process:
        try:
            yield process
        finally:
            process.kill()
