"""Jobs of several nodes on one machine, over loopback: real launchers, real signals."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess

import pytest

from tests.jobs import DEADLOCK
from tests.launch.members import SCRIPT, SHORT, TOKEN, Job
from tests.launch.running import COMMAND, environment
from tests.ports import free_port


def test_the_same_command_on_every_node(job: Job, master: str) -> None:
    flags = ("--nnodes", "2", "--master", master, "--nproc_per_node", "2")
    for _ in range(2):
        job.start(*flags)
    workers = job.workers(4)

    assert [worker["RANK"] for worker in workers] == ["0", "1", "2", "3"]
    assert [worker["PADDLE_TRAINER_ID"] for worker in workers] == ["0", "1", "2", "3"]
    assert [worker["LOCAL_RANK"] for worker in workers] == ["0", "1", "0", "1"]
    assert [worker["GROUP_RANK"] for worker in workers] == ["0", "0", "1", "1"]
    for name in ("PADDLE_TRAINER_ENDPOINTS", "PADDLE_MASTER", "TORCHELASTIC_RUN_ID"):
        assert len({worker[name] for worker in workers}) == 1
    for worker in workers:
        assert (worker["WORLD_SIZE"], worker["PADDLE_NNODES"]) == ("4", "2")
        endpoints = worker["PADDLE_TRAINER_ENDPOINTS"].split(",")
        assert len(set(endpoints)) == 4
        assert worker["PADDLE_CURRENT_ENDPOINT"] == endpoints[int(worker["RANK"])]
        assert f"{worker['MASTER_ADDR']}:{worker['MASTER_PORT']}" == endpoints[0]
        assert worker["PADDLE_MASTER"] not in endpoints
    for worker in workers:
        worker.say("exit 0")
    assert job.codes() == [0, 0]


def test_without_a_master_the_command_for_the_others_is_shown(job: Job) -> None:
    flags = ("--nnodes", "2", "--host", "127.0.0.1", "--rank", "0")
    first = job.start(*flags, script=(SCRIPT, "a b"), RANKSPAWN_JOB_TOKEN="")
    first.wait_for("on each of the other nodes, type:")
    first.wait_for("1 of 2 nodes are here")
    found = re.search(r"RANKSPAWN_JOB_TOKEN=(\S+) .* -m rankspawn.launch (.*)\n", first.said)
    assert found is not None, first.said
    words = shlex.split(found[2])
    assert "--rank" not in words
    index = words.index(SCRIPT)
    job.start(*words[:index], script=words[index:], RANKSPAWN_JOB_TOKEN=found[1])

    workers = job.workers(2)
    assert [worker.args for worker in workers] == [["a b"], ["a b"]]
    for worker in workers:
        worker.say("exit 0")
    assert job.codes() == [0, 0]


@pytest.mark.slow
def test_a_token_of_the_user_is_not_shown(job: Job) -> None:
    first = job.start("--nnodes", "2", "--host", "127.0.0.1")
    first.wait_for("type (with this node's RANKSPAWN_JOB_TOKEN)")
    first.wait_for("1 of 2 nodes are here")
    assert TOKEN not in first.said
    first.send(signal.SIGTERM)
    assert first.wait() == 128 + signal.SIGTERM


@pytest.mark.slow
def test_given_ranks_and_a_missing_one_is_named(job: Job, master: str) -> None:
    flags = ("--nnodes", "3", "--master", master)
    job.start(*flags, "--rank", "0")
    job.start(*flags, "--rank", "2")
    for member in job.members:
        member.wait_for("missing: rank 1")
    job.start(*flags, "--rank", "1")

    workers = job.workers(3)
    for number, rank in ((0, 0), (1, 2), (2, 1)):
        assert workers[rank]["PADDLE_LOG_DIR"].endswith(f"log{number}")
    for worker in workers:
        worker.say("exit 0")
    assert job.codes() == [0, 0, 0]


def test_a_failure_ends_the_job_everywhere_with_its_traceback(job: Job, master: str) -> None:
    for _ in range(2):
        job.start("--nnodes", "2", "--master", master)
    workers = job.workers(2)
    workers[1].say("raise of rank 1")

    assert job.codes() == [1, 1]
    for member in job.members:
        assert member.said.endswith("ValueError: of rank 1\n")
        assert "rank 1 on " in member.said
        assert "workerlog.1" in member.said
    workers[0].wait_gone()


@pytest.mark.slow
def test_the_exit_code_is_that_of_the_first_failure(job: Job, master: str) -> None:
    for _ in range(2):
        job.start("--nnodes", "2", "--master", master)
    workers = job.workers(2)
    workers[0].say("kill")
    assert job.codes() == [128 + signal.SIGKILL] * 2


@pytest.mark.slow
def test_a_program_that_cannot_be_started_ends_the_job_everywhere(job: Job, master: str) -> None:
    script = job.folder / "program"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    job.start("--nnodes", "2", "--master", master)
    job.start("--nnodes", "2", "--master", master, script=[str(script)])
    assert job.codes() == [126, 126]
    for member in job.members:
        assert "cannot start its workers" in member.said
        assert str(script) in member.said


@pytest.mark.parametrize(
    ("number", "index"),
    [
        pytest.param(signal.SIGINT, 1, id="ctrl-c"),
        pytest.param(signal.SIGTERM, 0, id="master", marks=pytest.mark.slow),
    ],
)
def test_a_node_that_is_asked_to_end_ends_the_job(
    job: Job, master: str, number: int, index: int
) -> None:
    first = job.start("--nnodes", "2", "--master", master)
    first.wait_for("1 of 2 nodes are here")
    job.start("--nnodes", "2", "--master", master)
    workers = job.workers(2)
    job.members[index].send(number)

    assert job.codes() == [128 + number] * 2
    name = signal.Signals(number).name
    assert job.members[index].said.endswith(f"ended by {name} to the launcher\n")
    other = job.members[1 - index].said
    assert other.endswith(f"node {index} (127.0.0.1) was ended by {name} to its launcher\n")
    for worker in workers:
        worker.wait_gone()


@pytest.mark.slow
@pytest.mark.parametrize("nodes", ["2", "1:2"])
def test_a_scheduler_that_ends_all_nodes_leaves_time_to_save(
    job: Job, master: str, nodes: str
) -> None:
    """Its signal comes to the second node when the first one's leaving is known there."""
    flags = ("--nnodes", nodes, "--master", master)
    first = job.start(*flags)
    first.wait_for("1 of 2 nodes are here")
    second = job.start(*flags, script=(SCRIPT, "saves"))
    job.workers(2)
    first.send(signal.SIGTERM)
    assert job.codes() == [143, 143]
    assert "asked again" not in second.said
    assert (job.folder / "saved").exists()


