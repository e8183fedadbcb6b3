"""SIGTERM to a program that waits for its ranks: they may save what they have before it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankspawn.handlers import handler_of
from rankspawn.terminating import TerminatedError, sigterm_passed_on
from tests import rights
from tests.jobs import DEADLOCK
from tests.launch.running import environment, write_script

PROGRAM = """
import os, signal, sys, time
import rankspawn

def say(text):
    os.write(1, (text + "\\n").encode())

def save():
    def end(*_):
        time.sleep(0.2)  # what saving takes
        say("saved")
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    say("ready")
    while True:
        time.sleep(0.1)

def die():
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    say("ready")
    while True:
        time.sleep(0.1)

def stay():
    signal.signal(signal.SIGTERM, lambda *_: say("told"))
    die_not = time.monotonic() + 600
    say("ready")
    while time.monotonic() < die_not:
        time.sleep(0.1)

def handle(*_):
    say("the program's own")
    raise SystemExit(5)

if __name__ == "__main__":
    func, method, grace = globals()[sys.argv[1]], sys.argv[2], float(sys.argv[3])
    if sys.argv[4:] == ["own"]:
        signal.signal(signal.SIGTERM, handle)
    try:
        rankspawn.spawn(func, nprocs=2, backend="cpu", start_method=method, grace_period=grace)
    finally:
        say(f"left by {type(sys.exc_info()[1]).__name__}")
"""


def start(folder: Path, *arguments: str, inside: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """The program, once both of its ranks are ready."""
    path = write_script(folder, PROGRAM)
    command = [*inside, sys.executable, str(path), *arguments]
    program = subprocess.Popen(command, env=environment(), stdout=-1, stderr=-1)
    assert program.stdout is not None
    assert [program.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
    return program


def finish(program: subprocess.Popen[bytes]) -> tuple[int, list[str], str]:
    output, errors = program.communicate(timeout=DEADLOCK)
    return program.returncode, output.decode().splitlines(), errors.decode()


def test_ranks_save_what_they_have(tmp_path: Path, start_method: str) -> None:
    program = start(tmp_path, "save", start_method, str(DEADLOCK))
    program.terminate()
    code, said, errors = finish(program)

    assert code == -signal.SIGTERM
    assert said == ["saved"] * 2
    assert errors == f"SIGTERM: passed on to 2 workers, which have {DEADLOCK:g} s to end\n"


def test_ranks_without_a_handler_die_of_it(tmp_path: Path) -> None:
    program = start(tmp_path, "die", "fork", str(DEADLOCK))
    program.terminate()
    assert finish(program)[:2] == (-signal.SIGTERM, [])


def test_a_second_one_cuts_the_grace_period_short(tmp_path: Path) -> None:
    program = start(tmp_path, "stay", "fork", str(10 * DEADLOCK))
    assert program.stdout is not None
    program.terminate()
    assert [program.stdout.readline() for _ in range(2)] == [b"told\n"] * 2
    while program.poll() is None:
        program.terminate()  # within an instant it is the same one
        try:
            program.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    code, _, errors = finish(program)
    assert code == -signal.SIGTERM
    assert "now SIGKILL" in errors


def test_a_program_with_a_handler_decides_itself(tmp_path: Path) -> None:
    program = start(tmp_path, "save", "spawn", str(DEADLOCK), "own")
    program.terminate()
    code, said, _ = finish(program)

    assert code == 5
    assert said[0] == "the program's own"
    assert said[-1] == "left by SystemExit"
    assert said.count("saved") == 2


@pytest.mark.skipif(not rights.can_mount(), reason="needs a namespace of its own: unshare, as root")
def test_as_the_first_process_of_a_container(tmp_path: Path) -> None:
    unshare = shutil.which("unshare") or "unshare"
    inside = (unshare, "--pid", "--fork", "--mount-proc")
    outside = start(tmp_path, "save", "spawn", str(DEADLOCK), inside=inside)
    (first,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
    os.kill(int(first), signal.SIGTERM)
    code, said, _ = finish(outside)

    assert code == 128 + signal.SIGTERM
    assert said == ["saved"] * 2


def test_the_handler_is_gone_after_the_wait() -> None:
    with pytest.raises(TerminatedError), sigterm_passed_on():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_that_was_set_meanwhile_stays() -> None:
    def handle(*_: object) -> None:
        pass

    try:
        with sigterm_passed_on(), sigterm_passed_on():
            signal.signal(signal.SIGTERM, handle)
        assert handler_of(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_copy_that_was_forked_meanwhile_dies_of_it() -> None:
    with sigterm_passed_on():
        child = os.fork()
        if not child:
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
