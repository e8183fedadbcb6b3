"""What spawn is asked to run: coroutines are run, and what no rank could call is refused."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import rankspawn
from rankspawn import ProcessRaisedException
from rankspawn.functions import check_func
from rankspawn.options import read_options


def wants_rank(rank: int, rate: float) -> None:
    pass


def wants_local_rank(rate: float, *, local_rank: int) -> None:
    pass


def may_have_rank(rate: float, rank: int = 0) -> None:
    pass


def generate() -> Iterator[int]:
    yield 1


async def generate_in_loop() -> AsyncIterator[int]:
    yield 1


async def add(x: int, y: int = 0) -> int:
    return x + y + rankspawn.get_rank()


def call(func: Callable[[], Any]) -> Any:
    return func()


async def divide(x: int) -> float:
    return 1 / x


class Generates:
    def __call__(self) -> Iterator[int]:
        yield 1


class Waits:
    async def __call__(self) -> int:
        return 7


def check(func: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
    return check_func(func, args, read_options(options))


@pytest.mark.parametrize(
    "call",
    [
        lambda: check(wants_rank, 0.1),
        lambda: check(wants_local_rank, 0.1),
        lambda: check(wants_rank, kwargs={"rate": 0.1}),
        lambda: check(functools.partial(wants_rank, rate=0.1)),
    ],
    ids=["before the others", "by name", "beside kwargs", "partial"],
)
def test_a_rank_that_nobody_gives(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"parameter '(local_)?rank'.*rankspawn\.get_rank\(\)"):
        call()


@pytest.mark.parametrize(
    ("func", "args", "options"),
    [
        (wants_rank, (0, 0.1), {}),
        (wants_rank, (0.1,), {"kwargs": {"rank": 3}}),
        (wants_rank, (), {"rank_args": [(0, 0.1)]}),
        (wants_local_rank, (0.1,), {"rank_kwargs": [{"local_rank": 0}]}),
        (may_have_rank, (0.1,), {}),
        (wants_rank, (), {}),  # two are missing: Python's own error says which
        (print, (), {}),
        (dict.fromkeys, (1,), {}),
    ],
)
def test_what_can_be_called_is_left_alone(
    func: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    assert check(func, *args, **options) is func


@pytest.mark.parametrize(
    "func",
    [generate, generate_in_loop, Generates(), functools.partial(generate)],
    ids=["def", "async def", "object", "partial"],
)
def test_a_generator_function_is_refused(func: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="func is a generator function"):
        rankspawn.spawn(func, nprocs=1, backend="cpu")


def test_a_coroutine_function_runs_in_an_event_loop(run: Callable[..., Any]) -> None:
    rows = {"rank_args": [(10,), (20,)], "rank_kwargs": [{"y": 1}, {"y": 2}]}
    assert run(add, **rows).results() == [11, 23]


def test_an_object_that_is_called_so() -> None:
    waits: Callable[[], Any] = Waits()
    assert rankspawn.spawn(waits, nprocs=1, backend="cpu", start_method="fork").results() == [7]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize(
    ("func", "advice"),
    [
        (functools.partial(add, 1), "give the async def itself, or asyncio.run it"),
        (generate, "return a list of that"),
        (generate_in_loop, "return a list of that"),
    ],
    ids=["coroutine", "generator", "async generator"],
)
def test_a_function_that_calls_one_of_these(func: Callable[[], Any], advice: str) -> None:
    with pytest.raises(ProcessRaisedException, match=f"cannot be sent back to.*{advice}"):
        rankspawn.spawn(call, args=(func,), nprocs=1, backend="cpu", start_method="fork")


def test_the_traceback_of_a_coroutine_begins_in_it() -> None:
    with pytest.raises(ProcessRaisedException, match="ZeroDivisionError") as caught:
        rankspawn.spawn(divide, args=(0,), nprocs=1, backend="cpu", start_method="fork")
    assert "in divide" in caught.value.traceback
    assert "asyncio" not in caught.value.traceback


# Not in this process: pytest may load anything.
PARENT = """
import sys
from rankspawn.functions import check_func
from rankspawn.options import read_options

async def add(x):
    pass

check_func(add, (1,), read_options({}))
print("asyncio" in sys.modules)
"""


def test_the_parent_does_not_load_asyncio_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, check=True)
    assert done.stdout == b"False\n"