@pytest.mark.slow
def test_asked_twice_does_not_wait(job: Job, master: str) -> None:
    flags = ("--nnodes", "2", "--master", master, "--grace_period", "1000")
    for _ in range(2):
        job.start(*flags, script=(SCRIPT, "stubborn"))
    workers = job.workers(2)
    for member in job.members:
        member.send(signal.SIGINT)
        member.send(signal.SIGTERM)
    assert job.codes() in ([130, 130], [143, 143], [130, 143], [143, 130])
    for worker in workers:
        worker.wait_gone()


@pytest.mark.slow
def test_asked_to_end_while_waiting_for_the_master(job: Job, master: str) -> None:
    """Nobody listens there, and nobody needs to be told."""
    member = job.start("--nnodes", "2", "--master", master, "--rank", "1")
    member.wait_for("nobody listens at")
    member.send(signal.SIGINT)
    assert member.wait() == 130


@pytest.mark.slow
def test_different_flags_are_refused_with_both(job: Job, master: str) -> None:
    first = job.start("--nnodes", "2", "--master", master)
    first.wait_for("1 of 2 nodes are here")
    job.start("--nnodes", "3", "--master", master)
    assert job.codes() == [1, 1]
    for member in job.members:
        assert "--nnodes 3" in member.said
        assert "the job has --nnodes 2" in member.said


@pytest.mark.parametrize(
    "index", [1, pytest.param(0, marks=pytest.mark.slow)], ids=["other", "master"]
)
def test_a_node_that_cannot_take_part_ends_the_job_with_its_reason(
    job: Job, master: str, index: int
) -> None:
    flags = ("--nnodes", "2", "--master", master)
    scripts = [(SCRIPT,), (SCRIPT,)]
    scripts[index] = ("nowhere.py",)
    for rank, script in enumerate(scripts):
        job.start(*flags, "--rank", str(rank), script=script)
    assert job.codes() == [127, 127]
    for member in job.members:
        assert member.said.splitlines()[-1].endswith("there is no script nowhere.py")


