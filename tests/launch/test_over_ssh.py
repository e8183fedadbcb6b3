"""``rankrun --hosts … --ssh``: with a program in ssh's place, and over a real server."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cluster.sshd import HOSTS, Sshd, running_sshd, why_no_sshd
from tests.jobs import DEADLOCK
from tests.launch.running import COMMAND, environment, rankrun, write_script

with_sshd = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_sshd()), reason=why_no_sshd()),
]
BOTH = ("--hosts", ",".join(HOSTS), "--ssh", "--nproc_per_node", "1", "--device_type", "cpu")
# Runs here what would run there; its second word is a host.
IN_PLACE_OF_SSH = 'while [ "$1" != -- ]; do shift; done; host="$2"'
TELL_RANK = """
import os
print("this is rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "in", os.getcwd())
"""
FAIL = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(7)
time.sleep(600)
"""
# Each worker says who it is in a file, and waits.
WAIT = """
import os, time
open(f"draft{os.environ['RANK']}", "w").write(str(os.getpid()))
os.rename(f"draft{os.environ['RANK']}", f"pid{os.environ['RANK']}")
time.sleep(600)
"""


def ssh_that(folder: Path, does: str) -> dict[str, str]:
    """Variables with which a script is found in place of ssh."""
    programs = folder / "programs"
    programs.mkdir()
    path = programs / "ssh"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(stat.S_IRWXU)
    return {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def eventually(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLOCK
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_job_on_hosts_is_shown_with_their_names(tmp_path: Path) -> None:
    found = ssh_that(tmp_path, f'{IN_PLACE_OF_SSH}; echo "welcome to $host"; exec sh -c "$3"')
    write_script(tmp_path, TELL_RANK)
    done = rankrun(tmp_path, "--hosts", "first:2", "--ssh", "--tee", "train.py", **found)
    assert done.code == 0, done.errors
    assert sorted(done.output.splitlines()) == [
        f"[first] [rank 0] this is rank 0 of 2 in {tmp_path}",
        f"[first] [rank 1] this is rank 1 of 2 in {tmp_path}",
        "[first] welcome to first",
    ]
    assert "[first] rankrun: 2 workers, logs in" in done.errors


def test_a_host_that_cannot_be_reached_starts_nothing_anywhere(tmp_path: Path) -> None:
    does = f'{IN_PLACE_OF_SSH}; [ $host = a ] && exec sh -c "$3"; echo no route >&2; exit 255'
    found = ssh_that(tmp_path, does)
    write_script(tmp_path, "open('started', 'w')")
    done = rankrun(tmp_path, "--hosts", "a,b", "--ssh", "train.py", **found)
    assert done.code == 126
    said = "rankrun: nothing was started, as b cannot take part: there is no connection to b"
    assert said in done.errors
    assert "[b] no route" in done.errors
    assert not (tmp_path / "started").exists()


def test_a_lost_connection_is_the_cause(tmp_path: Path) -> None:
    """The one on the host is killed, which has no last word then."""
    found = ssh_that(tmp_path, f'{IN_PLACE_OF_SSH}; exec sh -c "$3"')
    write_script(tmp_path, "import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
    flags = ("--hosts", "a:1", "--ssh", "--device_type", "cpu")
    done = rankrun(tmp_path, *flags, "train.py", **found)
    assert done.code == 1
    assert done.errors.splitlines()[-1].startswith("rankrun: the connection to a was lost, and its")


def test_without_hosts_it_says_what_is_missing(tmp_path: Path) -> None:
    done = rankrun(tmp_path, "--ssh", "train.py")
    assert done.code == 2
    assert "--ssh needs --hosts, the machines to start on" in done.errors


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    with running_sshd() as server:
        yield server


class Started:
    """A launcher that has started workers on both hosts."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        write_script(folder, WAIT)
        self.process = subprocess.Popen(
            [*COMMAND, *BOTH, "train.py"],
            cwd=folder,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        files = [folder / f"pid{rank}" for rank in range(2)]
        try:
            eventually(lambda: all(file.exists() for file in files), "the workers do not start")
        except AssertionError:
            self.process.kill()
            raise
        self.workers = [psutil.Process(int(file.read_text())) for file in files]

    def finish(self) -> str:
        """What it said, once it and all workers are gone."""
        said, _ = self.process.communicate(timeout=DEADLOCK)
        _, alive = psutil.wait_procs(self.workers, timeout=DEADLOCK)
        assert not alive
        return said


@pytest.mark.usefixtures("sshd")
class TestRealServer:
    pytestmark = with_sshd

    @pytest.fixture
    def variables(self, tmp_path: Path, sshd: Sshd) -> dict[str, str]:
        """As if the user's configuration of ssh knew the server."""
        lines = [f"Port {sshd.port}", f"IdentityFile {sshd.identity}", "IdentitiesOnly yes"]
        lines += [f"{name} {value}" for name, value in sshd.options.items()]
        (tmp_path / "config").write_text("\n".join([*lines, ""]))
        return ssh_that(tmp_path, f'PATH={os.environ["PATH"]} exec ssh -F {tmp_path}/config "$@"')

    def test_a_job(self, tmp_path: Path, sshd: Sshd, variables: dict[str, str]) -> None:
        write_script(tmp_path, TELL_RANK)
        done = rankrun(tmp_path, *BOTH, "train.py", **variables)
        assert done.code == 0, done.errors
        assert sorted(done.output.splitlines()) == [
            f"[{host}] this is rank {rank} of 2 in {tmp_path}" for rank, host in enumerate(HOSTS)
        ]
        sshd.wait_until_idle()

    def test_a_failure_on_one_ends_all(
        self, tmp_path: Path, sshd: Sshd, variables: dict[str, str]
    ) -> None:
        write_script(tmp_path, FAIL)
        done = rankrun(tmp_path, *BOTH, "train.py", **variables)
        assert done.code == 7, done.errors
        for host in HOSTS:
            assert f"[{host}] rankrun: rank 1 on " in done.errors
        assert done.errors.splitlines()[-1].endswith("with exit code 7")
        sshd.wait_until_idle()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_signals_reach_all(
        self, number: int, tmp_path: Path, sshd: Sshd, variables: dict[str, str]
    ) -> None:
        started = Started(tmp_path, variables)
        started.process.send_signal(number)
        said = started.finish()
        assert started.process.returncode == 128 + number, said
        assert said.splitlines()[-1] == (
            f"rankrun: ended by {signal.Signals(number).name} to the launcher"
        )
        sshd.wait_until_idle()

    def test_a_connection_that_is_cut(
        self, tmp_path: Path, sshd: Sshd, variables: dict[str, str]
    ) -> None:
        started = Started(tmp_path, variables)
        (lost,) = (
            process
            for process in psutil.Process(started.process.pid).children()
            if HOSTS[1] in process.cmdline()
        )
        lost.kill()
        said = started.finish()
        assert started.process.returncode == 1, said
        assert f"the connection to {HOSTS[1]} was lost, and its workers" in said.splitlines()[-1]
        sshd.wait_until_idle()

    def test_the_first_launcher_is_killed(
        self, tmp_path: Path, sshd: Sshd, variables: dict[str, str]
    ) -> None:
        started = Started(tmp_path, variables)
        programs = psutil.Process(started.process.pid).children()
        started.process.kill()
        started.finish()
        _, alive = psutil.wait_procs(programs, timeout=DEADLOCK)
        assert not alive
        sshd.wait_until_idle()

    def test_no_command_line_or_first_environment_has_the_token(
        self, tmp_path: Path, sshd: Sshd, variables: dict[str, str]
    ) -> None:
        token = "a token of the tests"
        started = Started(tmp_path, variables | {"RANKSPAWN_JOB_TOKEN": token})
        try:
            for process in [*psutil.process_iter(), *started.workers]:
                with suppress(psutil.Error):
                    assert token not in " ".join(process.cmdline())
            for worker in started.workers:
                launcher = worker.parent()
                assert launcher is not None
                assert token not in {*worker.environ().values(), *launcher.environ().values()}
        finally:
            started.process.terminate()
            started.finish()
        sshd.wait_until_idle()
