"""Nothing is left of a job whose driver or allocation is gone, over real servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import rankspawn
from rankspawn import NodeLostError, ProcessException
from rankspawn.cluster import Slurm, Ssh
from tests.cluster import cluster_cases as cases
from tests.cluster.sshd import HOSTS, Sshd, running_sshd, why_no_sshd
from tests.descendants import Watched
from tests.jobs import DEADLOCK
from tests.launch.rendezvous.networks import network
from tests.launch.slurm_cluster import Cluster, running_slurm, why_no_slurm

ROOT = Path(__file__).parents[2]
# Says the processes of its ranks, and waits for ever.
DRIVER = """
import sys
import rankspawn
from rankspawn.cluster import Slurm, Ssh
from tests.cluster import cluster_cases as cases

if __name__ == "__main__":
    context = rankspawn.spawn(
        cases.sleep_for_ever, nprocs=2, cluster=ENGINE, backend="gloo", join=False
    )
    print(*context.pids(), flush=True)
    context.join()
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    if why := why_no_sshd():
        pytest.skip(why)
    with running_sshd() as server:
        yield server


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    if why := why_no_slurm():
        pytest.skip(why)
    with running_slurm() as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.configuration))
        yield cluster


def _kill_the_driver(engine: str, folder: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = folder / "driver.py"
    script.write_text(DRIVER.replace("ENGINE", engine))
    with subprocess.Popen(
        [sys.executable, script], cwd=ROOT, env=environ, stdout=subprocess.PIPE
    ) as driver:
        assert driver.stdout is not None
        with Watched(map(int, driver.stdout.readline().split())) as ranks:
            assert len(ranks.alive()) == 4
            driver.kill()
            driver.wait(DEADLOCK)
            assert ranks.wait_gone() == []


def test_a_killed_driver_ends_ranks_over_ssh(sshd: Sshd, tmp_path: Path) -> None:
    engine = (
        f"Ssh({HOSTS!r}, port={sshd.port}, identity={str(sshd.identity)!r}, "
        f"options={sshd.options!r})"
    )
    _kill_the_driver(engine, tmp_path)
    sshd.wait_until_idle()


def test_a_killed_driver_ends_ranks_and_job_in_slurm(slurm: Cluster, tmp_path: Path) -> None:
    _kill_the_driver("Slurm(nodes=2)", tmp_path)
    slurm.wait_until_idle()


def test_a_broken_connection_is_an_error_that_names_the_host(sshd: Sshd) -> None:
    engine = Ssh(HOSTS, port=sshd.port, identity=sshd.identity, options=sshd.options)
    context = rankspawn.spawn(
        cases.sleep_for_ever, nprocs=1, cluster=engine, backend="gloo", join=False
    )
    with Watched(context.pids()) as ranks:
        # What serves the connection there, as a machine that is switched off.
        _server_of(sshd, context.pids()[1]).send_signal(signal.SIGKILL)
        with pytest.raises(NodeLostError, match=f"{HOSTS[1]}.*ssh said: ") as caught:
            context.join()
        assert ranks.wait_gone() == []
    assert caught.value.host == HOSTS[1]
    sshd.wait_until_idle()


def test_a_link_that_is_cut_in_silence_ends_the_ranks_beyond_it(tmp_path: Path) -> None:
    if why := why_no_sshd():
        pytest.skip(why)
    with network(2) as machines:
        host, inside = machines.address(0), machines.inside(0)
        with running_sshd([host], inside) as sshd:
            # Over there it may not listen yet: each try takes a second.
            options = {**sshd.options, "ConnectionAttempts": int(DEADLOCK)}
            engine = (
                f"Ssh({host!r}, port={sshd.port}, identity={str(sshd.identity)!r}, "
                f"options={options!r})"
            )
            script = tmp_path / "driver.py"
            script.write_text(DRIVER.replace("ENGINE", engine))
            with subprocess.Popen(
                [*machines.inside(1), sys.executable, script],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            ) as driver:
                assert driver.stdout is not None
                with Watched(map(int, driver.stdout.readline().split())) as ranks:
                    assert len(ranks.alive()) == 2
                    machines.cut(0)
                    assert ranks.wait_gone() == []
                _, said = driver.communicate(timeout=DEADLOCK)
    assert driver.returncode == 1
    assert f"NodeLostError: the node {host} was lost while its ranks ran" in said.decode()


def _server_of(sshd: Sshd, pid: int) -> psutil.Process:
    return next(
        server
        for server in sshd.connections()
        if pid in {child.pid for child in server.children(recursive=True)}
    )


def _start_a_job_that_saves(folder: Path) -> rankspawn.MultiprocessContext:
    context = rankspawn.spawn(
        cases.save_on_sigterm,
        (str(folder),),
        nprocs=1,
        cluster=Slurm(nodes=2, extra=["--job-name=rst-ends"]),
        backend="gloo",
        join=False,
        grace_period=DEADLOCK,
    )
    cases.wait_for(folder / "ready.0", folder / "ready.1")
    return context


def test_scancel_leaves_time_to_save_and_nothing_else(slurm: Cluster, tmp_path: Path) -> None:
    context = _start_a_job_that_saves(tmp_path)
    # What is sent some time before the end (--signal=USR1@60) is for the ranks alone.
    slurm.cancel("rst-ends", "--signal=USR1")
    cases.wait_for(tmp_path / "warned.0", tmp_path / "warned.1")
    slurm.cancel("rst-ends")
    assert context.join()  # they said that all was well
    slurm.wait_until_idle()
    assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"]


def _use_up_the_time(slurm: Cluster, name: str) -> None:
    # The least that a job can ask for is a minute; Slurm looks twice in a minute.
    job = slurm.run("squeue", "--noheader", f"--name={name}", "--format=%i").strip()
    slurm.run("scontrol", "update", f"jobid={job}", "endtime=now")


def _need_the_nodes(slurm: Cluster, _: str) -> None:
    slurm.run(*slurm.srun("--partition=urgent", "--exclusive", "true"))


@pytest.mark.parametrize("end", [_use_up_the_time, _need_the_nodes], ids=["time", "preemption"])
def test_what_else_ends_a_job_leaves_time_to_save(
    slurm: Cluster, tmp_path: Path, end: Callable[[Cluster, str], None]
) -> None:
    context = _start_a_job_that_saves(tmp_path)
    with ThreadPoolExecutor(1) as aside:
        ended = aside.submit(end, slurm, "rst-ends")
        # The nodes that somebody else needs are free once this has given them back.
        assert context.join()
        ended.result()
    slurm.wait_until_idle()
    assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"]


def test_ranks_that_scancel_ended_are_an_error(slurm: Cluster) -> None:
    context = rankspawn.spawn(
        cases.sleep_for_ever,
        nprocs=1,
        cluster=Slurm(nodes=2, extra=["--job-name=rst-ends"]),
        backend="gloo",
        join=False,
    )
    slurm.cancel("rst-ends")
    with pytest.raises(ProcessException, match=r"SIGTERM|was cancelled"):
        context.join()
    slurm.wait_until_idle()
