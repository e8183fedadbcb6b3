"""Parameter servers and heter workers on several nodes, over loopback."""

from __future__ import annotations

import signal

import pytest

from tests.launch.members import SHORT, Job, Worker
from tests.ports import free_port


def by_role(workers: list[Worker]) -> dict[str, list[Worker]]:
    roles: dict[str, list[Worker]] = {}
    for worker in workers:
        roles.setdefault(worker["TRAINING_ROLE"], []).append(worker)
    return roles


class TestParameterServers:
    def test_by_counts(self, job: Job, master: str) -> None:
        flags = ("--nnodes", "2", "--master", master, "--server_num", "1", "--trainer_num", "1")
        for _ in range(2):
            job.start(*flags)
        roles = by_role(job.workers(4))
        trainers, servers = roles["TRAINER"], roles["PSERVER"]
        assert sorted(worker["PADDLE_TRAINER_ID"] for worker in trainers) == ["0", "1"]
        for worker in (*trainers, *servers):
            assert len(worker["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")) == 2
            assert len(worker["PADDLE_TRAINER_ENDPOINTS"].split(",")) == 2
            assert worker["PADDLE_NNODES"] == "2"
        # The servers of a node whose trainers are done serve those of the others.
        trainers[0].say("exit 0")
        trainers[0].wait_gone()
        assert not any(worker.is_gone() for worker in servers)
        trainers[1].say("exit 0")
        assert job.codes() == [0, 0]
        for worker in servers:
            worker.wait_gone()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "other", [["--nproc_per_node", "2"], ["--server_num", "2", "--trainer_num", "1"]]
    )
    def test_a_node_with_other_roles_is_refused(
        self, job: Job, master: str, other: list[str]
    ) -> None:
        """With as many processes, so that nothing else tells."""
        flags = ("--nnodes", "2", "--master", master)
        first = job.start(*flags, "--server_num", "1", "--trainer_num", "2")
        first.wait_for("1 of 2 nodes are here")
        second = job.start(*flags, *other)
        assert second.wait() == 1
        assert "--server_num 1 --trainer_num 2: give the same flags" in second.said

    @pytest.mark.slow
    def test_by_lists_with_a_node_of_servers_only(self, job: Job) -> None:
        ports = [free_port() for _ in range(3)]
        flags = (
            *("--servers", f"127.0.0.2:{ports[0]}"),
            *("--trainers", f"127.0.0.3:{ports[1]}"),
            *("--start_port", str(ports[2])),
        )
        for host in ("127.0.0.3", "127.0.0.2"):
            job.start(*flags, "--host", host)
        roles = by_role(job.workers(2))
        (server,), (trainer,) = roles["PSERVER"], roles["TRAINER"]
        assert server["POD_IP"] == "127.0.0.2"
        assert trainer["POD_IP"] == "127.0.0.3"
        trainer.say("exit 0")
        assert job.codes() == [0, 0]
        server.wait_gone()

    @pytest.mark.slow
    def test_a_failed_server_ends_the_job(self, job: Job, master: str) -> None:
        flags = ("--nnodes", "2", "--master", master, "--server_num", "1", "--trainer_num", "1")
        for _ in range(2):
            job.start(*flags)
        roles = by_role(job.workers(4))
        roles["PSERVER"][0].say("exit 7")
        assert job.codes() == [7, 7]
        for member in job.members:
            assert "server " in member.said

    @pytest.mark.slow
    def test_a_lost_node_of_servers_ends_the_job(self, job: Job) -> None:
        ports = [free_port() for _ in range(3)]
        flags = (
            *("--servers", f"127.0.0.3:{ports[0]},127.0.0.2:{ports[0]}"),
            *("--trainers", f"127.0.0.3:{ports[1]}"),
            *("--start_port", str(ports[2])),
            *SHORT,
        )
        trainers = job.start(*flags, "--host", "127.0.0.3")
        servers = job.start(*flags, "--host", "127.0.0.2")
        job.workers(3)
        servers.send(signal.SIGKILL)
        assert trainers.wait() == 1
        assert "vanished" in trainers.said

    @pytest.mark.parametrize("how", ["counts", "lists"])
    @pytest.mark.slow
    def test_heter_workers(self, job: Job, master: str, how: str) -> None:
        if how == "counts":
            flags: tuple[str, ...] = ("--nnodes", "2", "--master", master, "--run_mode", "ps-heter")
            flags += ("--server_num", "1", "--trainer_num", "1", "--heter_worker_num", "1")
            each: list[tuple[str, ...]] = [(), ()]
        else:
            ports = [free_port() for _ in range(4)]
            hosts = ("127.0.0.2", "127.0.0.3")
            flags = ("--run_mode", "ps-heter", "--start_port", str(ports[3]))
            for flag, port in zip(("servers", "trainers", "heter_workers"), ports, strict=False):
                flags += (f"--{flag}", ",".join(f"{host}:{port}" for host in hosts))
            each = [("--host", host) for host in hosts]
        for more in each:
            job.start(*flags, *more)
        roles = by_role(job.workers(6))
        assert {role: len(found) for role, found in roles.items()} == {
            "PSERVER": 2,
            "TRAINER": 2,
            "HETER_TRAINER": 2,
        }
        for worker in roles["HETER_TRAINER"]:
            assert len(worker["PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST"].split(",")) == 2
            assert worker["STAGE_ID"] == "2"
        for worker in roles["TRAINER"]:
            worker.say("exit 0")
        assert job.codes() == [0, 0]
