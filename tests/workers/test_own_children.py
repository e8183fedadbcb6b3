"""The processes that a rank starts by multiprocessing: by which method."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator

import pytest

from rankspawn import MultiprocessContext
from rankspawn.option_types import StartMethod
from tests.jobs import DEADLOCK
from tests.own_children import ask_children, default_method, spawn_in_rank

Run = Callable[..., MultiprocessContext]


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python's own default, which multiprocessing takes for set once it was used."""
    # In it is the Unix socket of a rank's own fork server, whose path has 107 bytes at most.
    monkeypatch.setenv("TMPDIR", "/tmp")
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(None, force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


# From 3.12 on Python warns of a fork beside the thread that a pool has.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_children_are_started_as_their_rank_was(run: Run, start_method: StartMethod) -> None:
    (answers,) = run(ask_children, nprocs=1, timeout=DEADLOCK).results()

    assert answers == [(start_method == "fork", start_method)] * 3


def test_a_default_that_was_only_used_is_nobodys_choice(
    run: Run, start_method: StartMethod
) -> None:
    multiprocessing.get_context()  # as every Queue() and Lock() does

    assert default_method() == multiprocessing.get_all_start_methods()[0]
    assert run(default_method, nprocs=1).results() == [start_method]


def test_what_the_program_has_set_is_the_ranks_too(run: Run) -> None:
    # Python's own comes first; set, it cannot be told from one that was only used.
    chosen = multiprocessing.get_all_start_methods()[-1]
    multiprocessing.set_start_method(chosen)

    assert run(default_method, nprocs=1).results() == [chosen]


@pytest.mark.parametrize("inner", ["spawn", "fork"])
def test_a_rank_of_a_rank_has_its_own(run: Run, inner: StartMethod) -> None:
    assert run(spawn_in_rank, args=(inner,), nprocs=1).results() == [[inner]]


def test_what_the_program_has_set_is_handed_on(run: Run) -> None:
    chosen = multiprocessing.get_all_start_methods()[-1]
    multiprocessing.set_start_method(chosen)

    assert run(spawn_in_rank, args=("fork",), nprocs=1).results() == [[chosen]]
