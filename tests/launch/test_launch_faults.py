"""Whatever goes wrong, and whoever is killed when: no process of a job is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankspawn.workers.marker import find_marked, new_mark
from tests.descendants import Watched
from tests.jobs import DEADLOCK
from tests.launch.running import COMMAND, ROOT, environment, rankrun, write_script
from tests.terminal import Terminal

pytestmark = pytest.mark.slow

# Each worker tells who it is, and whom it started, in a file; rank 0 prints once all have.
READY = """
    import json, os, signal, sys, time
    from tests.descendants import start_descendants

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def ready(with_descendants=True):
        pids = start_descendants() if with_descendants else {}
        with open(f"pids.{rank}.new", "w") as file:
            json.dump({**pids, "self": os.getpid()}, file)
        os.rename(f"pids.{rank}.new", f"pids.{rank}")
        while not all(os.path.exists(f"pids.{one}") for one in range(size)):
            time.sleep(0.005)
        if rank == 0:
            print("ready")

    def pause():
        while True:
            time.sleep(0.2)  # not pause(), which a signal just before it does not end
"""


def pids_in(folder: Path) -> list[int]:
    """Everybody that the workers told of."""
    return [pid for path in folder.glob("pids.?") for pid in json.loads(path.read_text()).values()]


class Launch:
    """A launch that runs while the test does something to it."""

    def __init__(self, folder: Path, body: str, *flags: str, before: list[str] | None = None):
        write_script(folder, READY + body)
        self.folder = folder
        self.process = subprocess.Popen(
            [*(before or []), *COMMAND, "--nproc_per_node", "2", *flags, "train.py"],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # What a shell, or nohup, left behind for the tests themselves, is not for them.
            preexec_fn=_default_signals,  # noqa: PLW1509 - no thread runs here
        )

    def wait_until_ready(self) -> list[int]:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()[1]
        return pids_in(self.folder)

    def finish(self) -> str:
        _, errors = self.process.communicate(timeout=DEADLOCK)
        return errors

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        self.process.wait()


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


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
    while len([one for one in os.listdir() if one in ("PSERVER", "TRAINER0")]) < 2:
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


IGNORE_AND_WAIT = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready()
    pause()
"""


class TestSignals:
    @pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"])
    def test_all_are_gone(self, tmp_path: Path, name: str) -> None:
        number = signal.Signals[name]
        with Launch(tmp_path, IGNORE_AND_WAIT, "--grace_period", "0.3") as launch:
            with Watched(launch.wait_until_ready()) as processes:
                launch.process.send_signal(number)
                errors = launch.finish()
                # After SIGKILL, it is the guardian's turn.
                assert processes.wait_gone() == []
            caught = name not in ("SIGKILL", "SIGQUIT")
            assert launch.process.returncode == (128 + number if caught else -number)
        if caught:
            assert errors.splitlines()[-1] == f"rankrun: ended by {name} to the launcher"
            assert "stopped (SIGKILL)" in errors

    def test_sigterm_is_passed_on_before_the_kill(self, tmp_path: Path) -> None:
        body = """
    def save(*_):
        open(f"saved.{rank}", "w").close()
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    ready(with_descendants=False)
    pause()
"""
        with Launch(tmp_path, body) as launch:
            launch.wait_until_ready()
            launch.process.terminate()
            launch.finish()
            assert launch.process.returncode == 143
        assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"]

    def test_timeout_sends_its_signal_twice(self, tmp_path: Path) -> None:
        """To the launcher, and to the process group that it belongs to."""
        body = """
    def save(*_):
        # The launcher has heard it twice by then.
        signal.sigtimedwait([], 0.5)
        open(f"saved.{rank}", "w").close()
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    ready(with_descendants=False)
    pause()
"""
        with Launch(tmp_path, body, before=["timeout", str(10 * DEADLOCK)]) as launch:
            launch.wait_until_ready()
            launch.process.terminate()
            launch.finish()
            # What it returns if it was not the time that ran out.
            assert launch.process.returncode == 143
        assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"]

    def test_asked_twice(self, tmp_path: Path) -> None:
        with Launch(tmp_path, IGNORE_AND_WAIT, "--grace_period", str(10 * DEADLOCK)) as launch:
            with Watched(launch.wait_until_ready()) as processes:
                launch.process.send_signal(signal.SIGTERM)
                _wait_for_signal(launch.process.pid)
                launch.process.send_signal(signal.SIGINT)
                errors = launch.finish()
                assert processes.alive() == []
            assert launch.process.returncode == 143, "the first one counts"
        assert "asked again to end" in errors

    def test_nohup(self, tmp_path: Path) -> None:
        body = """
    ready(with_descendants=False)
    while not os.path.exists("go"):
        time.sleep(0.005)
"""
        with Launch(tmp_path, body, before=["nohup"]) as launch:
            launch.wait_until_ready()
            launch.process.send_signal(signal.SIGHUP)
            (tmp_path / "go").touch()
            launch.finish()
            assert launch.process.returncode == 0

    def test_during_a_restart(self, tmp_path: Path) -> None:
        body = """
    print("start")
    sys.exit(3)
"""
        flags = ["--elastic_level", "1", "--max_restart", "1000000", "--nproc_per_node", "1"]
        with Launch(tmp_path, body, *flags) as launch:
            assert launch.process.stdout is not None
            for _ in range(3):
                assert launch.process.stdout.readline() == "start\n"
            launch.process.terminate()
            launch.finish()
            assert launch.process.returncode == 143

    @pytest.mark.parametrize(("level", "code"), [("1", 143), ("-1", 3)])
    def test_while_a_failed_job_is_stopped(self, tmp_path: Path, level: str, code: int) -> None:
        """Only a failure that would not have been restarted has ended the job."""
        body = """
    import os, signal, sys, time
    if os.environ["RANK"] == "0":
        while not os.path.exists("ready"):
            time.sleep(0.005)
        sys.exit(3)
    def leave(*_):
        os.kill(os.getppid(), signal.SIGTERM)
        sys.exit(0)
    signal.signal(signal.SIGTERM, leave)
    open("ready", "w").close()
    while True:
        time.sleep(0.2)
"""
        flags = ["--elastic_level", level, "--nproc_per_node", "2"]
        with Launch(tmp_path, body, *flags) as launch:
            launch.finish()
            assert launch.process.returncode == code

    def test_nobody_reads_what_is_printed(self, tmp_path: Path) -> None:
        """A pager that waits, a terminal that was stopped: the job is supervised all the same."""
        body = """
    ready(with_descendants=False)
    if rank == 0:
        print("x" * 1_000_000)
        pause()
    while not os.path.exists("go"):
        time.sleep(0.005)
    sys.exit(6)
"""
        with Launch(tmp_path, body) as launch:
            with Watched(launch.wait_until_ready()) as processes:
                (tmp_path / "go").touch()
                assert processes.wait_gone() == []
            # It still wants to get rid of the output, but can be told not to.
            launch.process.terminate()
            assert launch.process.wait(DEADLOCK) == 6


