"""Programs of rankrun that answer who asks where they are, and processes that do not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rankspawn.inspect.asking import ask_programs
from rankspawn.workers.board import STEPS_VARIABLE
from rankspawn.workers.program_stacks import find_stacks
from tests.jobs import DEADLOCK

IMPORT = "import rankspawn"
IN_A_THREAD = """
import threading
thread = threading.Thread(target=__import__, args=("rankspawn",))
thread.start()
thread.join()
"""
# Only while it is imported: at the end of a program somebody else may write to a file.
WITHOUT_ROOM = """
import resource
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
import rankspawn
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
"""
CLOSED = """
import os, rankspawn
os.closerange(3, 1024)
"""
WAIT = """
def wait_here():
    print("ready", flush=True)
    input()

wait_here()
"""


@pytest.mark.parametrize(
    ("program", "launcher", "answers"),
    [
        (IMPORT, os.getpid(), True),
        ("", os.getpid(), False),
        (IMPORT, os.getppid(), False),
        (IN_A_THREAD, os.getpid(), False),
        (WITHOUT_ROOM, os.getpid(), False),
        (CLOSED, os.getpid(), False),
    ],
    ids=["imports", "does not", "is no rank", "in a thread", "has no room", "has closed it"],
)
def test_who_answers(
    program: str, launcher: int, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = sys.executable
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("rankspawn.inspect.asking.sys.executable", "/nowhere/python")
    with subprocess.Popen(
        [python, "-c", program + WAIT],
        env=os.environ | {STEPS_VARIABLE: f"{launcher}:3:0:0:0:0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        found = find_stacks(process.pid)
        stacks = ask_programs({3: process.pid}, seconds=DEADLOCK)
        process.communicate(b"\n", timeout=DEADLOCK)
    assert process.returncode == 0
    assert (found is not None) == answers
    assert (" in wait_here\n" in stacks[3]) == answers
    assert ("py-spy" in stacks[3]) != answers


def test_a_program_that_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    assert find_stacks(process.pid) is None
