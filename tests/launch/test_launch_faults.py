"""Whatever goes wrong, and whoever is killed when: no process of a job is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankspawn.workers.marker import find_marked, new_mark
from tests.descendants import Watched
from tests.jobs import DEADLOCK
from tests.launch.readied import Launch
from tests.launch.running import COMMAND, ROOT, environment, rankrun, write_script

pytestmark = pytest.mark.slow


class TestFailures:
    @pytest.mark.parametrize(
        ("how", "code"),
        [
            ("raise ValueError", 1),
            ("os._exit(5)", 5),
            ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ],
    )
    def test_nobody_outlives_a_failure(self, tmp_path: Path, how: str, code: int) -> None:
        body = f"""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready()
    sys.stdin.read()
    while not os.path.exists("go"):
        time.sleep(0.005)
    if rank == 1:
        {how}
    pause()
"""
        with Launch(tmp_path, body, "--grace_period", "0.2") as launch:
            with Watched(launch.wait_until_ready()) as processes:
                (tmp_path / "go").touch()
                errors = launch.finish()
                assert processes.alive() == []
            assert launch.process.returncode == code
        assert "did not end in time; now SIGKILL" in errors
        assert "rankrun: rank 1 on" in errors

    def test_workers_have_time_to_save(self, tmp_path: Path) -> None:
        body = """
    def save(*_):
        time.sleep(0.3)  # what saving takes
        open("saved", "w").close()
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    ready(with_descendants=False)
    sys.exit(4) if rank == 1 else pause()
"""
        with Launch(tmp_path, body) as launch:
            launch.finish()
            assert launch.process.returncode == 4
        assert (tmp_path / "saved").exists()

    def test_a_stopped_worker(self, tmp_path: Path) -> None:
        body = """
    ready(with_descendants=False)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    stopped = json.load(open("pids.0"))["self"]
    while open(f"/proc/{stopped}/stat").read().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.005)
    sys.exit(4)
"""
        with Launch(tmp_path, body) as launch, Watched(launch.wait_until_ready()) as processes:
            launch.finish()
            assert launch.process.returncode == 4
            assert processes.alive() == []

    def test_after_success_what_workers_left_is_left_alone(self, tmp_path: Path) -> None:
        body = """
    ready()
    # Those without the terminal's or the log's descriptors would not be noticed otherwise.
"""
        with Launch(tmp_path, body) as launch:
            launch.wait_until_ready()
            pids = [
                pid
                for path in tmp_path.glob("pids.?")
                for name, pid in json.loads(path.read_text()).items()
                if name != "self"
            ]
            with Watched(pids) as processes:
                launch.finish()
                assert launch.process.returncode == 0
                assert sorted(processes.alive()) == sorted(pids)

    def test_servers_are_stopped_with_what_they_started(self, tmp_path: Path) -> None:
        """And what the trainers left, who ended well, is left alone."""
        body = """
    import json, os, signal, sys, time
    from tests.descendants import start_descendants
    name = os.environ["TRAINING_ROLE"] + os.environ.get("PADDLE_TRAINER_ID", "")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(f"{name}.new", "w") as file:
        json.dump([*start_descendants().values(), os.getpid()], file)
    os.rename(f"{name}.new", name)
    while len([file for file in os.listdir() if file in ("PSERVER", "TRAINER0")]) < 2:
        time.sleep(0.005)
    if name == "PSERVER":
        signal.pause()
    print("ready")
    while not os.path.exists("go"):
        time.sleep(0.005)
"""
        write_script(tmp_path, body)
        launch = subprocess.Popen(
            [*COMMAND, "--server_num=1", "--trainer_num=1", "--grace_period=0.2", "train.py"],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with launch:
            assert launch.stdout is not None
            assert launch.stdout.readline() == "ready\n"
            server = json.loads((tmp_path / "PSERVER").read_text())
            *left, trainer = json.loads((tmp_path / "TRAINER0").read_text())
            with Watched(server) as servers, Watched(left) as trainers, Watched([trainer]):
                (tmp_path / "go").touch()
                assert launch.wait(DEADLOCK) == 0
                assert servers.alive() == []
                assert sorted(trainers.alive()) == sorted(left)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("when", range(0, 200, 20))
def test_killed_in_the_middle_of_the_start(
    tmp_path: Path, when: int, number: signal.Signals
) -> None:
    """So many milliseconds after it began: nobody with its mark is left."""
    mark = new_mark()
    code = (
        "import sys; from rankspawn.workers import assembling; mark = sys.argv.pop(1); "
        "assembling.new_mark = lambda: mark; print('now', flush=True); "
        "from rankspawn.launch.cli import main; sys.exit(main())"
    )
    launch = subprocess.Popen(
        [
            *(sys.executable, "-c", code, mark, "--nproc_per_node", "4"),
            *("--grace_period", "0.2", "sleep", "1000"),
        ],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with launch:
        assert launch.stdout is not None
        launch.stdout.readline()
        # Not a wait for anything: the moment of the kill is what the test varies.
        signal.sigtimedwait([], when / 1000)
        launch.send_signal(number)
        launch.wait(DEADLOCK)
        while left := list(find_marked(mark)):
            with Watched(left) as processes:
                assert processes.wait_gone() == []


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(tmp_path: Path, closed: str) -> None:
    write_script(tmp_path, "import os; print('out', os.environ['RANK']); os.write(2, b'err\\n')")
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, "--nproc_per_node=2", "train.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        log = tmp_path / "log" / f"workerlog.{rank}"
        assert log.read_text() == f"out {rank}\nerr\n"


def test_children_whose_end_nobody_wants_to_know(tmp_path: Path) -> None:
    """SIGCHLD ignored by whoever started us: exit codes must not be lost."""
    code = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *COMMAND, "--nproc_per_node", "2", "sh", "-c", "exit 9"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        timeout=DEADLOCK,
        check=False,
    )
    assert done.returncode == 9


def test_the_folder_is_gone(tmp_path: Path) -> None:
    done = rankrun(tmp_path, "--nproc_per_node", "1", "sh", "-c", "rm -r log; exit 3")
    assert done.code == 3
    assert "it printed nothing to" in done.errors
    assert ROOT.exists()