def _wait_for_signal(pid: int) -> None:
    """Until no signal is pending: the process has taken it."""
    deadline = time.monotonic() + DEADLOCK
    while time.monotonic() < deadline:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        pending = [line.split()[1] for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
        if not any(int(mask, 16) for mask in pending):
            return


Opener = Callable[..., "Session"]


class Session(Terminal):
    """A launch in a terminal of its own."""

    def __init__(self, folder: Path, body: str, *flags: str) -> None:
        write_script(folder, READY + body)
        arguments = ["-m", "rankspawn.launch", "--nproc_per_node", "2", *flags, "train.py"]
        super().__init__(arguments, cwd=folder, env=environment())


@pytest.fixture
def open_session(tmp_path: Path) -> Iterator[Opener]:
    sessions: list[Session] = []

    def opened(body: str, *flags: str) -> Session:
        sessions.append(Session(tmp_path, body, *flags))
        return sessions[-1]

    yield opened
    for session in sessions:
        session.close()


class TestTerminal:
    def test_ctrl_c(self, open_session: Opener, tmp_path: Path) -> None:
        session = open_session("\n    ready()\n    pause()\n")
        session.read_until("ready")
        with Watched(pids_in(tmp_path)) as processes:
            session.press_ctrl_c()
            assert session.finish() == 130
            assert processes.alive() == []
        assert "rankrun: ended by SIGINT to the launcher" in session.output
        # Only what rank 0 itself says about it.
        assert session.output.count("KeyboardInterrupt") <= 1, session.output

    def test_workers_have_time_to_save(self, open_session: Opener, tmp_path: Path) -> None:
        body = """
    try:
        ready(with_descendants=False)
        pause()
    except KeyboardInterrupt:
        time.sleep(0.3)  # what saving takes
        open(f"saved.{rank}", "w").close()
"""
        session = open_session(body, "--grace_period", "30")
        session.read_until("ready")
        session.press_ctrl_c()
        assert session.finish() == 130
        assert len(list(tmp_path.glob("saved.*"))) == 2

    def test_a_second_ctrl_c_kills_at_once(self, open_session: Opener, tmp_path: Path) -> None:
        body = "\n    signal.signal(signal.SIGINT, signal.SIG_IGN)" + IGNORE_AND_WAIT
        session = open_session(body, "--grace_period", str(10 * DEADLOCK))
        session.read_until("ready")
        with Watched(pids_in(tmp_path)) as processes:
            session.press_ctrl_c()
            session.read_until("interrupt again to kill them")
            while session.process.poll() is None:
                session.press_ctrl_c()
                # Twice in an instant is once.
                session.read_for(0.1)
            assert session.finish() == 130
            assert processes.alive() == []

    def test_the_terminal_is_closed(self, open_session: Opener, tmp_path: Path) -> None:
        session = open_session(IGNORE_AND_WAIT, "--grace_period", "0.2")
        session.read_until("ready")
        with Watched(pids_in(tmp_path)) as processes:
            session.hang_up()
            assert session.process.wait(DEADLOCK) == 129
            assert processes.alive() == []

    def test_a_debugger_can_be_talked_to(self, open_session: Opener) -> None:
        body = "\n    if rank == 0:\n        breakpoint()\n        print('went on')\n"
        session = open_session(body)
        session.read_until("(Pdb) ")
        session.type_line("print(6 * 7)")
        session.read_until("42")
        session.type_line("continue")
        assert session.finish() == 0
        assert "went on" in session.output


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("when", range(0, 200, 20))
def test_killed_in_the_middle_of_the_start(
    tmp_path: Path, when: int, number: signal.Signals
) -> None:
    """So many milliseconds after it began: nobody with its mark is left."""
    mark = new_mark()
    code = (
        "import sys; from rankspawn.workers import group; mark = sys.argv.pop(1); "
        "group.new_mark = lambda: mark; print('now', flush=True); "
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
