"""Ctrl-C: in a terminal, where the whole foreground group gets it, and to the parent alone."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankspawn.interrupts import woken_by_signals
from tests.descendants import Watched
from tests.jobs import DEADLOCK
from tests.terminal import Session

PROGRAM = """
import asyncio, logging, os, select, signal, sys, threading, time
import rankspawn
from rankspawn import handlers
from tests import jobs

def say(text):
    os.write(1, (text + "\\n").encode())

def just_wait():
    say(f"ready {os.getpid()}")
    jobs.sleep_for_ever()

def save_on_interrupt():
    try:
        just_wait()
    except KeyboardInterrupt:
        time.sleep(0.3)  # what saving takes
        say("saved")
        raise

def save_on_sigterm():
    def save(*_):
        time.sleep(0.3)
        say("saved")
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    just_wait()

def ignore_all():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    just_wait()

def fail_beside_a_stubborn_one():
    def fail(*_):
        raise ValueError("on purpose")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: say("told to end"))
    signal.signal(signal.SIGUSR1, fail)
    just_wait()

def start(**options):
    return rankspawn.spawn(globals()[sys.argv[1]], nprocs=2, backend="gloo",
                           start_method=sys.argv[2], grace_period=float(sys.argv[3]), **options)

async def wait_async():
    await start(join=False)

def become_deaf():
    # The kernel gives every signal to another thread: nothing interrupts the wait.
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

def wait_deaf():
    context = start(join=False)
    become_deaf()
    context.join()

async def wait_deaf_async():
    context = start(join=False)
    become_deaf()
    await context

def interrupt_at_first_fork():
    # Another thread gets the signal while the main one runs what is to be run before a fork.
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    received, told = os.pipe2(os.O_NONBLOCK)
    pids = [os.getpid()]

    def interrupt():
        if pids:
            signal.set_wakeup_fd(told)
            os.kill(pids.pop(), signal.SIGINT)
            select.select([received], [], [])

    os.register_at_fork(before=interrupt)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    handlers._ECHO = float(os.environ.get("ECHO", 0))  # tests wait for a word, not for time
    here = os.path.dirname(__file__)
    os.environ["PYTHONPATH"] += os.pathsep + here
    try:
        if sys.argv[4] == "at fork":
            interrupt_at_first_fork()
            start()
        elif sys.argv[4] == "preload":
            start(preload=["never_loaded"])
        elif sys.argv[4] == "await":
            asyncio.run(wait_async())
        elif sys.argv[4] == "deaf":
            wait_deaf()
        elif sys.argv[4] == "deaf await":
            asyncio.run(wait_deaf_async())
        else:
            start()
    except KeyboardInterrupt as error:
        twice = isinstance(error.__context__, KeyboardInterrupt)
        say("two of them" if twice else "one KeyboardInterrupt")
        raise SystemExit(130)
