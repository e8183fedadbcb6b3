"""Detached jobs without an engine: their keeper, those who attend, and what is left at the end."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rankspawn
from rankspawn import NodeLostError, ProcessExitedException, ProcessRaisedException
from rankspawn.cluster import Local, Node, attach, slurm, slurm_batch
from rankspawn.cluster.attaching import AttachedGroup
from rankspawn.cluster.attended import Attendance
from rankspawn.cluster.keeper import Keeper
from rankspawn.cluster.kept_jobs import KeptJob, home, new_folder
from rankspawn.cluster.printed import InMemory, Merged
from rankspawn.cluster.relay import address_of, carry, connect
from rankspawn.cluster.slurm import Slurm
from rankspawn.supervise.context import start_context
from rankspawn.supervise.policy import SupervisionPolicy
from tests.cluster import cluster_cases as cases
from tests.jobs import DEADLOCK

ASKED = {"grace": 5.0, "on_failure": "stop", "what": "f", "python": "python"}


@pytest.fixture(autouse=True)
def _nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    yield
    assert not home().exists() or list(home().iterdir()) == []


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Its jobs run here, to their end, while they are being submitted."""

    def submit(words: list[str], _: str, folder: Path, key: bytes) -> str:
        assert words[0] == "--nodes=2"
        before = signal.getsignal(signal.SIGTERM)
        try:
            Keeper(folder, key).run()
        finally:
            signal.signal(signal.SIGTERM, before)
        return "7"

    monkeypatch.setattr(slurm, "Slurm", lambda python: Local(nodes=2))  # noqa: ARG005 - its name
    monkeypatch.setattr(slurm_batch, "submit", submit)
    monkeypatch.setattr(Slurm, "nodes", lambda _: [Node()] * 2)
    return Slurm(nodes=2, detach=True)


def test_a_driver_that_comes_after_the_end_has_all(
    engine: Slurm, capfd: pytest.CaptureFixture[str]
) -> None:
    context = rankspawn.spawn(cases.speak, (9,), nprocs=1, cluster=engine, backend="gloo")
    assert context.job_id == "7"
    assert context.results() == [b"x" * 9] * 2
    assert context.exitcodes() == [0, 0]
    assert [process.host for process in context.processes] == ["local0", "local1"]
    assert "rank 1 speaks" in capfd.readouterr().out


