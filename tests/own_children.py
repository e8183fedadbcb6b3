"""What a rank does that starts processes of its own; they import this, and little else."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from typing import Any

import rankspawn

# Set by a rank: a copy of the rank has it, and a fresh process has not.
in_rank = False


def default_method() -> str:
    return multiprocessing.get_start_method()


def describe() -> tuple[bool, str]:
    return in_rank, default_method()


def put_description(queue: Any) -> None:
    queue.put(describe())


def ask_process() -> tuple[bool, str]:
    queue: Any = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=put_description, args=(queue,))
    process.start()
    answer: tuple[bool, str] = queue.get()
    process.join()
    return answer


def ask_pool() -> tuple[bool, str]:
    with multiprocessing.Pool(1) as pool:
        return pool.apply(describe)


def ask_executor() -> tuple[bool, str]:
    with concurrent.futures.ProcessPoolExecutor(1) as executor:
        return executor.submit(describe).result()


def ask_children() -> list[tuple[bool, str]]:
    """What children of each kind are like."""
    global in_rank  # noqa: PLW0603 - the process is in this state
    in_rank = True
    return [ask_process(), ask_pool(), ask_executor()]


def spawn_in_rank(start_method: Any) -> list[str]:
    """The default of a rank of this rank."""
    context = rankspawn.spawn(default_method, nprocs=1, backend="gloo", start_method=start_method)
    return context.results()
