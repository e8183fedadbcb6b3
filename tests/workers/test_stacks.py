"""What a dump of stacks shows of a rank."""

from __future__ import annotations

import collections
import itertools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any
from unittest.mock import Mock

import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessRaisedException
from rankspawn.workers import child, teardown
from rankspawn.workers.report import RAISED, STACKS_AT, STACKS_SIGNAL
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


def be_asked_while_leaving(path: str) -> None:
    leave = os._exit

    def note_what_is_called_and_leave(code: int) -> None:
        called = []
        sys.setprofile(lambda frame, *_: called.append(frame.f_code.co_name))
        signal.raise_signal(STACKS_SIGNAL)
        sys.setprofile(None)
        Path(path).write_text(" ".join(called))
        leave(code)

    os._exit = note_what_is_called_and_leave  # type: ignore[assignment]


def test_whoever_patched_the_exit_is_not_interrupted_by_us(run: Run, tmp_path: Path) -> None:
    run(be_asked_while_leaving, args=(str(tmp_path / "called"),), nprocs=1)

    assert "write_stacks" not in (tmp_path / "called").read_text()


def print_into_a_full_pipe(error: Exception | None) -> None:
    """What is printed is written by us, after this."""
    _, end = os.pipe()
    os.set_blocking(end, False)
    with suppress(BlockingIOError):
        while True:
            os.write(end, bytes(4096))
    os.set_blocking(end, True)
    sys.stdout = open(end, "w")  # noqa: SIM115 - it is open as long as the worker lives
    print("something")
    if error is not None:
        raise error


def test_a_rank_whose_output_nobody_reads_says_so(run: Run) -> None:
    with run(print_into_a_full_pipe, args=(None,), nprocs=1, join=False, grace_period=0.1) as ctx:
        stack, deadline = "", time.monotonic() + DEADLOCK
        while " in flush_output\n" not in stack and time.monotonic() < deadline:
            stack = ctx.dump_stacks().get(0, "")

    _, word, frame, *rest = stack.splitlines()
    assert "(its function has ended: it writes out what it printed, and waits" in word
    assert frame.endswith(" in flush_output")
    assert rest == []


def test_an_exception_is_told_though_nobody_reads_the_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(teardown, "REPORT_SECONDS", 0.0)
    error = ValueError("its own text")
    options: Any = {"nprocs": 1, "backend": "gloo", "start_method": "fork"}
    ctx = rankspawn.spawn(print_into_a_full_pipe, (error,), join=False, grace_period=0.1, **options)
    (worker,) = ctx._group.workers  # type: ignore[attr-defined]  # a group of local processes
    deadline = time.monotonic() + DEADLOCK
    while worker.header().kind != RAISED and time.monotonic() < deadline:
        time.sleep(0.01)

    with pytest.raises(ProcessRaisedException, match="ValueError: its own text"):
        ctx.join()


class HangingError(Exception):
    """Nobody gets its text."""

    def __str__(self) -> str:
        signal.pause()
        raise AssertionError("it does not end")


def print_and_raise() -> None:
    print("printed before")
    raise HangingError


def test_a_log_is_whole_though_the_exceptions_text_never_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teardown, "REPORT_SECONDS", 0.0)
    options: Any = {"nprocs": 1, "backend": "gloo", "start_method": "fork", "grace_period": 0.1}
    ctx = rankspawn.spawn(print_and_raise, join=False, log_dir=tmp_path, **options)
    log, deadline = tmp_path / "workerlog.0", time.monotonic() + DEADLOCK
    while not log.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)

    with pytest.raises(ProcessRaisedException, match=r"printed before[\s\S]*HangingError"):
        ctx.join()


def test_what_follows_the_function_has_a_word_for_each() -> None:
    ours = Path(child.__file__).parent
    head = "Current thread 0x1 (most recent call first):\n"
    its = '  File "train.py", line 9 in __reduce__\n'
    pickles = f'  File "{ours}/report.py", line 1 in _pickle_result\n'
    work = f'  File "{ours}/child.py", line 2 in _tell\n  File "{ours}/child.py", line 3 in work\n'
    word = "  (its function has ended: its result is being pickled)\n"
    assert without_our_frames(head + its + pickles + work) == head + word + its + pickles

    exits = f'  File "{ours.parent}/cpython.py", line 1 in run_exit_functions\n'
    leaves = f'  File "{ours}/child.py", line 1 in run_and_leave\n'
    word = "  (its function has ended: it runs what was registered with atexit)\n"
    assert without_our_frames(head + exits + leaves + its) == head + word + exits

    # A worker that forks workers of its own.
    flushes = f'  File "{ours}/child.py", line 1 in flush_output\n'
    called = flushes + '  File "train.py", line 9 in train\n'
    lambdas = work.replace("_tell", "<lambda>")
    assert without_our_frames(head + called + lambdas) == head + called


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
