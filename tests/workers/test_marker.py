"""The guardian alone, with the end of its lifeline for the death of a parent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankspawn.workers.marker import VARIABLE, Guardian, new_mark
from tests.jobs import DEADLOCK

STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_the_grace_period_is_as_long_however_long_a_look_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    slow = tmp_path / "grep"
    slow.write_text(f'#!/bin/sh\necho >> {calls}\nsleep 0.1\nexec {shutil.which("grep")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    mark = new_mark()
    guardian = Guardian(mark, 1.0)
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN],
        stdout=subprocess.PIPE,
        env={**os.environ, VARIABLE: mark},
    ) as stubborn:
        assert stubborn.stdout is not None
        assert stubborn.stdout.readline() == b"ready\n"
        guardian._lifeline.close()
        assert stubborn.wait(DEADLOCK) == -9
    assert guardian._process is not None
    assert guardian._process.wait(DEADLOCK) == 0
    # A look every tenth of a second would be 20 of them for the grace period alone.
    assert len(calls.read_text().splitlines()) < 30
