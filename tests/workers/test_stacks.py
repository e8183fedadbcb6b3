"""Which rank is where, and which one to look at first."""

from __future__ import annotations

from pathlib import Path

from rankspawn.workers import child
from rankspawn.workers.stacks import describe_stacks, without_our_frames

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


def test_what_has_called_the_function_is_left_out_of_its_stack() -> None:
    ours = Path(child.__file__).parent
    other = 'Thread 0x2 (most recent call first):\n  File "threading.py", line 1 in run\n\n'
    own = (
        "Current thread 0x1 (most recent call first):\n"
        f'  File "{ours}/group.py", line 9 in wait\n'  # a worker may have workers of its own
        '  File "train.py", line 9 in <lambda>\n'
    )
    below = (
        f'  File "{ours}/orders.py", line 2 in <lambda>\n'
        f'  File "{ours}/child.py", line 3 in work\n'
        '  File "train.py", line 99 in <module>\n'
    )
    assert without_our_frames(other + own + below) == other + own
    assert without_our_frames(own + below.partition("\n")[2]) == own
    assert without_our_frames(other) == other
