"""torch's own store beside the ranks, as under torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import rankspawn
from tests.interop import store_script  # only where torch is installed
from tests.launch.running import environment, rankrun

pytestmark = pytest.mark.interop

DEADLOCK = 180.0


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_rank_0_may_end_first(method: str) -> None:
    context = rankspawn.spawn(
        store_script.outlive_rank_0,
        nprocs=3,
        backend="gloo",
        agent_store=True,
        timeout=DEADLOCK,
        start_method="spawn" if method == "spawn" else "forkserver",
    )
    assert context.results() == ["first", "still there", "still there"]


def test_no_process_group_is_needed() -> None:
    context = rankspawn.spawn(
        store_script.meet_without_group,
        nprocs=2,
        backend="gloo",
        agent_store=True,
        timeout=DEADLOCK,
    )
    assert sorted(context.results()) == [1, 2]


def test_as_under_torchrun(tmp_path: Path) -> None:
    script = str(Path(store_script.__file__))
    theirs = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", script],
        cwd=tmp_path,
        env=environment(OMP_NUM_THREADS="1", TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    assert theirs.returncode == 0, theirs.stderr
    flags = ("--nproc_per_node=2", "--device_type=cpu", "--agent_store")
    ours = rankrun(tmp_path, *flags, script, OMP_NUM_THREADS="1")
    assert ours.code == 0, ours.errors
    logs = ours.log("workerlog.0") + ours.log("workerlog.1")
    assert sorted(logs.splitlines()) == sorted(theirs.stdout.splitlines())
