"""Which rank is where, and which one to look at first."""

from __future__ import annotations

import os
import time
from array import array
from typing import Any

import rankspawn
from rankspawn.supervise.failures import describe_stacks
from tests.jobs import DEADLOCK

WAITING = 'Thread 0x7f{rank} (most recent call first):\n  File "train.py", line 9 in all_reduce\n'
BUSY = 'Thread 0x7f1 (most recent call first):\n  File "train.py", line 3 in load_batch\n'


def test_the_rank_that_differs_is_said_first() -> None:
    stacks = {rank: WAITING.format(rank=rank) for rank in (0, 2, 3)} | {1: BUSY}

    lines = describe_stacks(stacks).splitlines()

    assert lines[0] == "rank 1 differs from the other 3, look there first:"
    assert lines[1] == "--- rank 1 ---"
    assert [line for line in lines if line.startswith("---")] == [
        f"--- rank {rank} ---" for rank in (1, 0, 2, 3)
    ]


def test_other_threads_than_the_main_one_do_not_hide_it() -> None:
    helper = 'Thread 0x7f9 (most recent call first):\n  File "log.py", line {rank} in write\n\n'
    stacks = {rank: helper.format(rank=rank) + WAITING for rank in (0, 2, 3)}

    text = describe_stacks({**stacks, 1: helper.format(rank=1) + BUSY})

    assert text.startswith("rank 1 differs from the other 3, look there first:")


def test_other_threads_count_where_the_main_ones_are_alike() -> None:
    stacks = dict.fromkeys((0, 2), WAITING) | {1: f"{BUSY}\n{WAITING}"}

    assert describe_stacks(stacks).startswith("rank 1 differs from the other 2")


def test_without_a_majority_nobody_is_blamed() -> None:
    assert describe_stacks({0: WAITING, 1: BUSY}).startswith("--- rank 0 ---")


def test_equal_stacks_are_equal_whatever_their_threads_are_called() -> None:
    stacks = {rank: WAITING.format(rank=rank) for rank in range(3)}

    assert "differs" not in describe_stacks(stacks)


HEAD = "Current thread 0x1 (most recent call first):\n"
OURS = '  File "/lib/rankspawn/parallel/{}.py", line 7 in {}\n'
USERS = '  File "train.py", line 9 in train\n'


def collective(name: str, module: str = "shared_memory") -> str:
    inner = OURS.format("lockstep", "_sleep") + OURS.format("shared_memory", "meet")
    return HEAD + inner + OURS.format(module, name) + USERS


def test_who_waits_in_which_collective_is_said() -> None:
    stacks = {0: collective("all_reduce"), 1: HEAD + USERS, 2: collective("all_reduce")}

    lines = describe_stacks(stacks).splitlines()

    assert lines[0] == "ranks 0, 2 wait in all_reduce; rank 1 is in no collective."
    assert lines[1] == "rank 1 differs from the other 2, look there first:"


def test_of_two_ranks_the_one_that_the_other_waits_for_comes_first() -> None:
    text = describe_stacks({0: collective("init_parallel_env", "environment"), 1: HEAD + USERS})

    assert text.startswith(
        "rank 0 waits in init_parallel_env; rank 1 is in no collective.\n--- rank 1 ---\n"
    )


def test_of_ranks_that_are_in_one_collective_nothing_is_said() -> None:
    stacks = {0: collective("barrier"), 1: collective("barrier")}

    assert describe_stacks(stacks).startswith("--- rank 0 ---")


def wait_for_rank_1(reader: int) -> None:
    comm = rankspawn.init_parallel_env()
    if comm.rank == 1:
        os.read(reader, 1)
    comm.all_reduce(array("d", [1.0]))


def test_a_rank_that_others_wait_for_is_named() -> None:
    expected = "rank 0 waits in all_reduce; rank 1 is in no collective.\n--- rank 1 ---\n"
    reader, writer = os.pipe()
    options: Any = {"nprocs": 2, "backend": "gloo", "start_method": "fork", "join": False}
    with rankspawn.spawn(wait_for_rank_1, (reader,), **options) as context:
        story, deadline = "", time.monotonic() + DEADLOCK
        # Until both are where they stay.
        while not story.startswith(expected) and time.monotonic() < deadline:
            story = describe_stacks(context.dump_stacks())
        os.write(writer, b"x")
        context.join()
    os.close(reader)
    os.close(writer)

    assert story.startswith(expected)


def test_nothing_is_said_of_nothing() -> None:
    assert describe_stacks({}) == ""
