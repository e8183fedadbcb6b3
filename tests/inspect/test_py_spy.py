"""Where a program is that does not know of us: asked of a real py-spy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankspawn.inspect.asking import stacks_of_programs
from tests.jobs import DEADLOCK

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        shutil.which("py-spy", path=str(Path(sys.executable).parent)) is None,
        reason="needs py-spy: pip install py-spy",
    ),
]

PROGRAM = """
def wait_here():
    print("ready", flush=True)
    input()

wait_here()
"""


def test_a_program_that_did_not_import_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        stacks = stacks_of_programs({3: program.pid}, seconds=DEADLOCK, is_called_off=lambda: False)
        program.kill()
    if "permission" in stacks[3].lower():
        pytest.skip(f"needs the right to look into a process: {stacks[3]}")
    assert 'File "<string>", line ' in stacks[3]
    assert " in wait_here\n" in stacks[3]
