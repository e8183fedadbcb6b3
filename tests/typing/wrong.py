"""Wrong uses of the public names: a checker must find each, or it calls the comment unused.

Never run: ``test_checkers.py`` shows it to mypy and pyright.
"""

from __future__ import annotations

from typing import Any

import rankspawn
from rankspawn import MultiprocessContext, spawn
from rankspawn.compat import torch as mp


def nothing() -> int:
    return 1


def two(number: int, text: str) -> float:
    return float(number) + len(text)


def with_default(number: int, text: str = "a", *, scale: int = 3) -> float:
    return number * scale + len(text)


class Model:
    def train(self, steps: int) -> str:
        return str(steps)


def arguments(values: dict[str, Any]) -> None:
    spawn()  # type: ignore[call-overload]
    spawn(3)  # type: ignore[call-overload]
    spawn(two)  # type: ignore[arg-type]
    spawn(two, nprocs=2)  # type: ignore[arg-type]
    spawn(two, ())  # type: ignore[arg-type]
    spawn(two, (1,))  # type: ignore[arg-type]
    spawn(two, ("a", 1))  # type: ignore[arg-type]
    spawn(two, (1, "a", 2))  # type: ignore[arg-type]
    spawn(two, args=(1,), nprocs=2, backend="gloo")  # type: ignore[call-overload]
    spawn(nothing, (1,))  # type: ignore[arg-type]
    spawn(with_default)  # type: ignore[arg-type]
    spawn(with_default, ("a",))  # type: ignore[arg-type]
    spawn(with_default, (1, 2))  # type: ignore[arg-type]
    spawn(with_default, (1, "a", 3))  # type: ignore[arg-type]
    spawn(Model().train)  # type: ignore[arg-type]
    spawn(Model().train, ("a",))  # type: ignore[arg-type]
    spawn(Model.train, (1,))  # type: ignore[arg-type]
    spawn(two, "ab")  # type: ignore[call-overload]
    spawn(two, 1)  # type: ignore[call-overload]
    spawn(two, range(2))  # type: ignore[call-overload]
    spawn(two, (1, "a"), "2")  # type: ignore[arg-type]
    spawn(two, (1, "a"), nprocs=None)  # type: ignore[call-overload]
    spawn(two, ("a",), **values, nprocs="2")  # type: ignore[arg-type]


def options() -> None:
    spawn(two, (1, "a"), backend="glue")  # type: ignore[call-overload]
    spawn(two, (1, "a"), timeout="3")  # type: ignore[call-overload]
    spawn(two, (1, "a"), time_out=3)  # type: ignore[call-overload]
    spawn(two, [1, "a"], time_out=3)  # type: ignore[call-overload]
    spawn(nothing, time_out=3)  # type: ignore[call-overload]
    spawn(two, (1,), kwargs={"text": "a"}, time_out=3)  # type: ignore[call-overload]
    spawn(two, (1,), kwargs={"text": "a"}, timeout="3")  # type: ignore[call-overload]
    spawn(two, (1,), kwargs=[("text", "a")])  # type: ignore[call-overload]
    spawn(two, (1,), kwargs={1: "a"})  # type: ignore[dict-item]
    spawn(two, rank_args=[1, 2])  # type: ignore[list-item]
    spawn(two, rank_args=["ab"])  # type: ignore[list-item]
    spawn(nothing, start_method="vfork")  # type: ignore[call-overload]
    spawn(nothing, device_visibility="none")  # type: ignore[call-overload]
    spawn(nothing, gpus=2)  # type: ignore[call-overload]
    spawn(nothing, gpus=[1.0])  # type: ignore[list-item]
    spawn(nothing, ips=1)  # type: ignore[call-overload]
    spawn(nothing, env={"A": 1})  # type: ignore[dict-item]
    spawn(nothing, env=["A=1"])  # type: ignore[call-overload]
    spawn(nothing, log_dir=3)  # type: ignore[call-overload]
    spawn(nothing, max_restarts=1.0)  # type: ignore[call-overload]
    spawn(nothing, tee=1)  # type: ignore[call-overload]
    spawn(nothing, print_config="yes")  # type: ignore[call-overload]
    spawn(nothing, prefix=1)  # type: ignore[call-overload]
    spawn(nothing, selected_gpu="0")  # type: ignore[call-overload]


async def results() -> None:
    context = spawn(two, (1, "a"), join=False)
    text: list[str] = context.results()  # type: ignore[assignment]
    item: str = context.return_queues[0].get()  # type: ignore[assignment]
    number: int = context.error_queues[0].get()  # type: ignore[assignment]
    other: MultiprocessContext[str] = context  # type: ignore[assignment]
    done: list[float] = await context  # type: ignore[assignment]
    with spawn(nothing) as inner:
        texts: list[str] = inner.results()  # type: ignore[assignment]
    context.join(timeout="3")  # type: ignore[arg-type]
    context.joyn()  # type: ignore[attr-defined]
    print(text, item, number, other, done, texts)


def in_a_worker() -> None:
    rankspawn.report("half")  # type: ignore[arg-type]
    rank: str = rankspawn.get_rank()  # type: ignore[assignment]
    print(rank, rankspawn.ParallelEnv().rnk)  # type: ignore[attr-defined]
    rankspawn.spwan(nothing)  # type: ignore[operator]


def train(index: int, rate: float) -> str:
    return f"{index}{rate}"


def torchs_names() -> None:
    mp.spawn(nothing)  # type: ignore[arg-type]
    mp.spawn(train)  # type: ignore[arg-type]
    mp.spawn(train, ("a",))  # type: ignore[arg-type]
    mp.spawn(train, (1, 0.1))  # type: ignore[arg-type]
    mp.spawn(train, (0.1,), backend="gloo")  # type: ignore[call-overload]
    mp.spawn(train, (0.1,)).results()  # type: ignore[union-attr]
    mp.start_processes(train, (0.1,), start_method="vfork")  # type: ignore[call-overload]
    numbers: list[int] = mp.start_processes(train, (0.1,), join=False).results()  # type: ignore[assignment]
    print(numbers)
