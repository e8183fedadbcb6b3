"""What ranks of these tests run under a supervisor; it loads nothing, as each of them would."""

from __future__ import annotations

import os
import signal
import threading
import time
from array import array
from typing import Any

import rankspawn
from tests.jobs import DEADLOCK


def raise_in_one_rank(how: str) -> None:
    comm = rankspawn.init_parallel_env()
    comm.barrier()
    if comm.rank == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("of rank 1")
    comm.barrier()


def raise_as_paddle_does() -> None:
    raise SystemError("of Paddle") from rankspawn.RankLostError("gone", 1, "all_reduce")


def return_in_one_rank() -> None:
    comm = rankspawn.init_parallel_env()
    if comm.rank == 0:
        comm.barrier()


def fail_once() -> list[str]:
    comm = rankspawn.init_parallel_env()
    comm.barrier()
    if comm.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("the first time")
    return comm.all_gather_object(f"rank {comm.rank}")


class Slow:
    """A result that takes until a file is there."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        deadline = time.monotonic() + DEADLOCK
        while not os.path.exists(self.path):
            assert time.monotonic() < deadline, "the other rank waits, too"
            time.sleep(0.01)
        return str, ("returned",)


def return_slowly(served: str, thread_goes_on: bool) -> Any:
    comm = rankspawn.init_parallel_env()
    comm.barrier()
    if comm.rank == 1:
        if thread_goes_on:
            threading.Thread(target=comm.all_reduce, args=(array("d", [1.0]),)).start()
        return Slow(served)
    try:
        found = f"{comm.all_reduce(array('d', [1.0]))[0]}"
    except rankspawn.RankLostError as error:
        found = str(error)
    open(served, "w").close()
    return found
