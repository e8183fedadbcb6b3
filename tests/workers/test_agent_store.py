"""torch's store beside the ranks: who hosts it, for how long, and what its death means."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessExitedException
from rankspawn.plan.ports import HeldPorts
from rankspawn.workers.agent_store import AgentStore, check_torch
from rankspawn.workers.marker import new_mark
from tests.descendants import Watched
from tests.jobs import DEADLOCK, return_rank, sleep_for_ever
from tests.ports import free_port
from tests.workers import store_cases as cases

Run = Callable[..., MultiprocessContext]
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a torch that is none."""
    cases.write_torch(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("torch")
class TestHost:
    def test_is_no_rank(self, run: Run) -> None:
        ranks = run(cases.told, nprocs=2, agent_store=True, timeout=DEADLOCK).results()
        assert [switch for switch, _, _, _ in ranks] == ["True", "True"]
        (store,) = {store for _, _, store, _ in ranks}
        assert store not in {os.getpid(), *(pid for _, pid, _, _ in ranks)}
        assert {session for _, _, _, session in ranks} == {store}, "Ctrl-C would reach it"

    def test_each_group_has_its_own(self) -> None:
        start = partial(
            rankspawn.spawn, cases.ask_store, nprocs=1, backend="gloo", agent_store=True, join=False
        )
        with start() as first, start() as second:
            assert first.results() != second.results()

    def test_its_death_is_an_error(self, run: Run) -> None:
        with pytest.raises(ProcessExitedException) as caught:
            run(cases.kill_store, nprocs=2, agent_store=True, timeout=DEADLOCK)
        error = caught.value
        assert (error.rank, error.exit_code, error.signal_name) == (-1, -9, "SIGKILL")
        assert f"hosts torch's store (agent_store, pid {error.pid})" in str(error)
        assert error.failures == (error,)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)

    def test_a_restart_has_a_new_one(self, run: Run, tmp_path: Path) -> None:
        context = run(
            cases.kill_store_once,
            args=(str(tmp_path / "note"),),
            nprocs=1,
            max_restarts=1,
            agent_store=True,
            timeout=DEADLOCK,
        )
        assert context.results() == [True]

    def test_a_job_of_several_nodes_has_it_on_the_first(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[tuple[str, bool]] = []

        def make(host: str, _: int, *, is_shared: bool) -> None:
            made.append((host, is_shared))

        monkeypatch.setattr("rankspawn.workers.agent_store.AgentStore", make)
        nodes = {"127.0.0.1": 0, "127.0.0.2": 1}
        for node in nodes:
            with pytest.warns(DeprecationWarning, match="node_ip|started_port"):
                context = rankspawn.spawn(
                    return_rank,
                    nprocs=1,
                    backend="gloo",
                    agent_store=True,
                    ips=list(nodes),
                    node_ip=node,
                    started_port=free_port(node),
                )
            assert context.results() == [nodes[node]]
        assert made == [("127.0.0.1", True)]


def test_ranks_can_connect_before_torch_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    cases.write_torch(tmp_path, before=f"open({fifo!r}).read()\n")
    monkeypatch.syspath_prepend(tmp_path)
    context = rankspawn.spawn(
        cases.release_store,
        args=(fifo,),
        nprocs=1,
        backend="gloo",
        agent_store=True,
        timeout=DEADLOCK,
    )
    assert context.results() != [os.getpid()]


def test_a_torch_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases.write_torch(tmp_path, before="raise OSError('libtorch.so is broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ProcessExitedException, match="terminated with exit code 1") as caught:
        rankspawn.spawn(
            sleep_for_ever, nprocs=2, backend="gloo", agent_store=True, timeout=DEADLOCK
        )
    assert str(caught.value).endswith("OSError: libtorch.so is broken")


@pytest.mark.parametrize("is_folder", [False, True])
def test_without_torch_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    if is_folder:
        (tmp_path / "torch").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("rankspawn.spawning.start_context", None)
    with pytest.raises(ModuleNotFoundError, match="agent_store needs torch") as caught:
        rankspawn.spawn(print, nprocs=1, backend="gloo", agent_store=True)
    assert caught.value.name == "torch"
    monkeypatch.setitem(sys.modules, "torch", pytest)
    check_torch()


@pytest.mark.usefixtures("torch")
def test_it_ends_also_if_this_process_may_not_kill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError

    ports = HeldPorts(1)
    store = AgentStore("127.0.0.1", ports.ports[0], is_shared=False)
    with Watched([store.start(new_mark())]) as process:
        monkeypatch.setattr(store._popen, "kill", refuse)
        store.close()
        assert process.wait_gone() == []
    ports.close()


class TestAddress:
    def test_of_one_machine_is_its_own_alone(self) -> None:
        ports = HeldPorts(1)
        store = AgentStore("127.0.0.1", ports.ports[0], is_shared=False)
        socket.create_connection(("127.0.0.1", ports.ports[0])).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", ports.ports[0]))
        store.close()
        store.close()
        ports.close()

    @pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
    def test_of_several_is_each(self, address: str) -> None:
        if ":" in address and not socket.has_dualstack_ipv6():
            pytest.skip("this machine has no IPv6")
        ports = HeldPorts(1)
        store = AgentStore("127.0.0.1", ports.ports[0], is_shared=True)
        socket.create_connection((address, ports.ports[0])).close()
        store.close()
        ports.close()

    def test_that_a_router_translates(self) -> None:
        ports = HeldPorts(1)
        # Reserved for documentation: no machine has it.
        store = AgentStore("192.0.2.1", ports.ports[0], is_shared=False)
        socket.create_connection(("127.0.0.1", ports.ports[0])).close()
        store.close()
        ports.close()


PROGRAM = """
import json, os, sys
import multiprocessing
import rankspawn
from tests import jobs
from tests.workers import store_cases as cases

def work(ready):
    ready.send([os.getpid(), cases.ask_store()])
    jobs.sleep_for_ever()

if __name__ == "__main__":
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    context = rankspawn.spawn(work, args=(theirs,), nprocs=1, backend="gloo", join=False,
                              agent_store=True, start_method=sys.argv[1])
    print(json.dumps(ours.recv()), flush=True)
    context.join()
"""


def test_it_goes_with_a_parent_that_is_killed(torch: Path, start_method: str) -> None:
    (torch / "program.py").write_text(PROGRAM)
    path = os.pathsep.join(map(str, (ROOT, ROOT / "src", torch)))
    parent = subprocess.Popen(
        [sys.executable, str(torch / "program.py"), start_method],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    with parent:
        assert parent.stdout is not None
        with Watched(json.loads(parent.stdout.readline())) as processes:
            parent.send_signal(signal.SIGKILL)
            parent.wait(DEADLOCK)
            assert processes.wait_gone() == []
