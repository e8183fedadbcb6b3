"""``rankrun --agent_store``: torch's store beside the workers."""

from __future__ import annotations

import os
import select
import signal
import socket
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from rankspawn.launch.config import read_config
from rankspawn.launch.pod import Pod
from rankspawn.launch.programs import TRAINER, ProgramSpec
from rankspawn.plan.ports import HeldPorts
from rankspawn.workers.agent_store import AgentStore
from rankspawn.workers.follow import LogFollower
from tests.jobs import DEADLOCK
from tests.launch.members import Job, Worker, wait_gone
from tests.launch.running import ROOT, Done, run_script
from tests.workers.store_cases import write_torch

# Rank 1 asks the store when rank 0 is gone.
LATE = """
    import os, select
    from tests.workers.store_cases import ask_store

    if os.environ["RANK"] == "0":
        with open("fifo", "w") as file:
            print(os.getpid(), file=file)
    else:
        first = os.pidfd_open(int(open("fifo").read()))
        select.select([first], [], [])
        print("store of", os.environ["TORCHELASTIC_USE_AGENT_STORE"], ask_store())
"""
KILL = """
    import os, signal
    from tests.jobs import sleep_for_ever
    from tests.workers.store_cases import ask_store

    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if os.environ["RANK"] == "1":
            os.kill(ask_store(), signal.SIGKILL)
        sleep_for_ever()
    print("store", ask_store())
"""


def run(folder: Path, script: str, *flags: str) -> Done:
    write_torch(folder)
    path = os.pathsep.join(map(str, (ROOT, ROOT / "src", folder)))
    return run_script(folder, script, "--agent_store", *flags, PYTHONPATH=path)


def test_it_outlives_rank_0(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    done = run(tmp_path, LATE)
    assert done.code == 0, done.errors
    assert done.log("workerlog.1").startswith("store of True ")
    assert done.logs == ["workerlog.0", "workerlog.1"]
    assert wait_gone(int(done.log("workerlog.1").split()[-1]))


def test_its_death_ends_the_job(tmp_path: Path) -> None:
    done = run(tmp_path, KILL)
    assert done.code == 128 + signal.SIGKILL
    last = done.errors.splitlines()[-1]
    assert "the process that hosts torch's store (agent_store, pid " in last
    assert "terminated with signal SIGKILL while ranks ran, which were stopped" in last


def test_a_restart_has_a_new_one(tmp_path: Path) -> None:
    done = run(tmp_path, KILL, "--elastic_level", "1", "--max_restart", "1")
    assert done.code == 0, done.errors
    assert "hosts torch's store" in done.errors
    assert "restart 1 of 1" in done.errors
    assert done.log("workerlog.1").startswith("store ")


@pytest.mark.skipif(find_spec("torch") is not None, reason="it is for a Python without torch")
def test_without_torch_nothing_is_started(tmp_path: Path) -> None:
    done = run_script(tmp_path, "print('here')", "--agent_store")
    assert (done.code, done.output) == (2, "")
    assert "--agent_store: agent_store needs torch" in done.errors


def test_servers_and_trainers_have_none() -> None:
    line = ["--agent_store", "--server_num=1", "--trainer_num=1", "train.py"]
    config = read_config(line, {})
    assert not config.agent_store
    assert config.notes == ("--agent_store has no effect with --run_mode ps",)


def test_a_node_whose_workers_ended_serves_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_torch(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    ports, follower = HeldPorts(1), LogFollower(1)
    for is_shared in (False, True):
        store = AgentStore("127.0.0.1", ports.ports[0], is_shared=is_shared)
        spec = ProgramSpec(TRAINER, 0, ("true",), {}, "workerlog.0", on_terminal=False)
        pod = Pod(
            [spec],
            log_dir=str(tmp_path),
            keep_logs=False,
            grace=DEADLOCK,
            follower=follower,
            store=store,
        )
        while not pod.is_done:
            select.select([pod], [], [], DEADLOCK)
            pod.collect()
        assert pod.is_empty is not is_shared
        if is_shared:
            os.kill(ask(("127.0.0.1", ports.ports[0])), signal.SIGKILL)
            select.select([pod], [], [], DEADLOCK)
            pod.collect()
        assert (pod.lost is not None) is is_shared
        pod.stop()
        pod.close()
    follower.finish(DEADLOCK)
    ports.close()


def store_of(worker: Worker) -> psutil.Process:
    return psutil.Process(ask((worker["MASTER_ADDR"], int(worker["MASTER_PORT"]))))


def ask(address: tuple[str, int]) -> int:
    with socket.create_connection(address, DEADLOCK) as line:
        return int(line.recv(64))


def test_of_two_nodes_the_first_hosts_it(job: Job, master: str) -> None:
    write_torch(job.folder)
    path = os.pathsep.join(map(str, (ROOT, ROOT / "src", job.folder)))
    for rank in ("0", "1"):
        flags = ("--nnodes", "2", "--master", master, "--rank", rank, "--agent_store")
        job.start(*flags, PYTHONPATH=path)
    workers = job.workers(2)
    assert {worker["TORCHELASTIC_USE_AGENT_STORE"] for worker in workers} == {"True"}
    stores = [store_of(worker) for worker in workers]
    assert stores[0] == stores[1]
    assert stores[0].ppid() == job.members[0].process.pid

    workers[0].say("exit 0")
    workers[0].wait_gone()
    assert store_of(workers[1]) == stores[0]
    workers[1].say("exit 0")
    assert job.codes() == [0, 0]
    assert wait_gone(stores[0].pid)
