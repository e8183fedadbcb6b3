"""Whole runs of pytest whose tests have ranks."""

from __future__ import annotations

import pytest

# Most of these are about what the parent makes of its ranks, for which a fork is quick.
FORK = "import os, time, pytest\npytestmark = pytest.mark.ranks(2, start_method='fork')\n"
# Ranks that wait for each other, so that nothing depends on who is quick.
HELPERS = """
import os, time

def say_pid(folder, rank):
    (folder / f"{rank}.new").write_text(str(os.getpid()))
    (folder / f"{rank}.new").rename(folder / str(rank))

def wait_for(folder, rank, *, has_ended):
    while not (folder / str(rank)).exists():
        time.sleep(0.01)
    pid = (folder / str(rank)).read_text()
    while has_ended and runs(pid):
        time.sleep(0.01)

def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return ") Z " not in stat.read()
    except OSError:
        return False
"""


def run(pytester: pytest.Pytester, source: str, *args: str) -> pytest.RunResult:
    """The outcome of a file with tests of two forked ranks each."""
    pytester.makepyfile(test_it=FORK + source)
    return pytester.runpytest_inprocess("-p", "no:randomly", *args)
