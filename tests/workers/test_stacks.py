"""What a dump of stacks shows of a rank."""

from __future__ import annotations

import collections
import itertools
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO
from unittest.mock import Mock

import pytest

from rankspawn import MultiprocessContext
from rankspawn.workers import child
from rankspawn.workers.report import STACKS_AT
from rankspawn.workers.stacks import NO_ANSWER, Asked, without_our_frames
from tests.jobs import DEADLOCK

Run = Callable[..., MultiprocessContext]


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


def test_who_wrote_it_is_left_out() -> None:
    ours = Path(child.__file__).parent
    head = "Current thread 0x1 (most recent call first):\n"
    own = '  File "train.py", line 9 in train\n'
    writer = f'  File "{ours}/report.py", line 3 in write_stacks\n'
    assert without_our_frames(head + writer + own) == head + own


def called_from_c(ready: Connection) -> None:
    ready.send(None)
    collections.deque(map(do_nothing, itertools.count()), maxlen=0)


def do_nothing(_: int) -> None:
    pass


def test_a_rank_that_c_code_calls_over_and_over_survives_them(run: Run, start_method: str) -> None:
    """A look at its frames at any moment, as faulthandler's on a signal, would crash it."""
    ready, end = multiprocessing.get_context(start_method).Pipe(duplex=False)
    with run(called_from_c, args=(end,), nprocs=1, join=False) as context:
        end.close()
        assert ready.poll(DEADLOCK)
        for _ in range(25):
            assert "in called_from_c\n" in context.dump_stacks()[0]
        assert context.exitcodes() == [None]
    ready.close()


def asked_with(file: IO[bytes], written: bytes) -> Asked:
    file.write(written)
    file.flush()
    popen = Mock()
    popen.poll.return_value = None
    return Asked(popen, file.fileno(), 0, size=len(written))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (b"\fby Python\n\v", "by Python\n"),
        (b"by C\n", "by C\n"),
        (b"by C\n\fby Python, late\n\v", "by Python, late\n"),
        (b"end of an older one\n\v\fby Python\n\v", "by Python\n"),
        (b"\fcut sho", "cut sho"),
        (b"", NO_ANSWER),
    ],
)
def test_one_answer_is_read(written: bytes, text: str) -> None:
    with tempfile.TemporaryFile() as file:
        assert asked_with(file, written).text() == text


def test_an_answer_is_waited_for_to_its_end() -> None:
    """Also if nothing is added for a while: a rank may have to wait for a CPU."""
    with tempfile.TemporaryFile() as file:
        os.lseek(file.fileno(), STACKS_AT, os.SEEK_SET)
        asked = asked_with(file, b"\fby Py")
        asked.start = STACKS_AT
        for _ in range(100):
            asked.look()
            assert not asked.has_answered
        os.write(file.fileno(), b"thon\n\v")
        asked.look()
        assert asked.has_answered
        assert asked.text() == "by Python\n"
