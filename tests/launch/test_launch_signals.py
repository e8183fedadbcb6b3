"""Signals to a launcher, and its terminal: no process of a job is left."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.descendants import Watched
from tests.jobs import DEADLOCK
from tests.launch.readied import READY, Launch, pids_in
from tests.launch.running import environment, write_script
from tests.terminal import Terminal

pytestmark = pytest.mark.slow

IGNORE_AND_WAIT = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready()
    pause()
"""

# A launcher at which Ctrl-C is pressed in each wait for its terminal, after main(), and in Python's
# shutdown.
IMPATIENT = """
    import atexit, signal, sys
    from rankspawn import handlers
    from rankspawn.launch import cli

    def press(*_):
        signal.raise_signal(signal.SIGINT)

    class Last:  # goes after Python has given up its handlers
        __del__ = press

    def tear_down(timeout=None, real=cli.console.finish):
        press()
        real(timeout)

    handlers._ECHO = 0.0
    cli.console.finish = tear_down
    atexit.register(press)
    sys.kept_to_the_end = Last()
    code = cli.main()
    press()
    sys.exit(code)
"""


class TestSignals:
    @pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP", "SIGINT"])
    def test_all_are_gone(self, tmp_path: Path, name: str) -> None:
        number = signal.Signals[name]
        with Launch(tmp_path, IGNORE_AND_WAIT, "--grace_period", "0.3") as launch:
            with Watched(launch.wait_until_ready()) as processes:
                launch.process.send_signal(number)
                errors = launch.finish()
                # After SIGKILL, it is the guardian's turn.
                assert processes.wait_gone() == []
            caught = name != "SIGKILL"
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
        # Not one that ignores it: Python has its handlers run in the order of the signals' numbers,
        # so the second signal has to wait until the launcher has acted on the first.
        body = """
    def tell(*_):
        if rank == 0:
            print("told")
    signal.signal(signal.SIGTERM, tell)
    ready()
    pause()
"""
        with Launch(tmp_path, body, "--grace_period", str(10 * DEADLOCK)) as launch:
            with Watched(launch.wait_until_ready()) as processes:
                launch.process.send_signal(signal.SIGTERM)
                assert launch.process.stdout is not None
                assert launch.process.stdout.readline() == "told\n"
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
            while processes.alive():
                session.press_ctrl_c()
                # Twice in an instant is once.
                session.read_for(0.1)
            assert session.finish() == 130

    def test_ctrl_c_while_it_says_goodbye(self, tmp_path: Path) -> None:
        """The exit code stays, and the last message is whole."""
        write_script(tmp_path, IMPATIENT, "impatient.py")
        body = "\n    ready()\n    pause()\n"
        with Launch(tmp_path, body, command=[sys.executable, "impatient.py"]) as launch:
            launch.wait_until_ready()
            launch.process.send_signal(signal.SIGINT)
            errors = launch.finish()
            assert launch.process.returncode == 130, errors
        assert errors.splitlines()[-1] == "rankrun: ended by SIGINT to the launcher"

    def test_ctrl_c_while_it_says_what_is_wrong(self, tmp_path: Path) -> None:
        (tmp_path / "log").write_text("not a folder")
        write_script(tmp_path, IMPATIENT, "impatient.py")
        with Launch(tmp_path, "", command=[sys.executable, "impatient.py"]) as launch:
            errors = launch.finish()
            assert launch.process.returncode == 2, errors
        assert "cannot be made a folder for the logs" in errors.splitlines()[-1]

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
