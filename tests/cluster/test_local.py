"""Agents of this machine: what becomes of them and their ranks, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import rankspawn
from rankspawn import MultiprocessContext, NodeLostError
from rankspawn.cluster import Local
from rankspawn.cluster.local import _is_fork_good
from tests import scripts
from tests.cluster import cluster_cases as cases
from tests.descendants import Watched
from tests.jobs import DEADLOCK

PROGRAM = """
import json, os, sys
import rankspawn
from rankspawn.cluster import Local
from rankspawn.cluster.local import _is_fork_good
from tests.cluster import cluster_cases as cases

class Watched(Local):
    def start(self, request):
        started.extend(super().start(request))
        return started

started = []

if __name__ == "__main__":
    context = rankspawn.spawn(cases.sleep_for_ever, nprocs=1, cluster=Watched(nodes=2),
                              backend="gloo", join=False, daemon="daemon" in sys.argv)
    agents = [channel._process.pid for channel in started]
    if "join" in sys.argv:
        with context:
            print(json.dumps(context.pids() + agents), flush=True)
            context.join()
    print(json.dumps(context.pids() + agents), flush=True)
    sys.stdin.readline()
"""


def start(folder: Path, *how: str) -> tuple[subprocess.Popen[str], list[int]]:
    """The program, with the ids of its ranks and agents."""
    name = scripts.script(folder, PROGRAM)
    root = str(Path(__file__).parent.parent.parent)
    program = subprocess.Popen(
        [sys.executable, name, *how],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{scripts.SOURCE}{os.pathsep}{root}"},
    )
    assert program.stdout is not None
    pids: list[int] = json.loads(program.stdout.readline())
    return program, pids


def test_a_driver_that_is_killed_takes_all_along(tmp_path: Path) -> None:
    program, pids = start(tmp_path, "join")
    with program, Watched(pids) as watched:
        program.kill()
        assert watched.wait_gone() == []


def test_ctrl_c_is_one_keyboard_interrupt(tmp_path: Path) -> None:
    program, pids = start(tmp_path, "join")
    with program, Watched(pids) as watched:
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=DEADLOCK)
        assert watched.wait_gone() == []

    assert program.returncode == -signal.SIGINT
    assert errors.count("KeyboardInterrupt") == 1


def test_daemonic_ranks_that_nobody_joins_end_with_the_program(tmp_path: Path) -> None:
    program, pids = start(tmp_path, "daemon")
    with program, Watched(pids) as watched:
        _, errors = program.communicate("end\n", timeout=DEADLOCK)
        assert watched.wait_gone() == []

    assert (program.returncode, errors) == (0, "")


def test_an_agent_that_is_asked_to_end_stops_its_ranks_and_says_so() -> None:
    context: MultiprocessContext = rankspawn.spawn(
        cases.end_the_agent, nprocs=1, cluster=Local(nodes=2), backend="gloo", join=False
    )
    with pytest.raises(NodeLostError, match="its agent was asked to end by SIGTERM") as caught:
        context.join()

    assert caught.value.host == "local1"


@pytest.mark.slow
def test_many_nodes() -> None:
    context: MultiprocessContext = rankspawn.spawn(
        cases.describe, nprocs=2, cluster=Local(nodes=50), backend="gloo"
    )

    assert [told["rank"] for told in context.results()] == list(range(100))


def test_how_many_is_checked_when_it_is_made() -> None:
    assert repr(Local(nodes=3)) == "Local(nodes=3)"
    with pytest.raises(ValueError, match="nodes=0 is out of range"):
        Local(nodes=0)


def test_agents_are_fresh_interpreters_where_a_copy_is_not_safe() -> None:
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        assert not _is_fork_good()
        context: MultiprocessContext = rankspawn.spawn(
            cases.describe, nprocs=1, cluster="local", backend="gloo"
        )
    finally:
        is_over.set()
        thread.join()

    assert [told["rank"] for told in context.results()] == [0, 1]
