"""SIGQUIT (Ctrl and backslash) in the terminal of a program that waits for its ranks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from rankspawn.supervise.on_quit import StacksOnQuit
from tests.jobs import DEADLOCK
from tests.supervise.scripted_group import ScriptedGroup
from tests.terminal import Session

PROGRAM = """
import os, signal, sys
import rankspawn
from tests import jobs

def work():
    os.write(1, f"ready {os.getpid()}\\n".encode())
    jobs.sleep_for_ever()

if __name__ == "__main__":
    rankspawn.spawn(work, nprocs=2, backend="gloo", start_method=sys.argv[1])
"""


def wait_until_it_is_caught(pid: int) -> None:
    """From when the program waits for its ranks."""
    deadline = time.monotonic() + DEADLOCK
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/status").read_text()
        if int(status.partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGQUIT - 1) & 1:
            return
        time.sleep(0.01)


def test_ctrl_backslash_shows_all_stacks_and_goes_on(tmp_path: Path, start_method: str) -> None:
    session = Session(tmp_path, PROGRAM, start_method)
    try:
        session.pids()
        wait_until_it_is_caught(session.process.pid)
        # What comes within another one is the same.
        while session.output.count("--- rank 1 ---") < 2:
            os.write(session.master, b"\x1c")
            session.read_for(0.2)
            assert session.process.poll() is None, session.output
        session.read_until("in work", count=4)
        session.press_ctrl_c()
        assert session.finish() != 0
    finally:
        session.close()
    assert "KeyboardInterrupt" in session.output
    assert "SIGQUIT\r\n--- rank 0 ---" in session.output


def test_it_is_shown_while_somebody_waits_only(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    shown = StacksOnQuit()
    group = ScriptedGroup(2)
    try:
        shown.begin(group)
        with shown.watched():
            signal.raise_signal(signal.SIGQUIT)
        assert "--- rank 1 ---" in capsys.readouterr().err
        assert signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL
        shown.finish()
        shown()
        assert capsys.readouterr().err == ""
    finally:
        group.close()
        for file in group.files:
            file.close()
        signal.signal(signal.SIGQUIT, before)


def test_a_handler_of_the_program_stays() -> None:
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        with StacksOnQuit().watched():
            assert signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGQUIT, before)
