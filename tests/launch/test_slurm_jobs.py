"""Whole jobs on a real Slurm: who is which rank, and what scancel leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.descendants import Watched
from tests.launch.members import SCRIPT, Job, running_job
from tests.launch.running import write_script
from tests.launch.slurm_cluster import NODES, Cluster, running_slurm, why_no_slurm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm()),
]

PER_NODE = 2
RANKS = PER_NODE * len(NODES)
# A folder for each node, as if each had its own disk.
APART = 'mkdir "$SLURMD_NODENAME" && cd "$SLURMD_NODENAME" && exec "$@"'
# Takes SIGTERM for the call to save, which needs its time, and lets nothing disturb it.
SAVING = f"""
    import os, runpy, signal, sys, time

    def save(*_):
        for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(1.0)
        open(f"saved.{{os.environ['RANK']}}", "w").close()
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    runpy.run_path({SCRIPT!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with running_slurm() as cluster:
        yield cluster


@pytest.fixture
def job(tmp_path: Path, slurm: Cluster) -> Iterator[Job]:
    with running_job(tmp_path) as job:
        yield job
    slurm.wait_until_idle()


def start(job: Job, slurm: Cluster, *flags: str, script: str = SCRIPT) -> None:
    job.start(
        *("--nproc_per_node", str(PER_NODE), "--log_dir", "log", *flags),
        inside=[*slurm.srun(f"--job-name={job.folder.name}"), "sh", "-c", APART, "sh"],
        script=[script],
        SLURM_CONF=str(slurm.configuration),
        # The nodes' names lead nowhere.
        MASTER_ADDR="127.0.0.1",
    )


def test_srun_starts_a_launcher_on_each_node(slurm: Cluster, job: Job) -> None:
    start(job, slurm)
    workers = job.workers(RANKS)
    assert [worker["RANK"] for worker in workers] == [str(rank) for rank in range(RANKS)]
    assert {worker["WORLD_SIZE"] for worker in workers} == {str(RANKS)}
    assert [worker["LOCAL_RANK"] for worker in workers] == ["0", "1"] * len(NODES)
    nodes = [Path(os.readlink(f"/proc/{worker.pid}/cwd")).name for worker in workers]
    assert nodes == [name for name in NODES for _ in range(PER_NODE)]
    for worker in workers:
        worker.say("exit 0")
    assert job.codes() == [0], job.members[0].said
    assert "taken from the Slurm job" in job.members[0].said


def test_a_failure_is_the_step_s(slurm: Cluster, job: Job) -> None:
    start(job, slurm)
    job.workers(RANKS)[RANKS - 1].say("raise out of luck")
    assert job.codes() == [1], job.members[0].said
    assert "ValueError: out of luck" in job.members[0].said


def test_scancel_leaves_time_to_save_and_nothing_else(
    slurm: Cluster, job: Job, tmp_path: Path
) -> None:
    script = write_script(tmp_path, SAVING)
    start(job, slurm, "--grace_period", "60", script=str(script))
    workers = job.workers(RANKS)
    with Watched(worker.pid for worker in workers) as processes:
        slurm.cancel(tmp_path.name)
        job.codes()
        slurm.wait_until_idle()
        assert processes.alive() == []
    saved = sorted(path.name for path in tmp_path.glob("node?/saved.*"))
    assert saved == [f"saved.{rank}" for rank in range(RANKS)], job.members[0].said
