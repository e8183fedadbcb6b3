"""Nodes that die, hang, leave, join and come back, over loopback: real launchers, real signals."""

from __future__ import annotations

import signal
import time

import pytest

from tests.launch.members import SHORT, Job


class TestLostNodes:
    pytestmark = pytest.mark.slow

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
    @pytest.mark.parametrize("index", [0, 1], ids=["master", "other"])
    def test_end_the_job(self, job: Job, master: str, number: int, index: int) -> None:
        flags = ("--nnodes", "2", "--master", master, *SHORT)
        first = job.start(*flags)
        first.wait_for("1 of 2 nodes are here")
        job.start(*flags)
        workers = job.workers(2)
        lost, other = job.members[index], job.members[1 - index]
        lost.send(number)

        assert other.wait() == 1
        if index:
            assert "node 1 (127.0.0.1, " in other.said
            assert "vanished: no sign of life for 4 s" in other.said
        else:
            assert f"nothing was heard from {master}, where the nodes meet" in other.said
        if number == signal.SIGSTOP:
            # Nobody goes on without it, so nobody else ends its workers.
            lost.send(signal.SIGCONT)
        for worker in workers:
            worker.wait_gone()

    def test_workers_that_fail_because_of_it_are_not_the_cause(self, job: Job, master: str) -> None:
        flags = ("--nnodes", "2", "--master", master, *SHORT)
        first = job.start(*flags)
        first.wait_for("1 of 2 nodes are here")
        second = job.start(*flags)
        workers = job.workers(2)
        second.send(signal.SIGKILL)
        workers[1].wait_gone()
        workers[0].say("raise connection reset by peer")
        assert first.wait() == 1
        assert first.said.endswith("vanished: no sign of life for 4 s\n")
        assert "ValueError: connection reset by peer" in first.said


class TestRestarts:
    def test_level_1_starts_all_nodes_again(self, job: Job, master: str) -> None:
        flags = ("--nnodes", "2", "--master", master, "--elastic_level", "1", "--max_restart", "1")
        for _ in range(2):
            job.start(*flags)
        old = job.workers(2)
        old[1].say("exit 3")
        new = job.workers(2)
        assert all(worker.is_gone() for worker in old)
        assert {worker["TORCHELASTIC_RESTART_COUNT"] for worker in new} == {"1"}
        assert {worker["TORCHELASTIC_MAX_RESTARTS"] for worker in new} == {"1"}
        # A late message to the old ones does not reach the new ones. Rank by rank, since on one
        # machine a node may be given what another one has just let go of.
        before, after = (
            worker["PADDLE_TRAINER_ENDPOINTS"].split(",") for worker in (old[0], new[0])
        )
        assert all(one != other for one, other in zip(before, after, strict=True))
        assert old[0]["TORCHELASTIC_RUN_ID"] == new[0]["TORCHELASTIC_RUN_ID"]

        new[0].say("exit 4")
        assert job.codes() == [4, 4]
        for member in job.members:
            assert "1 of 1 restarts are used up" in member.said

    def test_the_second_comes_after_a_pause(self, job: Job, master: str) -> None:
        flags = ("--nnodes", "2", "--master", master, "--elastic_level", "1", "--max_restart", "2")
        for _ in range(2):
            job.start(*flags)
        job.workers(2)[1].say("exit 3")
        again = job.workers(2)
        failed = time.monotonic()
        again[0].say("exit 3")
        last = job.workers(2)
        assert time.monotonic() - failed >= 0.5
        for worker in last:
            worker.say("exit 0")
        # What is said of it is in the pure tests: workers that take so long to end leave no pause.
        assert job.codes() == [0, 0]

    @pytest.mark.slow
    def test_level_0_holds_until_a_node_takes_its_place(self, job: Job, master: str) -> None:
        flags = ("--nnodes", "2", "--master", master, "--elastic_level", "0")
        first = job.start(*flags)
        first.wait_for("1 of 2 nodes are here")
        second = job.start(*flags)
        old = job.workers(2)
        old[1].say("exit 3")
        assert second.wait() == 3
        first.wait_for("1 of 2 nodes are here")
        third = job.start(*flags)
        new = job.workers(2)
        assert all(worker.is_gone() for worker in old)
        for worker in new:
            worker.say("exit 0")
        assert [first.wait(), third.wait()] == [0, 0]

    @pytest.mark.slow
    def test_level_0_without_another_node(self, job: Job, master: str) -> None:
        flags = ("--nnodes", "2", "--master", master, "--elastic_level", "0")
        for _ in range(2):
            job.start(*flags, "--elastic_timeout", "1")
        job.workers(2)[1].say("exit 3")
        assert sorted(job.codes()) == [3, 3]
        assert any("none took the place" in member.said for member in job.members)


