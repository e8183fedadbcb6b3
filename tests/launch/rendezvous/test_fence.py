"""Workers die with the lease, whatever became of their launcher."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rankspawn.launch.rendezvous import wire
from rankspawn.launch.rendezvous.client import MasterStore
from rankspawn.launch.rendezvous.fence import Fence, FenceError, now
from rankspawn.launch.rendezvous.last_word import give_back, nobody_is_left, words_of
from rankspawn.launch.rendezvous.master import Master
from rankspawn.workers.marker import VARIABLE, new_mark
from tests.jobs import DEADLOCK
from tests.launch.members import is_alive, wait_gone
from tests.ports import free_port

# A program with a fence and two workers of different marks; it prints their ids, and then does
# nothing. Only the first mark is guarded.
LAUNCHER = """
import os, subprocess, sys, time
from rankspawn.launch.rendezvous.fence import Fence
from rankspawn.launch.rendezvous.fence import now
from rankspawn.workers.marker import VARIABLE, new_mark

marks = [new_mark(), new_mark()]
fence = Fence()
fence.extend(now() + float(sys.argv[1]))
fence.guard(marks[0])
workers = [subprocess.Popen(["sleep", "1000"], env={VARIABLE: mark}) for mark in marks]
print(*[worker.pid for worker in workers], fence._process.pid, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def mark() -> str:
    return new_mark()


@pytest.fixture
def fence(mark: str) -> Iterator[Fence]:
    fence = Fence()
    yield fence
    fence.release(mark)
    fence.close()


@pytest.fixture
def worker(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"], env={**os.environ, VARIABLE: mark})
    yield process
    process.kill()
    process.wait()


def test_kills_when_the_time_has_passed(
    fence: Fence, mark: str, worker: subprocess.Popen[bytes]
) -> None:
    fence.extend(now() + 0.3)
    fence.guard(mark)
    assert worker.wait(DEADLOCK) == -signal.SIGKILL


def test_kills_at_once_what_it_gets_to_guard_too_late(
    fence: Fence, mark: str, worker: subprocess.Popen[bytes]
) -> None:
    fence.guard(mark)
    assert worker.wait(DEADLOCK) == -signal.SIGKILL


def test_goes_on_killing_until_the_lease_is_good_again(fence: Fence, mark: str) -> None:
    fence.guard(mark)
    for _ in range(2):
        late = subprocess.Popen(["sleep", "1000"], env={**os.environ, VARIABLE: mark})
        assert late.wait(DEADLOCK) == -signal.SIGKILL


def test_leaves_alone_who_was_released(
    fence: Fence, mark: str, worker: subprocess.Popen[bytes]
) -> None:
    other = new_mark()
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, VARIABLE: other}) as guarded:
        fence.extend(now() + DEADLOCK)
        fence.guard(mark)
        fence.guard(other)
        fence.release(mark)
        fence.extend(now())
        assert guarded.wait(DEADLOCK) == -signal.SIGKILL
    fence.release(other)
    assert worker.poll() is None


def test_ends_at_once_when_it_guards_nobody(mark: str) -> None:
    fence = Fence()
    fence.extend(now() + DEADLOCK)
    fence.guard(mark)
    fence.release(mark)
    pid = fence._process.pid
    fence.close()
    assert wait_gone(pid)
    with pytest.raises(FenceError):
        fence.guard(mark)


def test_does_not_hear_the_signals_of_a_terminal(
    fence: Fence, mark: str, worker: subprocess.Popen[bytes]
) -> None:
    fence.extend(now() + DEADLOCK)
    fence.guard(mark)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(fence._process.pid, number)
    fence.extend(now())
    assert worker.wait(DEADLOCK) == -signal.SIGKILL


# A launcher with a fence that may give its lease back, and a worker; it ends when told to.
WITH_LEASE = """
import os, subprocess, sys
from rankspawn.launch.rendezvous.fence import Fence, now
from rankspawn.workers.marker import VARIABLE, new_mark

mark, fence = new_mark(), Fence()
fence.extend(now() + float(sys.argv[2]))
fence.give_back(sys.argv[1])
fence.guard(mark)
worker = subprocess.Popen(["sleep", "1000"], env={VARIABLE: mark}, stdout=subprocess.DEVNULL)
print(worker.pid, fence._process.pid, flush=True)
if input() == "close":
    fence.close()
os._exit(0)
"""
KEY = wire.derive_key("a secret of sixteen letters", "job")


@pytest.fixture
def store() -> Iterator[MasterStore]:
    """The store of a master of this process."""
    master = Master("127.0.0.1", 0, KEY)
    store = MasterStore(master.host, master.port, KEY)
    yield store
    store.close()
    master.close()


def end_launcher(store: MasterStore, lease: int, word: str, seconds: float) -> tuple[int, int]:
    """The process ids of the worker and the fence of a launcher that ended with this word."""
    command = [sys.executable, "-c", WITH_LEASE, words_of(store, lease), str(seconds)]
    done = subprocess.run(
        command, input=f"{word}\n", stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLOCK
    )
    worker, fence = map(int, done.stdout.split())
    return worker, fence


def test_gives_the_lease_of_a_dead_launcher_back_when_nobody_is_left(store: MasterStore) -> None:
    lease = store.grant(100.0).id
    revision = store.put("node/a", "x", lease=lease)

    worker, fence = end_launcher(store, lease, "die", 2 * DEADLOCK)
    assert is_alive(worker)
    assert store.get("node/a") is not None, "its worker lives"
    os.kill(worker, signal.SIGKILL)

    assert store.changes("node/", revision, wait=30).deleted == ("node/a",)
    assert wait_gone(fence)


def test_keeps_the_lease_of_a_launcher_that_lives_on(store: MasterStore) -> None:
    lease = store.grant(100.0).id
    store.put("node/a", "x", lease=lease)

    worker, fence = end_launcher(store, lease, "close", 0.5)
    assert wait_gone(worker), "its time has passed"
    assert wait_gone(fence)

    assert store.get("node/a") is not None


def test_the_last_word(store: MasterStore, mark: str, worker: subprocess.Popen[bytes]) -> None:
    assert not nobody_is_left({new_mark(), mark})
    assert worker.poll() is None
    worker.kill()
    worker.wait()
    assert nobody_is_left({new_mark(), mark})

    lease = store.grant(100.0).id
    store.put("node/a", "x", lease=lease)
    assert give_back(words_of(store, lease))
    assert store.get("node/a") is None
    assert not give_back(f"127.0.0.1 {free_port()} {KEY.hex()} {lease}"), "nobody heard of it"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_acts_for_a_launcher_that_is_dead_or_stopped(number: signal.Signals) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, "2.0"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert launcher.stdout is not None
    try:
        assert select.select([launcher.stdout], [], [], DEADLOCK)[0]
        guarded, other, fence = map(int, launcher.stdout.readline().split())
        launcher.send_signal(number)
        assert wait_gone(guarded)
        assert is_alive(other), "somebody else's process was killed"
    finally:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
        launcher.stdout.close()
    assert wait_gone(fence)
