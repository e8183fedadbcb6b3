"""Actors as Dask runs them: what is ``async`` in a loop of their worker, all else in one thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from inspect import iscoroutinefunction
from typing import Any


class Worker:
    """Runs methods of all its actors."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        if iscoroutinefunction(function):
            return asyncio.run_coroutine_threadsafe(function(*args), self._loop)
        return self._thread.submit(function, *args)


class Proxy:
    """An actor, for who made it."""

    def __init__(self, worker: Worker, actor: Any) -> None:
        self._worker, self._actor = worker, actor

    def __getattr__(self, name: str) -> Callable[..., Future[Any]]:
        return partial(self._worker.run, getattr(self._actor, name))


class Client:
    """What connects to the workers of a cluster."""

    def __init__(self, workers: int) -> None:
        self._workers = {f"tcp://worker{number}": Worker() for number in range(workers)}

    def scheduler_info(self, _: int) -> dict[str, dict[str, Worker]]:
        return {"workers": self._workers}

    def submit(self, kind: type, *args: object, workers: str, actor: bool) -> Future[Proxy]:
        assert actor
        worker = self._workers[workers]
        return worker.run(lambda: Proxy(worker, kind(*args)))
