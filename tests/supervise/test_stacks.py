"""Which rank is where, and which one to look at first."""

from __future__ import annotations

from rankspawn.supervise.failures import describe_stacks

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


def test_nothing_is_said_of_nothing() -> None:
    assert describe_stacks({}) == ""