@pytest.mark.slow
def test_a_folder_for_the_logs_that_cannot_be_used_is_such_a_reason(job: Job, master: str) -> None:
    (job.folder / "file").touch()
    job.start("--nnodes", "2", "--master", master)
    job.start("--nnodes", "2", "--master", master, "--log_dir", str(job.folder / "file"))
    assert job.codes() == [2, 2]
    for member in job.members:
        assert "cannot be made a folder for the logs" in member.said.splitlines()[-1]


@pytest.mark.slow
def test_who_never_comes_is_named(job: Job, master: str) -> None:
    first = job.start("--nnodes", "2", "--master", master, "--rank", "0", "--join_timeout", "1")
    assert first.wait() == 1
    assert "came within 1 s (127.0.0.1), missing: " in first.said.splitlines()[-1]


@pytest.mark.slow
def test_a_master_that_never_comes_is_named(job: Job, master: str) -> None:
    first = job.start("--nnodes", "2", "--master", master, "--rank", "1", "--join_timeout", "1")
    assert first.wait() == 1
    assert f"nobody listens at {master}" in first.said.splitlines()[-1]
    assert "given up after 1 s" in first.said.splitlines()[-1]


@pytest.mark.slow
def test_one_job_after_the_other_on_the_same_port(job: Job, master: str) -> None:
    """A node may be at its next job while the master of the last one is still there."""
    command = shlex.join(
        [*COMMAND, *("--nnodes", "2", "--master", master, "--nproc_per_node", "1"), "true"]
    )
    nodes = [
        subprocess.Popen(
            ["sh", "-ec", "\n".join([command] * 4)],
            cwd=job.folder,
            env=environment(RANKSPAWN_JOB_TOKEN=TOKEN),
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    said = [node.communicate(timeout=DEADLOCK)[1].decode() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said


@pytest.mark.slow
def test_a_waiting_node_survives_the_masters_restart(job: Job, master: str) -> None:
    flags = ("--nnodes", "3", "--master", master, *SHORT)
    first = job.start(*flags, "--rank", "0")
    waiting = job.start(*flags, "--rank", "1")
    waiting.wait_for("missing: rank 2")
    first.end()
    again = job.start(*flags, "--rank", "0")
    last = job.start(*flags, "--rank", "2")
    for worker in job.workers(3):
        worker.say("exit 0")
    assert [member.wait() for member in (again, waiting, last)] == [0, 0, 0]


@pytest.mark.parametrize("rank", ["-1", pytest.param("0", marks=pytest.mark.slow)])
def test_the_same_job_started_twice_is_refused_at_once(job: Job, master: str, rank: str) -> None:
    # Longer than anybody waits: it is not time that tells.
    flags = ("--nnodes", "2", "--master", master, "--node_timeout", "120")
    first = job.start(*flags, "--rank", rank)
    first.wait_for("1 of 2 nodes are here")
    second = job.start(*flags)
    workers = job.workers(2)
    again = job.start(*flags, "--rank", rank)
    assert again.wait() == 1
    assert "came too late: all 2 nodes of the job are there" in again.said.splitlines()[-1]
    for worker in workers:
        worker.say("exit 0")
    assert [first.wait(), second.wait()] == [0, 0]


@pytest.mark.slow
def test_a_node_that_finds_the_port_taken_serves_when_it_is_free(job: Job, master: str) -> None:
    """By something that is no master, so that nothing of it is heard."""
    host, _, port = master.rpartition(":")
    with socket.create_server((host, int(port))):
        first = job.start("--nnodes", "2", "--master", master)
        first.wait_for("waiting for the other nodes")
    second = job.start("--nnodes", "2", "--master", master, "--rank", "1")
    workers = job.workers(2)
    assert workers[0]["PADDLE_LOG_DIR"].endswith("log0")
    for worker in workers:
        worker.say("exit 0")
    assert [first.wait(), second.wait()] == [0, 0]


@pytest.mark.slow
def test_another_token_is_refused(job: Job, master: str) -> None:
    first = job.start("--nnodes", "2", "--master", master)
    first.wait_for("1 of 2 nodes are here")
    second = job.start("--nnodes", "2", "--master", master, RANKSPAWN_JOB_TOKEN="x" * 16)
    assert second.wait() == 1
    assert "RANKSPAWN_JOB_TOKEN" in second.said
    first.wait_for("the master has sent away 127.0.0.1: wrong token")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "variables", "text"),
    [
        (["--master", "here"], {}, "'here' is no host:port"),
        (["--master", "ftp://a:1"], {}, "ftp:// is not known"),
        (["--master", "127.0.0.1:1"], {"RANKSPAWN_JOB_TOKEN": "short"}, "could be guessed"),
        (["--master", "127.0.0.1:1", "--ips", "127.0.0.1,192.0.2.7"], {}, "this machine only"),
        (["--master", "127.0.0.1:1", "--host", "192.0.2.7"], {}, "this machine only"),
        (["--node_timeout", "0.1"], {}, "from 2 to 120"),
        (["--run_mode", "ps", "--nnodes", "2:3"], {}, "servers keep a part"),
    ],
)
def test_what_cannot_be_meant(
    job: Job, flags: list[str], variables: dict[str, str], text: str
) -> None:
    member = job.start("--nnodes", "2", *flags, **variables)
    assert member.wait() == 2
    assert text in member.said


@pytest.mark.slow
def test_a_start_port_is_used_on_every_node(job: Job, master: str) -> None:
    port = free_port(span=20)
    job.start("--nnodes", "2", "--master", master, "--start_port", str(port))
    job.start("--nnodes", "2", "--master", master, "--start_port", str(port + 10))
    workers = job.workers(2)
    ports = {worker["PADDLE_CURRENT_ENDPOINT"].rpartition(":")[2] for worker in workers}
    assert ports == {str(port), str(port + 10)}
    for worker in workers:
        worker.say("exit 0")
    assert job.codes() == [0, 0]


@pytest.mark.slow
def test_slurm_says_how_many_and_where(job: Job) -> None:
    job_id = str(free_port())
    for node in range(2):
        job.start(
            SLURM_JOB_ID=job_id,
            SLURM_STEP_ID="0",
            SLURM_STEP_NUM_NODES="2",
            SLURM_STEP_NODELIST="127.0.0.[1,2]",
            SLURM_NODEID=str(node),
        )
    workers = job.workers(2)
    assert [worker["GROUP_RANK"] for worker in workers] == ["0", "1"]
    for worker in workers:
        worker.say("exit 0")
    assert job.codes() == [0, 0]


@pytest.mark.slow
def test_kubernetes_says_which_one(job: Job) -> None:
    port = str(free_port())
    for index in range(2):
        job.start(
            "--nnodes",
            "2",
            JOB_COMPLETION_INDEX=str(index),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
    workers = job.workers(2)
    for index, worker in enumerate(workers):
        assert worker["PADDLE_LOG_DIR"].endswith(f"log{index}")
        worker.say("exit 0")
    assert job.codes() == [0, 0]


@pytest.mark.slow
def test_listed_addresses_need_no_master(job: Job) -> None:
    port = str(free_port())
    for host in ("127.0.0.2", "127.0.0.3"):
        job.start("--ips", "127.0.0.2,127.0.0.3", "--host", host, "--start_port", port)
    workers = job.workers(2)
    assert [worker["PADDLE_CURRENT_ENDPOINT"] for worker in workers] == [
        f"127.0.0.2:{port}",
        f"127.0.0.3:{port}",
    ]
    for worker in workers:
        worker.say("exit 0")
    assert job.codes() == [0, 0]


@pytest.mark.slow
def test_ports_of_listed_addresses_start_at_the_default(job: Job) -> None:
    # Addresses that no other run of the tests has.
    network = f"127.{100 + os.getpid() % 100}.{os.getpid() // 100 % 256}"
    hosts = [f"{network}.1", f"{network}.2"]
    for host in hosts:
        job.start("--ips", ",".join(hosts), "--host", host, "--nproc_per_node", "2")
    workers = job.workers(4)
    assert {worker["PADDLE_TRAINER_ENDPOINTS"] for worker in workers} == {
        ",".join(f"{host}:{port}" for host in hosts for port in (6070, 6071))
    }
    for worker in workers:
        worker.say("exit 0")
    assert job.codes() == [0, 0]
