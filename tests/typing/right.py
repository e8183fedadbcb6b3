"""Right uses of the public names: no checker may refuse one, and each knows what comes back.

Never run: ``test_checkers.py`` shows it to mypy and pyright.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack, assert_type

import rankspawn
from rankspawn import MultiprocessContext, Options, spawn
from rankspawn.compat import torch as mp

T = TypeVar("T")


def nothing() -> int:
    return 1


def two(number: int, text: str) -> float:
    return float(number) + len(text)


def with_default(number: int, text: str = "a", *, scale: int = 3) -> float:
    return number * scale + len(text)


def all_defaults(number: int = 1) -> float:
    return number


def any_number(*numbers: int) -> int:
    return sum(numbers)


def wide(number: float, texts: object) -> bytes:
    return f"{number}{texts}".encode()


def untyped(first: Any, second: Any = 2) -> Any:
    return first, second


def same(item: T) -> T:
    return item


class Model:
    def __init__(self, size: int, depth: int = 1) -> None:
        self.size, self.depth = size, depth

    def train(self, steps: int, rate: float = 0.1) -> str:
        return f"{steps}{rate}"

    def __call__(self, batch: int) -> bytes:
        return bytes(batch)

    @staticmethod
    def load(name: str) -> int:
        return len(name)


def functions_with_their_arguments() -> None:
    assert_type(spawn(nothing), MultiprocessContext[int])
    assert_type(spawn(nothing, ()), MultiprocessContext[int])
    assert_type(spawn(two, (1, "a")), MultiprocessContext[float])
    assert_type(spawn(two, (1, "a"), 2, False, True), MultiprocessContext[float])
    assert_type(spawn(two, args=(1, "a"), nprocs=2).results(), list[float])
    assert_type(spawn(with_default, (1,)), MultiprocessContext[float])
    assert_type(spawn(with_default, (1, "b")), MultiprocessContext[float])
    assert_type(spawn(all_defaults), MultiprocessContext[float])
    assert_type(spawn(all_defaults, (1,)), MultiprocessContext[float])
    assert_type(spawn(any_number), MultiprocessContext[int])
    assert_type(spawn(any_number, (1, 2, 3)), MultiprocessContext[int])
    assert_type(spawn(wide, (1, ["a"])), MultiprocessContext[bytes])
    assert_type(spawn(same, (1,)), MultiprocessContext[int])
    spawn(untyped, (1,))
    spawn(untyped, (1, 2))


def other_callables() -> None:
    assert_type(spawn(Model(1).train, (1,)), MultiprocessContext[str])
    assert_type(spawn(Model(1).train, (1, 0.5)), MultiprocessContext[str])
    assert_type(spawn(Model(1), (1,)), MultiprocessContext[bytes])
    assert_type(spawn(Model.load, ("a",)), MultiprocessContext[int])
    assert_type(spawn(Model, (1,)), MultiprocessContext[Model])
    assert_type(spawn(Model, (1, 2)), MultiprocessContext[Model])
    assert_type(spawn(partial(two, 1), ("a",)), MultiprocessContext[float])
    assert_type(spawn(partial(two, 1, "a")), MultiprocessContext[float])
    assert_type(spawn(partial(two, text="a"), (1,)), MultiprocessContext[float])
    assert_type(spawn(lambda: 1), MultiprocessContext[int])
    spawn(lambda number: number + 1, (1,))
    spawn(lambda number, scale: number * scale, (1, 2.0))
    spawn(lambda *numbers: numbers, (1, 2))
    spawn(print)
    spawn(print, ("a", 1))
    spawn(exec, ("1",))
    spawn(os.getpid)
    spawn(os.getenv, ("RANK",))
    spawn(time.sleep, (1,))
    spawn(max, (1, 2))
    spawn(pow, (1, 2))
    spawn(int, ("1",))
    spawn(sum, ([1, 2],))


def lists_are_not_looked_into() -> None:
    assert_type(spawn(two, [1, "a"]), MultiprocessContext[float])
    assert_type(spawn(with_default, [1]), MultiprocessContext[float])
    assert_type(spawn(nothing, []), MultiprocessContext[int])
    assert_type(spawn(Model, args=[1]), MultiprocessContext[Model])
    assert_type(spawn(partial(two, 1), ["a"]), MultiprocessContext[float])
    spawn(lambda number: number + 1, [1])
    spawn(max, [1, 2])


def arguments_that_come_otherwise() -> None:
    assert_type(spawn(two, (1,), kwargs={"text": "a"}), MultiprocessContext[float])
    assert_type(spawn(two, kwargs={"number": 1, "text": "a"}), MultiprocessContext[float])
    assert_type(spawn(two, [1], kwargs={"text": "a"}), MultiprocessContext[float])
    assert_type(spawn(two, rank_args=[(1, "a"), (2, "b")]), MultiprocessContext[float])
    assert_type(spawn(two, (1,), rank_args=[["a"]], kwargs=None), MultiprocessContext[float])
    spawn(two, rank_args=zip([1, 2], "ab", strict=True), nprocs=2)
    spawn(two, (1, "a"), kwargs=None, rank_args=None)


def options() -> None:
    spawn(nothing, nprocs=2, join=False, daemon=True, backend="gloo", start_method="fork")
    spawn(nothing, gpus="4,5")
    spawn(nothing, gpus=[4, 5], device_visibility="own", numa="node")
    spawn(nothing, xpus=range(2))
    spawn(nothing, devices=("0", 1), device_type="npu")
    spawn(nothing, ips=["10.0.0.1", "10.0.0.2"], print_config=True)
    spawn(nothing, env={"A": "1", "B": None})
    spawn(nothing, env=lambda rank: {"A": str(rank)})
    spawn(nothing, timeout=3, grace_period=0.5, max_restarts=1, threads_per_rank=2)
    spawn(nothing, log_dir=Path("log"), tee=[0, 3], prefix="[{rank}] ", progress=True)
    spawn(nothing, log_dir="log", tee="0", debug=0)
    spawn(nothing, preload=["numpy"], start_method="forkserver")
    spawn(nothing, selected_gpus="0", cluster_node_ips="a", node_ip="a", started_port=6070)
    spawn(nothing, selected_devices="0", use_paddlecloud=True)
    spawn(nothing, timeout=None, backend=None, gpus=None, env=None, tee=None)


def who_passes_on(
    func: Callable[..., int],
    args: tuple[Any, ...],
    values: dict[str, Any],
    **given: Unpack[Options],
) -> None:
    assert_type(spawn(func, args), MultiprocessContext[int])
    assert_type(spawn(func, (1, 2), **given), MultiprocessContext[int])
    assert_type(spawn(func, args, **given), MultiprocessContext[int])
    spawn(two, args)
    spawn(two, (1, "a"), **given)
    spawn(nothing, **given)
    spawn(two, (1, "a"), **values)
    spawn(two, (1,), **values)
    spawn(two, **values)
    spawn(**values)
    on_the_cpu = partial(spawn, backend="gloo")
    on_the_cpu(two, (1, "a"))


def what_is_known_of_nothing(func: Any, args: Any) -> None:
    spawn(func)
    spawn(func, args)
    spawn(func, (1, 2))
    spawn(two, args)


async def the_context() -> None:
    with spawn(two, (1, "a"), join=False) as context:
        assert_type(context, MultiprocessContext[float])
        assert_type(context.return_queues[0].get(), float)
        assert_type(context.return_queues[0].get_nowait(), float)
        assert_type(context.error_queues[0].get(timeout=1.0), str)
        assert_type(context.join(1.0), bool)
        assert_type(await context, bool)
        assert_type(context.results(), list[float])
        assert_type(context.pids(), list[int])
        assert_type(context.exitcodes(), list[int | None])
        assert_type(context.dump_stacks(), dict[int, str])
    takes_contexts(spawn(nothing), context)


def takes_contexts(of_floats: MultiprocessContext[float], of_any: MultiprocessContext) -> None:
    """A context of ints is one of floats, and the bare name one of anything."""
    assert_type(of_any.results(), list[Any])
    assert_type(of_floats.results(), list[float])


def errors(error: rankspawn.ProcessException) -> None:
    assert_type(error.failures, tuple[rankspawn.ProcessException, ...])
    if isinstance(error, rankspawn.ProcessRaisedException):
        assert_type(error.exception, BaseException | None)
    if isinstance(error, rankspawn.SpawnTimeoutError):
        assert_type(error.stacks, dict[int, str])


def in_a_worker() -> None:
    place = rankspawn.ParallelEnv()
    assert_type(place.rank, int)
    assert_type(place.trainer_endpoints, list[str])
    assert_type(rankspawn.get_rank(), int)
    rankspawn.report(1, total=10, loss=0.5, name="x")
    rankspawn.report(step=0.5)


def train(index: int, rate: float, name: str = "a") -> str:
    return f"{index}{rate}{name}"


def alone(index: int) -> int:
    return index


def torchs_names(wait: bool) -> None:
    mp.spawn(alone)
    mp.spawn(train, (0.1,), 2)
    mp.spawn(train, args=(0.1, "b"), nprocs=2, join=True, daemon=True)
    mp.spawn(train, [0.1], nprocs=2)
    mp.spawn(lambda index, rate: index * rate, args=(0.1,))
    assert_type(mp.spawn(alone, nprocs=2, join=False), mp.ProcessContext[int])
    assert_type(mp.spawn(train, (0.1,), nprocs=2, join=False), mp.ProcessContext[str])
    assert_type(mp.spawn(train, [0.1], 2, join=False).results(), list[str])
    assert_type(mp.spawn(train, (0.1,), join=wait), mp.ProcessContext[str] | None)
    assert_type(mp.spawn(train, (0.1,), 2, wait), mp.ProcessContext[str] | None)
    context = mp.start_processes(train, (0.1,), join=False, start_method="fork")
    assert_type(context, mp.ProcessContext[str])
    named: mp.ProcessContext | mp.SpawnContext = context
    named.join()
