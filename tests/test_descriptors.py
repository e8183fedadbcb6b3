"""Which descriptors a forked process keeps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from rankspawn.descriptors import Owned, handed_over


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
    one = Owned(os.open(os.devnull, os.O_RDONLY))
    yield one
    one.close()


def test_a_fork_drops_what_is_owned(owned: Owned) -> None:
    fd = owned.fileno()

    assert in_a_fork(lambda: is_open(fd)) == 0
    assert is_open(fd)


def test_a_fork_keeps_what_it_is_given(owned: Owned) -> None:
    fd = owned.fileno()

    with handed_over([fd]):
        assert in_a_fork(lambda: is_open(fd)) == 1


def test_what_is_given_to_one_fork_is_not_given_to_its_own_forks(owned: Owned) -> None:
    fd = owned.fileno()

    def fork_again() -> int:
        other = Owned(os.dup2(0, fd))  # the same number for another one, which stays here
        assert not other.closed
        return in_a_fork(lambda: is_open(fd))

    with handed_over([fd]):
        assert in_a_fork(fork_again) == 0