"""


@pytest.fixture
def open_session(tmp_path: Path) -> Iterator[type[Session]]:
    sessions: list[Session] = []

    class Opened(Session):
        def __init__(self, *arguments: str) -> None:
            super().__init__(tmp_path, PROGRAM, *arguments)
            sessions.append(self)

    yield Opened
    for session in sessions:
        session.close()


def assert_quiet(session: Session) -> None:
    """One line about the interrupt, and not one traceback."""
    assert session.output.count("one KeyboardInterrupt") == 1, session.output
    assert "Traceback" not in session.output, session.output


@pytest.mark.parametrize("how", ["join", "await"])
def test_ctrl_c_in_a_terminal(open_session: type[Session], start_method: str, how: str) -> None:
    session = open_session("just_wait", start_method, "10", how)  # type: ignore[arg-type]
    with Watched(session.pids()) as workers:
        session.press_ctrl_c()
        assert session.finish() == 130
        assert workers.alive() == []
    assert_quiet(session)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_ctrl_c_while_interpreters_start(
    open_session: type[Session], tmp_path: Path, method: str
) -> None:
    # Whoever is started says so, and goes on once Ctrl-C has come, unless that ends it.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if 'rankspawn-worker-' in str(sys.orig_argv) or 'rankspawn-forkserver' in sys.orig_argv:\n"
        "    os.write(1, b'starting\\n')\n"
        f"    for _ in range({int(DEADLOCK * 100)}):\n"
        "        if signal.SIGINT in signal.sigpending():\n"
        "            break\n"
        "        signal.sigtimedwait([], 0.01)\n"
    )
    session = open_session("just_wait", method, "10", "join")  # type: ignore[arg-type]
    session.read_until("starting", 2 if method == "spawn" else 1)
    session.press_ctrl_c()
    assert session.finish() == 130
    assert_quiet(session)


def test_ctrl_c_while_a_fork_server_imports(open_session: type[Session], tmp_path: Path) -> None:
    (tmp_path / "never_loaded.py").write_text(
        "import os, time\nos.write(1, b'importing\\n')\ntime.sleep(10000)\n"
    )
    session = open_session("just_wait", "forkserver", "10", "preload")  # type: ignore[arg-type]
    session.read_until("importing")
    session.press_ctrl_c()
    assert session.finish() == 130
    assert_quiet(session)


def test_an_interrupt_is_not_lost_in_a_fork(open_session: type[Session]) -> None:
    session = open_session("just_wait", "fork", "1", "at fork")  # type: ignore[arg-type]
    assert session.finish() == 130
    assert_quiet(session)


@pytest.mark.parametrize("how", ["join", "await"])
def test_workers_have_time_to_save_their_state(
    open_session: type[Session], start_method: str, how: str
) -> None:
    session = open_session("save_on_interrupt", start_method, "30", how)  # type: ignore[arg-type]
    with Watched(session.pids()):
        session.press_ctrl_c()
        assert session.finish() == 130
    assert session.output.count("saved") == 2
    assert_quiet(session)


@pytest.mark.parametrize("how", ["join", "await"])
def test_an_interrupt_that_comes_twice_does_not_hurry_the_workers(
    open_session: type[Session], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """As ``timeout -s INT`` sends it: to its child, and then to the whole process group."""
    monkeypatch.setenv("ECHO", str(10 * DEADLOCK))
    session = open_session("save_on_interrupt", "fork", "30", how)  # type: ignore[arg-type]
    with Watched(session.pids()):
        session.press_ctrl_c()
        session.read_until("interrupted")
        session.process.send_signal(signal.SIGINT)
        assert session.finish() == 130
    assert session.output.count("saved") == 2
    assert_quiet(session)


@pytest.mark.parametrize("how", ["join", "await"])
def test_sigint_to_the_parent_alone(
    open_session: type[Session], start_method: str, how: str
) -> None:
    session = open_session("save_on_sigterm", start_method, "3", how)  # type: ignore[arg-type]
    with Watched(session.pids()) as workers:
        session.process.send_signal(signal.SIGINT)
        assert session.finish() == 130
        assert workers.alive() == []
    assert session.output.count("saved") == 2
    assert_quiet(session)


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("how", ["deaf", "deaf await"])
def test_a_signal_that_does_not_interrupt_the_wait(
    open_session: type[Session], second: bool, how: str
) -> None:
    job, grace = ("ignore_all", str(10 * DEADLOCK)) if second else ("just_wait", "1")
    session = open_session(job, "spawn", grace, how)  # type: ignore[arg-type]
    with Watched(session.pids()) as workers:
        session.process.send_signal(signal.SIGINT)
        if second:
            session.read_until("interrupted")
            session.process.send_signal(signal.SIGINT)
        assert session.finish() == 130
        assert workers.alive() == []
    assert_quiet(session)


def test_an_event_loop_is_told_the_signals_that_a_blocking_wait_received() -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    before = signal.set_wakeup_fd(write)
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with selectors.DefaultSelector() as selector:
            with woken_by_signals(selector):
                os.kill(os.getpid(), signal.SIGUSR1)
                assert len(selector.select(DEADLOCK)) == 1
            assert not selector.get_map()
        assert os.read(read, 10) == bytes([signal.SIGUSR1])
        assert signal.set_wakeup_fd(before) == write
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, handler)
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("how", ["join", "await"])
def test_a_second_ctrl_c_kills_at_once(
    open_session: type[Session], start_method: str, how: str
) -> None:
    session = open_session("ignore_all", start_method, str(10 * DEADLOCK), how)  # type: ignore[arg-type]
    with Watched(session.pids()) as workers:
        session.press_ctrl_c()
        session.read_until(
            f"2 workers have {10 * DEADLOCK:g} s to end; interrupt again to kill them"
        )
        assert len(workers.alive()) == 2
        session.press_ctrl_c()
        assert session.finish() == 130
        assert workers.alive() == []
    assert_quiet(session)
    assert "is not waited for any longer; now SIGKILL" in session.output
    assert "did not end in time" not in session.output


@pytest.mark.parametrize("how", ["join", "await"])
def test_ctrl_c_while_a_failed_group_is_stopped(
    open_session: type[Session], start_method: str, how: str
) -> None:
    job, grace = "fail_beside_a_stubborn_one", str(10 * DEADLOCK)
    session = open_session(job, start_method, grace, how)  # type: ignore[arg-type]
    pids = session.pids()
    with Watched(pids) as workers:
        os.kill(pids[0], signal.SIGUSR1)
        session.read_until("told to end")
        session.press_ctrl_c()
        assert session.finish() == 130
        assert workers.alive() == []
    assert_quiet(session)