def test_a_failure_is_kept_as_it_was(engine: Slurm, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with pytest.raises(ProcessRaisedException, match="on purpose") as caught:
        rankspawn.spawn(
            cases.fail, (1, "raise"), nprocs=1, cluster=engine, backend="gloo", log_dir=logs
        )
    assert (caught.value.rank, type(caught.value.exception)) == (1, ValueError)
    assert (logs / "workerlog.1").read_text() == "about to fail\n"


def test_a_job_that_does_not_begin_says_why(engine: Slurm) -> None:
    with pytest.raises(RuntimeError, match=r"job 7: .*no_such_module"):
        rankspawn.spawn(
            print,
            nprocs=1,
            cluster=engine,
            backend="gloo",
            start_method="forkserver",
            preload=("no_such_module",),
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 5.0}, "timeout and detach cannot be given at once"),
        ({"nprocs": -1, "env": lambda rank: {"A": str(rank)}}, "nprocs=-1 with detach"),
    ],
)
def test_what_cannot_be_kept_is_refused(engine: Slurm, options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rankspawn.spawn(print, **{"nprocs": 1, "cluster": engine, **options})


class _Connection:
    """A channel that is a connection to the keeper."""

    host, address = "here", ""

    def __init__(self, name: str) -> None:
        self._socket = connect(name)
        self.read_fileno = self.write_fileno = self._socket.fileno
        self.kill = self.close = self._socket.close

    def why_lost(self) -> str:
        return "it is gone"


def test_two_attend_a_running_job_and_one_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankspawn.cluster.attended._FLUSH_SECONDS", DEADLOCK)
    folder, key = new_folder(None)
    job = KeptJob("7", folder, key, ASKED)
    job.save()
    kept = rankspawn.spawn(
        cases.report_and_wait, nprocs=2, cluster=Local(nodes=1), backend="gloo", join=False
    )
    attendance = Attendance(folder.name, kept._supervisor)
    kept._group.listeners.add(attendance.wake)
    attendance.start()

    def attended(printed: Any) -> Any:
        group = AttachedGroup(job, _Connection(folder.name), printed)
        group.start()
        return start_context(lambda _: group, SupervisionPolicy(5.0), join=False)

    first, second = attended(Merged()), attended(InMemory())
    assert first.pids() == second.pids() == kept.pids()
    assert first.dump_stacks().keys() <= {0, 1}  # a very busy machine may not answer in time
    assert first.job_id == "7"
    deadline = time.monotonic() + DEADLOCK
    while len(second.reports()) < 2:
        assert not second.join(timeout=0.05)
        assert time.monotonic() < deadline
    attendance.pass_on([(0, b"a line\n")])
    first._group.close()  # whoever goes leaves the ranks alone
    assert not kept.join(timeout=0)
    second.processes[1].terminate()
    with pytest.raises(ProcessExitedException, match="SIGTERM"):
        kept.join(timeout=DEADLOCK)
    finishing = threading.Thread(target=attendance.finish)
    finishing.start()
    with pytest.raises(ProcessExitedException, match="Process 1 terminated with signal SIGTERM"):
        second.join(timeout=DEADLOCK)
    finishing.join(DEADLOCK)


def test_the_relay_carries_both_ways_until_one_end_closes() -> None:
    (ours, inner), (keeper, far) = socket.socketpair(), socket.socketpair()
    thread = threading.Thread(target=carry, args=(inner.fileno(), inner.fileno(), far))
    with ours, inner, keeper, far:
        thread.start()
        ours.sendall(b"to the keeper")
        assert keeper.recv(100) == b"to the keeper"
        keeper.sendall(b"and back")
        assert ours.recv(100) == b"and back"
        keeper.close()
        thread.join(DEADLOCK)
        assert not thread.is_alive()


def test_another_user_is_neither_heard_nor_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor: Any = None
    attendance = Attendance("job-of-another", supervisor)
    attendance.start()
    other = os.geteuid() + 1
    monkeypatch.setattr("rankspawn.cluster.relay.os.geteuid", lambda: other)
    with pytest.raises(PermissionError, match="another user listens"):
        connect("job-of-another")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(DEADLOCK)
        connection.connect(address_of("job-of-another"))
        assert connection.recv(1) == b""
    attendance.finish()


def test_nobody_listens_where_no_keeper_is() -> None:
    with pytest.raises(ConnectionRefusedError):
        connect("no-such-job", patience=0.0)


@pytest.mark.parametrize("number", ["../7", "", "7_1", -7])
def test_what_is_no_number_is_refused(number: Any) -> None:
    with pytest.raises(ValueError, match="is no number of a job"):
        attach(number)


def test_a_job_that_left_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, key = new_folder(None)
    job = KeptJob("7", folder, key, ASKED)
    job.save()
    monkeypatch.setattr("rankspawn.cluster.attaching._SECONDS_TO_SHOW", 0.0)
    monkeypatch.setattr(slurm_batch, "state_of", lambda _: ("CANCELLED", ""))
    with pytest.raises(NodeLostError, match=r"job 7 is over .* Slurm says CANCELLED"):
        attach(7)
    job.forget()


class TestWordsForSlurm:
    """Programs that stand for Slurm's."""

    @pytest.fixture
    def programs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return tmp_path

    @staticmethod
    def _program(folder: Path, name: str, text: str) -> None:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o700)

    def test_the_script_has_no_key(self, programs: Path) -> None:
        told = programs / "told"
        self._program(programs, "sbatch", f'(echo "$@"; cat; env) > {told}; echo "12;here"')
        number = slurm_batch.submit(["--nodes=2"], "/x/python", Path("/f/job 1"), b"\1\2")
        assert number == "12"
        words, script = told.read_text().split("#!/bin/sh\n")
        script, variables = script.splitlines()[0], script.splitlines()[1:]
        assert words == "--parsable --export=ALL --nodes=2\n"
        assert script == "exec /x/python -m rankspawn.cluster.keeper '/f/job 1'"
        assert "RANKSPAWN_JOB_KEY=0102" in variables

    def test_a_refusal_comes_with_its_words(self, programs: Path) -> None:
        self._program(programs, "sbatch", "echo invalid partition >&2; exit 1")
        with pytest.raises(RuntimeError, match="Slurm took no job: invalid partition"):
            slurm_batch.submit([], "python", programs, b"")

    def test_a_job_is_waited_for_until_it_runs(
        self, programs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(slurm_batch, "PATIENCE", -1.0)
        asked = programs / "asked"
        self._program(
            programs,
            "squeue",
            f"if [ -e {asked} ]; then echo RUNNING n1; else touch {asked}; echo PENDING; fi",
        )
        assert slurm_batch.wait_until_it_runs("12") == "n1"
        assert "job 12 waits in Slurm's queue" in caplog.text

    def test_a_job_that_is_not_known_is_over(self, programs: Path) -> None:
        self._program(programs, "squeue", "echo Invalid job id specified >&2; exit 1")
        assert slurm_batch.wait_until_it_runs("12") is None
        self._program(programs, "squeue", "echo no controller >&2; exit 1")
        with pytest.raises(RuntimeError, match=r"does not say .* no controller"):
            slurm_batch.state_of("12")

    def test_the_way_in_is_a_step_beside_the_keeper(self, programs: Path) -> None:
        self._program(programs, "srun", 'echo "$@"')
        channel = slurm_batch.channel_to("12", "n1", "/x/python", "job-a")
        said = os.read(channel.read_fileno(), 4096).decode()
        channel.close()
        assert said.startswith("--jobid=12 --nodelist=n1 --overlap")
        assert said.endswith("/x/python -m rankspawn.cluster.relay job-a\n")
