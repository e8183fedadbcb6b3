"""Detached jobs in a real Slurm: the driver goes away, and another one comes back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankspawn import ProcessException, ProcessRaisedException
from rankspawn.cluster import attach
from rankspawn.cluster.kept_jobs import home, load
from tests.cluster import cluster_cases as cases
from tests.jobs import DEADLOCK
from tests.launch.slurm_cluster import Cluster, running_slurm, why_no_slurm

ROOT = Path(__file__).parents[2]
# Says the number of its job, and ends as it is told to.
DRIVER = """
import os, signal, sys
import rankspawn
from rankspawn.cluster import Slurm
from tests.cluster import cluster_cases as cases

if __name__ == "__main__":
    folder, how, what = sys.argv[1:]
    context = rankspawn.spawn(
        getattr(cases, what), (folder,), nprocs=1, backend="gloo", join=False,
        cluster=Slurm(nodes=2, detach=True, extra=[f"--output={folder}/output"]),
    )
    print(context.job_id, *context.pids(), flush=True)
    if how != "exit":
        os.kill(os.getpid(), int(how))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm()),
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with running_slurm() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _environ(slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLURM_CONF", str(slurm.configuration))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield
    slurm.wait_until_idle()
    assert list(home().iterdir()) == []


def _drive(folder: Path, how: str, what: str = "wait_for_word") -> tuple[str, list[int]]:
    """Run a driver to its end; the number of its job, and the processes of its ranks."""
    script = folder / "driver.py"
    script.write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, script, folder, how, what],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        timeout=DEADLOCK,
        check=False,
    )
    assert done.returncode == (0 if how == "exit" else -int(how))
    job, *pids = done.stdout.decode().split()
    return job, [int(pid) for pid in pids]


def _wait_until_pending(slurm: Cluster, job: str) -> None:
    deadline = time.monotonic() + DEADLOCK
    while "PENDING" not in slurm.run("squeue", "--noheader", f"--jobs={job}", "--format=%T"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_driver_is_killed_and_another_one_has_the_results(tmp_path: Path) -> None:
    job, pids = _drive(tmp_path, "9")
    context = attach(job)
    assert context.pids() == pids
    assert [process.host for process in context.processes] == ["node0", "node1"]
    (tmp_path / "word").write_text("return")
    assert context.results() == [(0, 0), (1, 0)]
    assert (tmp_path / "output").read_text().splitlines() == ["it is return"] * 2


def test_a_failure_is_raised_by_a_driver_that_comes_after_the_end(
    slurm: Cluster, tmp_path: Path
) -> None:
    job, _ = _drive(tmp_path, "15")
    (tmp_path / "word").write_text("raise")
    slurm.wait_until_idle()
    with pytest.raises(ProcessRaisedException, match="on purpose") as caught:
        attach(int(job)).join()
    assert isinstance(caught.value.exception, ValueError)


def test_one_that_comes_back_ends_the_job(tmp_path: Path) -> None:
    job, _ = _drive(tmp_path, "exit")
    context = attach(job)
    context.terminate()
    assert context.exitcodes() == [-15, -15]


def test_no_command_line_and_no_script_has_the_key(slurm: Cluster, tmp_path: Path) -> None:
    job, _ = _drive(tmp_path, "9")
    key = load(job).key.hex()
    context = attach(job)
    told = [slurm.run("scontrol", "write", "batch_script", job, "-")]
    told += [slurm.run("scontrol", "show", "--detail", "job", job), *slurm.left()]
    assert any("rankspawn.cluster.keeper" in text for text in told[2:])
    assert not any(key in text for text in told)
    (tmp_path / "word").write_text("return")
    assert context.join()


def test_scancel_is_named(slurm: Cluster, tmp_path: Path) -> None:
    job, _ = _drive(tmp_path, "9")
    slurm.run("scancel", job)
    slurm.wait_until_idle()
    with pytest.raises(ProcessException, match=r"SIGTERM"):
        attach(job).join()
    assert os.listdir(home()) == []


def test_a_job_that_went_back_to_the_queue_begins_again(slurm: Cluster, tmp_path: Path) -> None:
    job, _ = _drive(tmp_path, "9")
    slurm.run("scontrol", "requeue", job)
    _wait_until_pending(slurm, job)
    (tmp_path / "word").write_text("return")
    slurm.run("scontrol", "update", f"jobid={job}", "starttime=now")
    assert attach(job).results() == [(0, 1), (1, 1)]


def test_ranks_of_a_job_that_goes_back_to_the_queue_have_time_to_save(
    slurm: Cluster, tmp_path: Path
) -> None:
    job, _ = _drive(tmp_path, "9", "save_on_sigterm")
    ready = [tmp_path / "ready.0", tmp_path / "ready.1"]
    cases.wait_for(*ready)
    slurm.run("scontrol", "requeue", job)
    cases.wait_for(tmp_path / "saved.0", tmp_path / "saved.1")
    for path in ready:
        path.unlink()
    _wait_until_pending(slurm, job)
    slurm.run("scontrol", "update", f"jobid={job}", "starttime=now")
    cases.wait_for(*ready)
    attach(job).terminate()