class TestElastic:
    pytestmark = pytest.mark.slow

    def test_join_leave_die_and_come_back(self, job: Job, master: str) -> None:
        flags = (
            *("--nnodes", "2:3", "--master", master, "--elastic_timeout", "1"),
            *("--max_restart", "99", *SHORT),
        )
        first = job.start(*flags)
        first.wait_for("1 of 3 nodes are here")
        second = job.start(*flags)
        workers = job.workers(2)
        assert [worker["WORLD_SIZE"] for worker in workers] == ["2", "2"]

        third = job.start(*flags)
        workers = job.next_generation(workers, 3)

        third.send(signal.SIGTERM)
        workers = job.next_generation(workers, 2)
        assert third.wait() == 143

        third = job.start(*flags)
        workers = job.next_generation(workers, 3)

        second.send(signal.SIGKILL)
        workers = job.next_generation(workers, 2)

        fourth = job.start(*flags)
        workers = job.next_generation(workers, 3)
        for worker in workers:
            worker.say("exit 0")
        assert [first.wait(), third.wait(), fourth.wait()] == [0, 0, 0]

    def test_a_killed_launcher_is_known_before_its_lease_ends(self, job: Job, master: str) -> None:
        if master.startswith("etcd"):
            pytest.skip("an etcd is not told by the fence: there the lease ends by itself")
        flags = (
            *("--nnodes", "1:2", "--master", master, "--elastic_timeout", "600"),
            # As long as two of these tests may take.
            *("--max_restart", "99", "--node_timeout", "120", "--grace_period", "1"),
        )
        first = job.start(*flags)
        first.wait_for("1 of 2 nodes are here")
        second = job.start(*flags)
        workers = job.workers(2)

        second.send(signal.SIGKILL)

        (worker,) = job.next_generation(workers, 1)
        worker.say("exit 0")
        assert first.wait() == 0

    @pytest.mark.parametrize("level", ["-1", "0", "1"])
    def test_workers_that_lose_their_peers_go_on(self, job: Job, master: str, level: str) -> None:
        flags = (
            *("--nnodes", "1:3", "--master", master, "--elastic_timeout", "600", *SHORT),
            *("--elastic_level", level, "--max_restart", "1"),
        )
        first = job.start(*flags)
        first.wait_for("1 of 3 nodes are here")
        for _ in range(2):
            job.start(*flags)
        workers = job.workers(3)
        (lost,) = [worker for worker in workers if worker["PADDLE_LOG_DIR"].endswith("log2")]
        job.members[2].send(signal.SIGKILL)
        lost.wait_gone()
        workers[0].say("raise connection reset by peer")
        workers = job.next_generation(workers, 2)
        for worker in workers:
            worker.say("exit 0")
        assert [member.wait() for member in job.members[:2]] == [0, 0]

    def test_a_node_that_hung_comes_back(self, job: Job, master: str) -> None:
        flags = (
            *("--nnodes", "1:2", "--master", master, "--elastic_timeout", "20"),
            *("--max_restart", "99", *SHORT),
        )
        first = job.start(*flags)
        first.wait_for("1 of 2 nodes are here")
        second = job.start(*flags)
        workers = job.workers(2)
        second.send(signal.SIGSTOP)
        workers = job.next_generation(workers, 1)
        second.send(signal.SIGCONT)
        workers = job.next_generation(workers, 2)
        for worker in workers:
            worker.say("exit 0")
        assert job.codes() == [0, 0]

    def test_a_master_that_is_started_again_goes_on_counting(self, job: Job, master: str) -> None:
        flags = ("--nnodes", "1:2", "--master", master, "--elastic_timeout", "50", *SHORT)
        first = job.start(*flags)
        first.wait_for("1 of 2 nodes are here")
        second = job.start(*flags)
        workers = job.workers(2)
        first.send(signal.SIGKILL)
        workers[0].wait_gone()
        third = job.start(*flags, "--rank", "0")
        workers = job.next_generation(workers, 2)
        assert [worker.restarts for worker in workers] == [1, 1]
        assert workers[1]["PADDLE_LOG_DIR"].endswith("log1")
        for worker in workers:
            worker.say("exit 0")
        assert [second.wait(), third.wait()] == [0, 0]

    def test_restarts_are_counted_for_the_whole_job(self, job: Job, master: str) -> None:
        flags = (
            "--nnodes",
            "1:2",
            "--master",
            master,
            "--max_restart",
            "1",
            "--elastic_level",
            "1",
        )
        first = job.start(*flags, *SHORT)
        first.wait_for("1 of 2 nodes are here")
        second = job.start(*flags, *SHORT)
        job.workers(2)[0].say("exit 5")
        job.workers(2)
        second.send(signal.SIGKILL)
        assert first.wait() == 1
        assert "1 of 1 restarts are used up" in first.said
        assert "vanished" in first.said
