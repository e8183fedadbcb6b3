"""A parent that dies without a chance to clean up: its workers and theirs must go, too."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankspawn.portable import is_forced
from tests.descendants import Watched
from tests.jobs import DEADLOCK

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import json, os, signal, sys, threading
import multiprocessing
import rankspawn
from tests import jobs
from tests.descendants import start_descendants

def work(ready):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.send({**start_descendants(), "self": os.getpid()})
    jobs.sleep_for_ever()

def main(method, how):
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    context = rankspawn.spawn(work, args=(theirs,), nprocs=2, backend="gloo", join=False,
                              start_method=method, grace_period=0.3, env={"PATH": os.defpath})
    pids = [pid for _ in range(2) for pid in ours.recv().values()]
    if method == "forkserver":
        from rankspawn.workers.forkserver import _servers
        pids += [server._process.pid for server in _servers.values()]
    print(json.dumps(pids), flush=True)
    if how == "os._exit":
        sys.stdin.readline()
        os._exit(3)
    context.join()

def from_a_thread(*arguments):
    # The thread that starts the workers ends before the parent does.
    started = threading.Event()
    thread = threading.Thread(target=main, args=arguments, daemon=True)
    thread.start()
    thread.join()

if __name__ == "__main__":
    # Not what a shell or nohup left behind for the tests themselves.
    action = signal.SIG_IGN if sys.argv[3] == "ignored" else signal.SIG_DFL
    signal.signal(signal.SIGINT, action)
    signal.signal(signal.SIGHUP, action)
    if sys.argv[3] == "no PATH":
        os.environ["PATH"] = "/nonexistent"
    run = from_a_thread if sys.argv[3] == "thread" else main
    run(*sys.argv[1:3])
"""


@pytest.mark.parametrize("surroundings", ["plain", "thread", "ignored", "no PATH"])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGHUP", "os._exit"])
def test_all_are_gone(tmp_path: Path, start_method: str, how: str, surroundings: str) -> None:
    if how == "SIGHUP" and surroundings == "ignored":
        pytest.skip("that is what nohup is for: the parent lives on")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    parent = subprocess.Popen(
        [sys.executable, str(program), start_method, how, surroundings],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        with Watched(json.loads(parent.stdout.readline())) as processes:
            if how == "os._exit":
                parent.stdin.write("\n")
                parent.stdin.flush()
            else:
                parent.send_signal(signal.Signals[how])
            parent.wait(DEADLOCK)
            assert processes.wait_gone() == []


def test_a_fork_server_that_is_still_importing_is_gone(tmp_path: Path) -> None:
    (tmp_path / "never_loaded.py").write_text(
        "import ctypes, os\n"
        "print(os.getpid(), flush=True)\n"
        "ctypes.PyDLL(None).sleep(10000)  # keeps the GIL\n"
    )
    program = tmp_path / "program.py"
    program.write_text(
        "import rankspawn\n"
        "from tests import jobs\n"
        "if __name__ == '__main__':\n"
        "    rankspawn.spawn(jobs.sleep_for_ever, nprocs=2, backend='gloo',\n"
        "                    start_method='forkserver', preload=['never_loaded'])\n"
    )
    parent = subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
    )
    with parent:
        assert parent.stdout is not None
        with Watched([int(parent.stdout.readline())]) as server:
            parent.kill()
            assert server.wait_gone() == []


@pytest.mark.parametrize("when", range(0, 60, 12))
def test_death_in_the_middle_of_the_start(tmp_path: Path, start_method: str, when: int) -> None:
    """Killed so many milliseconds after it began to start: nobody with its mark is left."""
    program = tmp_path / "program.py"
    program.write_text(
        "import rankspawn, sys, uuid\n"
        "from rankspawn.workers import marker, assembling\n"
        "from tests import jobs\n"
        "if __name__ == '__main__':\n"
        "    assembling.new_mark = lambda: sys.argv[2]\n"
        "    print('now', flush=True)\n"
        "    rankspawn.spawn(jobs.sleep_for_ever, nprocs=4, backend='gloo', grace_period=0.2,\n"
        "                    start_method=sys.argv[1])\n"
    )
    from rankspawn.workers.marker import find_marked, new_mark

    mark = new_mark()
    # A file that had not lost its name yet may stay there: see docs/reference.md.
    elsewhere = {"TMPDIR": str(tmp_path)} if is_forced() else {}
    parent = subprocess.Popen(
        [sys.executable, str(program), start_method, mark],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", **elsewhere},
    )
    with parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        # Not a wait for anything: the moment of the kill is what the test varies.
        signal.sigtimedwait([], when / 1000)
        parent.kill()
        parent.wait()
        while left := list(find_marked(mark)):
            with Watched(left) as processes:
                assert processes.wait_gone() == []
        # One that was not marked yet has the parent's output; so has its fork server.
        ready, _, _ = select.select([parent.stdout], [], [], DEADLOCK)
        assert ready, "somebody is left"
        assert parent.stdout.read() == b""
