"""rankspawn.map: items dealt to ranks, results in order, failures by item."""

from __future__ import annotations

import os
from typing import Any

import pytest

import rankspawn
from rankspawn import (
    ProcessExceptionGroup,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnTimeoutError,
)
from tests import jobs

# The fastest way; one test goes through all of them.
FORK: Any = {"backend": "cpu", "start_method": "fork"}


def square(x: int, offset: int = 0) -> int:
    return x * x + offset


def which(_: object) -> tuple[int, int]:
    return rankspawn.get_rank(), rankspawn.get_world_size()


async def double(x: int) -> int:
    return 2 * x


def invert(x: float) -> float:
    if x == 7:
        os._exit(9)
    return 1 / x


def generate(x: int) -> Any:
    yield x


def hang(_: object) -> None:
    jobs.sleep_for_ever()


def test_results_are_in_the_order_of_the_items(start_method: str) -> None:
    options: Any = {"backend": "cpu", "start_method": start_method, "kwargs": {"offset": 1}}
    assert rankspawn.map(square, range(5), nprocs=2, **options) == [1, 2, 5, 10, 17]


def test_items_are_dealt_in_turn() -> None:
    dealt = rankspawn.map(which, "abcde", nprocs=2, **FORK)
    assert dealt == [(0, 2), (1, 2), (0, 2), (1, 2), (0, 2)]


def test_there_are_no_more_ranks_than_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM", "64")
    assert rankspawn.map(which, "a", **FORK) == [(0, 1)]


def test_a_rank_may_have_no_item() -> None:
    doubled: list[Any] = rankspawn.map(double, [3], nprocs=2, **FORK)
    assert doubled == [6]


def test_nothing_is_started_for_no_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankspawn.sweep.spawn_ranks", None)
    assert rankspawn.map(square, [], **FORK) == []


def test_the_first_failure_is_raised_and_names_its_item() -> None:
    with pytest.raises(ProcessRaisedException, match=r"rankspawn\.map was at item 2\.") as caught:
        rankspawn.map(invert, [1, 2, 0, 4], nprocs=1, **FORK)
    assert isinstance(caught.value.exception, ZeroDivisionError)


def test_all_others_are_done_if_it_goes_on() -> None:
    with pytest.raises(ProcessExceptionGroup, match="2 of 5 items have no result") as caught:
        rankspawn.map(invert, [1, 0, 2, 0, 4], nprocs=2, **FORK, on_failure="continue")

    assert caught.value.results == {0: 1.0, 2: 0.5, 4: 0.25}
    first, second = caught.value.exceptions
    assert isinstance(first, ProcessRaisedException)
    assert isinstance(first.exception, ZeroDivisionError)
    assert str(first).startswith("Item 1, on rank 1, failed with the following error:\nTraceback")
    assert "in invert" in str(first)
    assert "rankspawn/sweep.py" not in str(first)
    assert str(second).startswith("Item 3, on rank 1")


def test_a_rank_that_dies_takes_its_items_along() -> None:
    with pytest.raises(ProcessExceptionGroup, match="2 of 4 items") as caught:
        rankspawn.map(invert, [1, 2, 4, 7], nprocs=2, **FORK, on_failure="continue")
    assert caught.value.results == {0: 1.0, 2: 0.25}
    (error,) = caught.value.exceptions
    assert isinstance(error, ProcessExitedException)
    assert error.exit_code == 9


def test_it_goes_on_and_nothing_fails() -> None:
    assert rankspawn.map(invert, [1, 2], nprocs=1, **FORK, on_failure="continue") == [1, 0.5]


def test_its_time_may_be_over() -> None:
    options: Any = {"timeout": 0.3, "grace_period": 0, "on_failure": "continue"}
    with pytest.raises(SpawnTimeoutError):
        rankspawn.map(hang, [1], nprocs=1, **FORK, **options)


@pytest.mark.parametrize("name", ["rank_args", "rank_kwargs", "cluster", "ips"])
def test_what_a_sweep_decides_itself(name: str) -> None:
    options: Any = {name: ["x"]}
    with pytest.raises(ValueError, match=f"has no option {name!r}"):
        rankspawn.map(square, [1], **options)


def test_a_generator_function_is_refused() -> None:
    with pytest.raises(TypeError, match="generator function"):
        rankspawn.map(generate, [1], nprocs=1, **FORK)
    with pytest.raises(TypeError, match="func must be callable"):
        rankspawn.map(3, [1], nprocs=1, **FORK)  # type: ignore[arg-type]


def test_a_star_import_leaves_pythons_own_alone() -> None:
    assert "map" not in rankspawn.__all__
