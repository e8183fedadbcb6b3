"""Whole jobs over a real etcd: one server, and a cluster that loses a member in the middle."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankspawn.launch.rendezvous.store import Store, StoreUnreachableError
from tests.launch.members import SHORT, Job, Worker, running_job
from tests.launch.rendezvous.etcds import Etcd, running_etcd, why_no_etcd

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_etcd()), reason=why_no_etcd()),
]


@pytest.fixture(scope="module", autouse=True)
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd"), 1) as etcd:
        yield etcd


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with running_job(tmp_path) as job:
        yield job


def left_in(etcd: Etcd, job_id: str) -> list[str]:
    from rankspawn.launch.rendezvous.etcd import EtcdStore

    store = EtcdStore(etcd.endpoints, answer_within=10.0)
    try:
        return [entry.key for entry in store.prefix(f"rankspawn/{job_id}/").entries]
    finally:
        store.close()


def finish(workers: list[Worker]) -> None:
    for worker in workers:
        worker.say("exit 0")


def test_a_job_and_the_same_again_leave_nothing_behind(etcd: Etcd, job: Job) -> None:
    for _ in range(2):
        members = [job.start("--nnodes", "3", "--master", etcd.master) for _ in range(3)]
        workers = job.workers(3)
        assert [worker["GROUP_RANK"] for worker in workers] == ["0", "1", "2"]
        finish(workers)
        assert [member.wait() for member in members] == [0, 0, 0]
        assert left_in(etcd, "default") == []


def test_a_failure_is_read_on_every_node(etcd: Etcd, job: Job) -> None:
    for _ in range(2):
        job.start("--nnodes", "2", "--master", etcd.master, "--job_id", "failing")
    job.workers(2)[1].say("raise on purpose")
    assert job.codes() == [1, 1]
    for member in job.members:
        assert member.said.endswith("ValueError: on purpose\n")


def test_jobs_with_different_ids_do_not_meet(etcd: Etcd, job: Job) -> None:
    for name in ("x", "y"):
        for _ in range(2):
            job.start("--nnodes", "2", "--master", etcd.master, "--job_id", name)
    workers = job.workers(4)
    assert len({worker["TORCHELASTIC_RUN_ID"] for worker in workers}) == 2
    assert {worker["WORLD_SIZE"] for worker in workers} == {"2"}
    finish(workers)
    assert job.codes() == [0, 0, 0, 0]


def test_any_node_can_die_and_the_rest_goes_on(etcd: Etcd, job: Job) -> None:
    """There is no master's node: also the one that leads can be lost."""
    flags = ("--nnodes", "1:3", "--master", etcd.master, "--job_id", "deaths")
    members = [job.start(*flags, "--max_restart", "99", *SHORT) for _ in range(3)]
    workers = job.workers(3)
    for left in (2, 1):
        members.pop(0).send(signal.SIGKILL)
        workers = job.next_generation(workers, left)
    finish(workers)
    assert members[0].wait() == 0


def test_a_job_whose_nodes_all_died_can_be_started_again(etcd: Etcd, job: Job) -> None:
    flags = ("--nnodes", "2", "--master", etcd.master, "--job_id", "again", *SHORT)
    dead = [job.start(*flags) for _ in range(2)]
    old = job.workers(2)
    for member in dead:
        member.send(signal.SIGKILL)
    # At once, while etcd still counts the dead ones as alive.
    members = [job.start(*flags) for _ in range(2)]
    new = job.workers(2)
    assert all(worker.is_gone() for worker in old), "two generations at once"
    assert old[0]["TORCHELASTIC_RUN_ID"] != new[0]["TORCHELASTIC_RUN_ID"]
    finish(new)
    assert [member.wait() for member in members] == [0, 0]


def test_a_cluster_that_loses_a_member_during_a_job(
    job: Job, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running_etcd(tmp_path_factory.mktemp("cluster"), 3) as cluster:
        flags = ("--nnodes", "2:3", "--master", cluster.master, "--elastic_timeout", "1")
        for _ in range(2):
            job.start(*flags, "--node_timeout", "12")
        old = job.workers(2)
        # The one that all of them talk to, being the first of the list.
        cluster.kill(0)
        # The job does not notice; and a node can still join it.
        job.start(*flags, "--node_timeout", "12")
        finish(job.next_generation(old, 3))
        assert job.codes() == [0, 0, 0]


def test_a_cluster_without_a_majority_cannot_be_reached(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from rankspawn.launch.rendezvous.etcd import EtcdStore

    with running_etcd(tmp_path_factory.mktemp("minority"), 3) as cluster:
        store = EtcdStore(cluster.endpoints, answer_within=2.0)
        revision = store.put("a", "1")
        cluster.kill(0)
        cluster.kill(2)
        with pytest.raises(StoreUnreachableError):
            store.put("a", "2")
        with pytest.raises(StoreUnreachableError):
            watch_for_long(store, revision)
        store.close()


def watch_for_long(store: Store, revision: int) -> None:
    """A member says that it has lost the others only some time after it has."""
    for _ in range(20):
        store.changes("a", revision, wait=1.0)
