"""Groups that nobody joined when the program ends: brought to their end, and told."""

from __future__ import annotations

from pathlib import Path

from tests.scripts import python, script

PROGRAM = """
import atexit, os, signal, sys, time
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

def return_late(ready):
    os.read(ready, 1)

def leave(func, **options):
    options = {"backend": "gloo", "start_method": sys.argv[2], **options}
    context = rankspawn.spawn(func, nprocs=2, join=False, **options)
    if func is ignore_sigterm:
        os.read(read, 1), os.read(read, 1)  # forked workers have the other end
    # Which lets go of the context.
    sys.exit(None if func is return_late or func is fail_beside_another else 3)

if __name__ == "__main__":
    read, write = os.pipe()
    if sys.argv[1] == "failure":
        leave(fail_beside_another)
    if sys.argv[1] == "late":
        # After the words of the wait, which come before it.
        import logging

        class Told(logging.Handler):
            def emit(self, record):
                print(record.getMessage(), file=sys.stderr)
                os.write(write, b"xx")

        logging.getLogger("rankspawn").addHandler(Told())
        atexit.register(print, "the end")
        leave(return_late, args=(read,))
    if sys.argv[1] == "timeout":
        leave(wait, timeout=0.5)
    leave(ignore_sigterm, args=(write,), daemon=True, grace_period=0.1)
"""


def leave(folder: Path, how: str, start_method: str, code: int) -> str:
    done = python(script(folder, PROGRAM), how, start_method, cwd=folder, fails=code != 0)
    assert done.returncode == code, done.stderr
    return done.stderr


def test_a_failed_group_is_torn_down_and_told(tmp_path: Path, start_method: str) -> None:
    told = leave(tmp_path, "failure", start_method, code=1)

    # It may have been waited for before.
    assert "rank 0 failed, and nobody joined the group: Traceback" in told
    assert told.endswith("ValueError: on purpose\n")


def test_its_time_is_over(tmp_path: Path) -> None:
    told = leave(tmp_path, "timeout", "fork", code=1)

    assert "the time is over, and nobody joined the group; it was stopped.\n" in told


def test_it_is_said_for_whom_the_end_waits(tmp_path: Path) -> None:
    told = leave(tmp_path, "late", "fork", code=0)

    assert told.count("\n") == 1
    assert "waits at its end for workers that nobody joined: rank 0 (pid" in told
    assert told.endswith("in return_late; Ctrl-C stops them\n")


def test_daemons_that_ignore_sigterm_are_killed(tmp_path: Path) -> None:
    told = leave(tmp_path, "daemons", "fork", code=3)

    assert "did not end in time; now SIGKILL" in told
    assert "failed" not in told
