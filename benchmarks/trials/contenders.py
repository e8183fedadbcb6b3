"""One function per contender that starts n workers on a function and waits for their end.

All of them do the same: ``launch(func, args, nprocs)`` returns when no worker is left. Some
pass the rank as an additional first argument, so worker functions look at their arguments
from the end. Frameworks are imported when a launcher is made, which is not timed: this
favours them, because rankspawn's caller needs no framework.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

Func = Callable[..., Any]


@dataclass(frozen=True)
class Done:
    """What came back, and when it was all there (monotonic seconds)."""

    results: Sequence[Any] = ()
    at: float = field(default_factory=time.monotonic)


Launch = Callable[[Func, Sequence[Any], int], Done]


def launcher(name: str, preload: Sequence[str] = (), **options: Any) -> Launch:
    """The launcher of ``family`` or ``family method``, such as ``torch spawn``.

    More options are those of ``rankspawn.spawn``, and for nobody else.
    """
    family, _, method = name.partition(" ")
    makers: dict[str, Callable[[str, Sequence[str]], Launch]] = {
        "rankspawn": partial(_rankspawn, more=options),
        "multiprocessing": _multiprocessing,
        "torch": _torch,
        "Paddle": _paddle,
        "concurrent.futures": _futures,
        "loky": _loky,
        "torchrunx": _torchrunx,
        "bare": _bare,
    }
    return makers[family](method, preload)


def _rankspawn(method: str, preload: Sequence[str], more: Mapping[str, Any]) -> Launch:
    rankspawn = importlib.import_module("rankspawn")
    options = dict(more)
    if method == "forkserver":
        options["preload"] = list(preload)

    def launch(func: Func, args: Sequence[Any], nprocs: int) -> Done:
        context = rankspawn.spawn(
            func, args=args, nprocs=nprocs, backend="gloo", start_method=method, **options
        )
        return Done(context.results())

    return launch


def _multiprocessing(method: str, preload: Sequence[str]) -> Launch:
    mp = importlib.import_module("multiprocessing").get_context(method)
    if method == "forkserver":
        mp.set_forkserver_preload(["__main__", *preload])

    def launch(func: Func, args: Sequence[Any], nprocs: int) -> Done:
        processes = [mp.Process(target=func, args=args) for _ in range(nprocs)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        _check(all(process.exitcode == 0 for process in processes))
        return Done()

    return launch


def _torch(method: str, _: Sequence[str]) -> Launch:
    torch_mp = importlib.import_module("torch.multiprocessing")

    def launch(func: Func, args: Sequence[Any], nprocs: int) -> Done:
        torch_mp.start_processes(func, args=tuple(args), nprocs=nprocs, start_method=method)
        return Done()

    return launch


def _paddle(_: str, __: Sequence[str]) -> Launch:
    distributed = importlib.import_module("paddle.distributed")

    def launch(func: Func, args: Sequence[Any], nprocs: int) -> Done:
        distributed.spawn(func, args=tuple(args), nprocs=nprocs, backend="gloo")
        return Done()

    return launch


def _futures(method: str, _: Sequence[str]) -> Launch:
    futures = importlib.import_module("concurrent.futures")
    mp = importlib.import_module("multiprocessing").get_context(method)
    return partial(_run_in_pool, lambda n: futures.ProcessPoolExecutor(n, mp_context=mp))


def _loky(_: str, __: Sequence[str]) -> Launch:
    loky = importlib.import_module("loky")
    return partial(_run_in_pool, loky.ProcessPoolExecutor)


def _run_in_pool(make: Callable[[int], Any], func: Func, args: Sequence[Any], nprocs: int) -> Done:
    with make(nprocs) as pool:
        submitted = [pool.submit(func, *args) for _ in range(nprocs)]
        return Done([future.result() for future in submitted])


def _torchrunx(_: str, __: Sequence[str]) -> Launch:
    torchrunx = importlib.import_module("torchrunx")

    def launch(func: Func, args: Sequence[Any], nprocs: int) -> Done:
        one = torchrunx.Launcher(hostnames=["localhost"], workers_per_host=nprocs, backend=None)
        return Done(list(one.run(func, *args).results["localhost"]))

    return launch


def _bare(kind: str, _: Sequence[str]) -> Launch:
    """Interpreters that end at once: the least that n fresh workers can cost.

    Those ``with NumPy`` import it first, as every worker does that gets an array.
    """
    code = "import numpy" if kind.endswith("with NumPy") else "pass"
    command = [sys.executable, "-c", code]

    def launch(_: Func, __: Sequence[Any], nprocs: int) -> Done:
        started = [
            subprocess.Popen(command, env=os.environ, stdin=subprocess.DEVNULL)
            for _ in range(nprocs)
        ]
        _check(all(one.wait() == 0 for one in started))
        return Done()

    return launch


def _check(went_well: bool) -> None:
    if not went_well:
        raise RuntimeError("a worker failed; what it took says nothing")
