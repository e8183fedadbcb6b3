"""Groups that nobody joined when the program ends: brought to their end, and told."""

from __future__ import annotations

from pathlib import Path

from tests.scripts import python, script

PROGRAM = """
import os, signal, sys, time
import rankspawn

def wait():
    while True:
        time.sleep(0.2)

def ignore_sigterm(ready):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(ready, b"x")
    wait()

def fail_beside_another():
    if rankspawn.get_rank() == 0:
        raise ValueError("on purpose")
    wait()

def leave(func, **options):
    options = {"backend": "gloo", "start_method": sys.argv[2], **options}
    context = rankspawn.spawn(func, nprocs=2, join=False, **options)
    if func is ignore_sigterm:
        os.read(read, 1), os.read(read, 1)  # forked workers have the other end
    sys.exit(3)  # which lets go of the context

if __name__ == "__main__":
    read, write = os.pipe()
    if sys.argv[1] == "failure":
        leave(fail_beside_another)
    if sys.argv[1] == "timeout":
        leave(wait, timeout=0.5)
    leave(ignore_sigterm, args=(write,), daemon=True, grace_period=0.1)
"""


def leave(folder: Path, how: str, start_method: str) -> str:
    done = python(script(folder, PROGRAM), how, start_method, cwd=folder, fails=True)
    assert done.returncode == 3, done.stderr
    return done.stderr


def test_a_failed_group_is_torn_down_and_told(tmp_path: Path, start_method: str) -> None:
    told = leave(tmp_path, "failure", start_method)

    assert told.startswith("rank 0 failed, and nobody joined the group: Traceback")
    assert told.endswith("ValueError: on purpose\n")


def test_its_time_is_over(tmp_path: Path) -> None:
    told = leave(tmp_path, "timeout", "fork")

    assert told.startswith("the time is over, and nobody joined the group; it was stopped.\n")


def test_daemons_that_ignore_sigterm_are_killed(tmp_path: Path) -> None:
    told = leave(tmp_path, "daemons", "fork")

    assert "did not end in time; now SIGKILL" in told
    assert "failed" not in told
