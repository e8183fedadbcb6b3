"""Which descriptors a forked process keeps, and one that ends waits."""

from __future__ import annotations

import fcntl
import os
import select
import threading
from collections.abc import Callable, Iterator

import pytest

from rankspawn.descriptors import Owned, Waker, kept_in_fork, write_patiently


def in_a_fork(answer: Callable[[], int]) -> int:
    """What a forked copy of this process answers, from 0 to 250."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            code = answer()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.fixture
def owned() -> Iterator[Owned]:
    owned = Owned(os.open(os.devnull, os.O_RDONLY))
    yield owned
    owned.close()


def test_a_fork_drops_what_is_owned(owned: Owned) -> None:
    fd = owned.fileno()

    assert in_a_fork(lambda: is_open(fd)) == 0
    assert is_open(fd)


def test_a_fork_keeps_what_it_is_given(owned: Owned) -> None:
    fd = owned.fileno()

    with kept_in_fork([fd]):
        assert in_a_fork(lambda: is_open(fd)) == 1


def test_what_is_given_to_one_fork_is_not_given_to_its_own_forks(owned: Owned) -> None:
    fd = owned.fileno()

    def fork_again() -> int:
        other = Owned(os.dup2(0, fd))  # the same number for another one, which stays here
        assert not other.closed
        return in_a_fork(lambda: is_open(fd))

    with kept_in_fork([fd]):
        assert in_a_fork(fork_again) == 0


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_a_waker_is_readable_until_it_is_cleared() -> None:
    waker = Waker()
    waker.clear()
    assert not is_readable(waker.fileno())

    waker.wake()
    waker.wake()
    assert is_readable(waker.fileno())

    waker.clear()
    assert not is_readable(waker.fileno())
    waker.close()


def test_a_closed_waker_wakes_nobody_who_has_its_number_now() -> None:
    waker = Waker()
    fd = waker.fileno()
    waker.close()
    other = Waker()

    waker.wake()
    waker.close()

    assert other.fileno() == fd
    assert not is_readable(fd)
    other.close()


def test_a_waker_does_nothing_in_a_fork_even_if_a_thread_was_using_it() -> None:
    waker = Waker()

    def use() -> int:
        waker.wake()
        waker.close()
        return 7

    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with waker._using:
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    answer = in_a_fork(use)
    release.set()
    holder.join()
    waker.close()

    assert answer == 7


def test_a_descriptor_that_does_not_wait_is_waited_for_whatever_its_number() -> None:
    read, low = os.pipe2(os.O_NONBLOCK)
    try:
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1024)
    except OSError:
        pytest.skip("there may be no descriptor above 1,023")
    filling = os.write(high, b"x" * (1 << 20))
    reader = threading.Timer(0.1, os.read, (read, filling))
    reader.start()

    assert write_patiently(high, b"more") == 4
    reader.join()
    for fd in (read, low, high):
        os.close(fd)
