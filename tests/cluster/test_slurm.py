"""Agents in a Slurm allocation: what is asked of Slurm, its words, and a real one."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from rankspawn.cluster.engine import AgentRequest
from rankspawn.cluster.slurm import Allocation, Slurm, environ_of_steps
from rankspawn.cluster.slurm_words import explain
from tests.jobs import DEADLOCK
from tests.launch.slurm_cluster import NODES, Cluster, running_slurm, why_no_slurm

REQUEST = AgentRequest("rst-job", (1, 1), DEADLOCK)
# Stand for Slurm's programs: srun says for which node it was called.
SRUN = 'echo "$@" | sed "s/.*nodelist=//; s/ .*//"; exec cat'
SCONTROL = "echo n1; echo n2"
SALLOC = 'while [ "$1" != sh ]; do shift; done; SLURM_JOB_ID=7 exec "$@"'


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "salloc": SALLOC}.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"nodes": 0}, "nodes=0: a job has at least one node"),
        ({"nodes": True}, "nodes=True"),
        ({"extra": "--exclusive"}, "must be words for salloc"),
    ],
)
def test_what_makes_no_sense_is_refused(keywords: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Slurm(**keywords)


def test_a_new_job_is_asked_for_with_what_was_given() -> None:
    engine = Slurm(
        4, partition="gpu", time="2:00:00", account="us", qos="high", extra=["--exclusive"]
    )
    assert engine.job_words("j")[:-3] == [
        *("--nodes=4", "--job-name=j", "--partition=gpu", "--time=2:00:00", "--account=us"),
        *("--qos=high", "--exclusive", "--no-bell"),
    ]


def test_a_step_is_one_task_on_its_node() -> None:
    command = Slurm().step_command("7", "n1", REQUEST.command("/x/python"))
    assert command[:3] == ["srun", "--jobid=7", "--nodelist=n1"]
    assert {"--overlap", "--nodes=1", "--ntasks=1", "--input=all"} <= set(command)
    assert command[-3:] == ["/x/python", "-m", "rankspawn.cluster.agent"]


def test_what_was_said_about_other_steps_does_not_count() -> None:
    environ = {"SLURM_NTASKS": "8", "SLURM_LABELIO": "1", "SLURM_CPU_BIND_TYPE": "x"}
    kept = {"SLURM_CONF": "/conf", "SLURM_JOB_ID": "7", "PATH": "/bin"}
    assert environ_of_steps(environ | kept) == kept


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("STEP 7.0 ON n1 CANCELLED AT 12:00 DUE TO TIME LIMIT", "ask for more with time="),
        ("STEP 7.0 ON n1 CANCELLED AT 12:00 DUE TO PREEMPTION", "job of higher priority"),
        ("error: *** STEP 7.0 ON n1 CANCELLED AT 12:00 ***", "was cancelled"),
        ("error: Node failure on n1", "Slurm lost the node"),
        ("python: No module named 'rankspawn'", "on n1 has no rankspawn"),
    ],
)
def test_its_words_come_with_what_they_mean(said: str, words: str) -> None:
    told = explain("n1", 1, f"srun: cluster configuration lacks support for cpu binding\n{said}")
    assert words in told
    assert told.endswith(f"Slurm said: {said}")


def test_a_code_alone_is_told() -> None:
    assert explain("n1", 3, "") == "srun ended with code 3"
    assert explain("n1", None, "") == ""


def test_without_slurm_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="needs the program srun"):
        Slurm().nodes()


@pytest.mark.usefixtures("programs")
def test_in_an_allocation_its_nodes_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    assert [node.host for node in Slurm().nodes()] == ["n1", "n2"]
    assert [node.host for node in Slurm(1).nodes()] == ["n1"]
    with pytest.raises(ValueError, match="nodes=3, but the allocation 7 has 2: n1 n2"):
        Slurm(3).nodes()
    with ExitStack() as stack:
        channels = [stack.enter_context(closing(each)) for each in Slurm().start(REQUEST)]
        said = [os.read(channel.read_fileno(), 100) for channel in channels]
    assert said == [b"n1\n", b"n2\n"]


def test_an_allocation_without_names_is_told(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (programs / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(RuntimeError, match="SLURM_JOB_NODELIST='' names no nodes"):
        Slurm().nodes()


@pytest.mark.usefixtures("programs")
def test_elsewhere_a_job_is_held_until_the_last_channel_is_closed() -> None:
    engine = Slurm(2)
    assert [node.host for node in engine.nodes()] == ["", ""]
    channels = engine.start(REQUEST)
    assert [channel.host for channel in channels] == ["n1", "n2"]
    for channel in channels:
        channel.close()
        channel.close()


@pytest.mark.usefixtures("programs")
def test_one_step_that_cannot_be_started_gives_the_nodes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Slurm(2)
    monkeypatch.setattr(Slurm, "step_command", lambda *_: ["no-such-program"])
    with pytest.raises(FileNotFoundError):
        engine.start(REQUEST)


def test_what_slurm_refuses_comes_with_its_words(programs: Path) -> None:
    (programs / "salloc").write_text("#!/bin/sh\necho invalid partition >&2; exit 1\n")
    with pytest.raises(RuntimeError, match="Slurm gave no nodes: invalid partition"):
        Slurm(2).start(REQUEST)


def test_who_waits_in_the_queue_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rankspawn.cluster.slurm.PATIENCE", 0.0)
    caplog.set_level(logging.WARNING)
    granted = "import sys; sys.stdin.read(1); print('7\\nn1\\n', flush=True); sys.stdin.read()"

    def select_and_grant(reading: list[Any], *_: Any) -> tuple[list[Any], ...]:
        reading[0].send(b"x")
        return [], [], []

    monkeypatch.setattr("rankspawn.cluster.slurm.select.select", select_and_grant)
    allocation = Allocation([sys.executable, "-c", granted])
    allocation.close()
    assert (allocation.job, allocation.hosts) == ("7", ["n1"])
    assert "squeue --me" in caplog.text


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with running_slurm() as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm())
class TestRealSlurm:
    @pytest.fixture(autouse=True)
    def _environ(self, slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("SLURM_CONF", str(slurm.configuration))
        yield
        slurm.wait_until_idle()

    def test_a_job_is_had_used_and_given_back(self) -> None:
        with ExitStack() as stack:
            engine = Slurm(2, time=5, python="/usr/bin/printf")
            channels = [stack.enter_context(closing(each)) for each in engine.start(REQUEST)]
            assert [channel.host for channel in channels] == list(NODES)
            # Its own format's name is all that printf says.
            assert [os.read(channel.read_fileno(), 100) for channel in channels] == [b"-m", b"-m"]

    def test_no_python_there(self) -> None:
        with closing(Slurm(1, python="/no/python").start(REQUEST)[0]) as channel:
            assert os.read(channel.read_fileno(), 1) == b""
            assert "/no/python: No such file or directory" in channel.why_lost()

    @pytest.mark.parametrize("asked", [{"partition": "none"}, {"extra": ["--mem=999T"]}])
    def test_a_refusal_has_slurm_s_words(self, asked: Any) -> None:
        with pytest.raises(RuntimeError, match=r"Slurm gave no nodes: (.*\n)*salloc: error: "):
            Slurm(1, **asked).start(REQUEST)
