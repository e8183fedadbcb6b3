"""Jobs over several machines, as network namespaces: start, kill, cut, come back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.members import SHORT, Job, Member, Worker, running_job
from tests.launch.rendezvous.networks import Network, network

pytestmark = pytest.mark.slow

PORT = 6170
ELASTIC = ("--nnodes", "2:3", "--max_restart", "99", *SHORT)


@pytest.fixture(scope="module")
def machines() -> Iterator[Network]:
    with network(3) as built:
        yield built


class Cluster:
    """One node on each machine; the master is on machine 0."""

    def __init__(self, machines: Network, job: Job) -> None:
        self.machines = machines
        self.job = job
        self.master = f"{machines.address(0)}:{PORT}"

    def start(self, machine: int, *flags: str) -> Member:
        return self.job.start(
            *("--master", self.master, *flags), inside=self.machines.inside(machine)
        )

    def start_all(self, *flags: str) -> list[Worker]:
        for machine in range(self.machines.count):
            self.start(machine, *flags)
        return self.job.workers(self.machines.count)

    @property
    def members(self) -> list[Member]:
        return self.job.members


@pytest.fixture
def cluster(machines: Network, tmp_path: Path) -> Iterator[Cluster]:
    with running_job(tmp_path) as job:
        yield Cluster(machines, job)
    for machine in range(machines.count):
        machines.mend(machine)


def machine_of(worker: Worker) -> str:
    return worker["PADDLE_CURRENT_ENDPOINT"].rpartition(":")[0]


def finish(workers: list[Worker]) -> None:
    for worker in workers:
        worker.say("exit 0")


def test_the_same_command_on_every_machine(cluster: Cluster) -> None:
    workers = cluster.start_all("--nnodes", "3")
    assert workers[0]["MASTER_ADDR"] == cluster.machines.address(0)
    # Each is known by the address at which the others reach it.
    found = {machine_of(worker) for worker in workers}
    assert found == {cluster.machines.address(index) for index in range(3)}
    assert len({worker["PADDLE_TRAINER_ENDPOINTS"] for worker in workers}) == 1
    finish(workers)
    assert cluster.job.codes() == [0, 0, 0]


def test_machines_whose_own_names_mean_loopback(cluster: Cluster, tmp_path: Path) -> None:
    """As on Debian, where /etc/hosts has a machine's own name at 127.0.1.1."""
    names = ["first", "second", "third"]
    for machine in range(3):
        places = [cluster.machines.address(place) for place in range(3)]
        places[machine] = "127.0.1.1"
        hosts = tmp_path / f"hosts{machine}"
        lines = (f"{place} {name}\n" for place, name in zip(places, names, strict=True))
        hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
        mount = f'mount --bind {hosts} /etc/hosts && exec "$@"'
        inside = [*cluster.machines.inside(machine), "sh", "-c", mount, "sh"]
        cluster.job.start("--ips", ",".join(names), inside=inside)
    workers = cluster.job.workers(3)
    assert [worker["PADDLE_CURRENT_ENDPOINT"] for worker in workers] == [f"{n}:6070" for n in names]
    finish(workers)
    assert cluster.job.codes() == [0, 0, 0]


def test_a_failure_is_read_on_every_machine(cluster: Cluster) -> None:
    cluster.start_all("--nnodes", "3")[1].say("raise out of luck")
    assert cluster.job.codes() == [1, 1, 1]
    for member in cluster.members:
        assert member.said.endswith("ValueError: out of luck\n")


def test_a_killed_node_ends_the_job_on_every_machine(cluster: Cluster) -> None:
    workers = cluster.start_all("--nnodes", "3", *SHORT)
    cluster.members[2].send(signal.SIGKILL)
    for member in cluster.members[:2]:
        assert member.wait() == 1
        assert f"({cluster.machines.address(2)}, " in member.said
    for worker in workers:
        worker.wait_gone()


def test_a_cut_link_ends_the_job_on_both_sides(cluster: Cluster) -> None:
    workers = cluster.start_all("--nnodes", "3", *SHORT)
    cluster.machines.cut(1)
    assert cluster.job.codes() == [1, 1, 1]
    for index in (0, 2):
        said = cluster.members[index].said
        assert f"({cluster.machines.address(1)}, " in said
        assert "vanished" in said
    assert f"nothing was heard from {cluster.master}" in cluster.members[1].said
    for worker in workers:
        worker.wait_gone()


def test_a_job_of_fixed_size_outlasts_a_cut_that_is_mended(cluster: Cluster) -> None:
    """Nobody could go on without a lost machine, so nobody has to be ended in time for that."""
    workers = cluster.start_all("--nnodes", "3", "--node_timeout", "20")
    for machine in (0, 2):
        cluster.machines.cut(machine)
    # Longer than the time after which an elastic job's node would have ended its workers.
    time.sleep(13)
    assert not any(worker.is_gone() for worker in workers)
    for machine in (0, 2):
        cluster.machines.mend(machine)
    finish(workers)
    assert cluster.job.codes() == [0, 0, 0]


def test_an_elastic_job_goes_on_without_a_machine_and_takes_it_back(cluster: Cluster) -> None:
    first = cluster.start_all(*ELASTIC)
    cluster.machines.cut(2)
    second = cluster.job.next_generation(first, 2)
    cluster.machines.mend(2)
    third = cluster.job.next_generation(second, 3)
    finish(third)
    assert cluster.job.codes() == [0, 0, 0]


def test_an_elastic_job_survives_a_cut_off_master(cluster: Cluster) -> None:
    first = cluster.start_all(*ELASTIC)
    cluster.machines.cut(0)
    # On neither side can anybody be sure of the others.
    for member in cluster.members[1:]:
        member.wait_for("this node lost contact with the others")
    cluster.machines.mend(0)
    finish(cluster.job.next_generation(first, 3))
    assert cluster.job.codes() == [0, 0, 0]


def test_loopback_is_refused_where_it_cannot_be_reached(cluster: Cluster) -> None:
    cluster.start(0, "--nnodes", "2", "--host", "127.0.0.1")
    cluster.start(1, "--nnodes", "2")
    assert cluster.job.codes() == [1, 1]
    for member in cluster.members:
        assert "gives 127.0.0.1 as its address, which means another machine" in member.said
        assert "--host" in member.said


def test_the_command_for_the_others_has_an_address_that_they_reach(cluster: Cluster) -> None:
    first = cluster.job.start(
        *("--nnodes", "2", "--host", cluster.machines.address(0)),
        inside=cluster.machines.inside(0),
    )
    first.wait_for(f"--master {cluster.machines.address(0)}:")
    port = first.said.partition(f"--master {cluster.machines.address(0)}:")[2].split()[0]
    cluster.job.start(
        *("--nnodes", "2", "--master", f"{cluster.machines.address(0)}:{port}"),
        inside=cluster.machines.inside(1),
    )
    finish(cluster.job.workers(2))
    assert cluster.job.codes() == [0, 0]
