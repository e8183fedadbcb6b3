"""A parent that starts workers as root and goes on as another user, who may not signal them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.descendants import Watched
from tests.jobs import DEADLOCK

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import multiprocessing, sys, time
import rankspawn
from tests.rights import drop

def fail_when_told(told):
    if rankspawn.get_rank() == 1:
        told.get()
        raise ValueError("its own")
    time.sleep(1000)

if __name__ == "__main__":
    told = multiprocessing.get_context("spawn").SimpleQueue()
    options = dict(backend="gloo", start_method=sys.argv[1], grace_period=0.2, join=False)
    context = rankspawn.spawn(fail_when_told, (told,), 2, **options)
    print(context.pids()[0], flush=True)
    sys.stdin.readline()
    drop()
    told.put(None)
    try:
        context.join()
    except rankspawn.ProcessRaisedException as error:
        print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up rights over its workers")
@pytest.mark.parametrize("portable", ["0", "1"])
def test_the_ranks_own_error_is_raised_and_says_who_was_not_signalled(
    portable: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    with subprocess.Popen(
        [sys.executable, str(script), "fork"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environ, "RANKSPAWN_PORTABLE": portable},
    ) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        with Watched([pid]) as watched:
            told, _ = program.communicate("\n", timeout=DEADLOCK)
            left = watched.wait_gone()

    assert program.returncode == 0, told
    assert f"rank 0 (pid {pid}) could not be signalled" in told
    assert "ValueError: its own" in told
    # The guardian still has the rights.
    assert not left
