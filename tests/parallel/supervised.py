"""What ranks of these tests run under a supervisor; it loads nothing, as each of them would."""

from __future__ import annotations

import os
import signal

import rankspawn


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
