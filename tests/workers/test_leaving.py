"""How a worker leaves: what its program still held is written, and no destructor spoils the end."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankspawn import MultiprocessContext
from tests.jobs import DEADLOCK

Run = Callable[..., MultiprocessContext]

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks functions up in glibc")


def abort_among_the_destructors() -> str:
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)
    return "done"


@linux_only
def test_a_library_that_aborts_after_the_work_is_done_spoils_nothing(run: Run) -> None:
    assert run(abort_among_the_destructors, nprocs=2).results() == ["done"] * 2


_left_open: list[object] = []


def write_and_leave_open(folder: Path) -> None:
    file = (folder / os.environ["RANK"]).open("w")
    file.write("kept")
    _left_open.append(file)


def test_a_file_left_open_is_written(run: Run, tmp_path: Path, start_method: str) -> None:
    if start_method != "spawn":
        pytest.skip("as in multiprocessing, forks do not write: their buffers may be copies")

    run(write_and_leave_open, args=(tmp_path,), nprocs=2)

    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["kept"] * 2


PRINTS_FROM_C = """
import ctypes, sys
import rankspawn

def say(what):
    ctypes.CDLL(None).printf(what)

if __name__ == "__main__":
    say(b"parent\\n")
    rankspawn.spawn(say, args=(b"worker\\n",), nprocs=2, backend="gloo", start_method=sys.argv[1])
"""


@linux_only
def test_what_c_code_prints_is_written_once(tmp_path: Path, start_method: str) -> None:
    script = tmp_path / "says.py"
    script.write_text(PRINTS_FROM_C)
    # Unbuffered, C would write at once, which is not what users have.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}

    done = subprocess.run(
        [sys.executable, str(script), start_method],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLOCK,
        check=True,
    )

    assert sorted(done.stdout.split()) == ["parent", "worker", "worker"]
