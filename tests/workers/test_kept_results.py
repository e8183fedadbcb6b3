"""What a kept result costs, and what becomes of one whose file is damaged."""

from __future__ import annotations

import atexit
import functools
import gc
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

import numpy as np
import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessException, ProcessExitedException
from rankspawn.workers import report as report_module
from tests import jobs

Run = Callable[..., MultiprocessContext[Any]]
SMALL, LARGE = 80_000, 4_000_000


def make_arrays(*sizes: int) -> list[Any]:
    return [np.full(size, index + 1, dtype=np.uint8) for index, size in enumerate(sizes)]


def outcome_files() -> list[str]:
    """Mappings and descriptors of outcome files that this process has."""
    with open("/proc/self/maps") as maps:
        mapped = [line for line in maps if "rankspawn-outcome" in line]
    return [*mapped, *(name for name in jobs.open_files() if "rankspawn-outcome" in name)]


def test_a_kept_small_array_keeps_nothing_else(run: Run) -> None:
    small = run(make_arrays, args=(SMALL, LARGE), nprocs=1).results()[0][0]
    gc.collect()

    assert outcome_files() == []
    small += 1
    assert small.sum() == 2 * SMALL


def test_a_kept_large_array_has_no_descriptor_and_its_own_pages_only(run: Run) -> None:
    context = run(make_arrays, args=(SMALL, LARGE, LARGE), nprocs=1, join=False)
    worker: Any = context._supervisor.group.workers[0]  # type: ignore[attr-defined]
    file = os.dup(worker.outcome_file.fileno())  # to look at its size
    small, dropped, kept = context.results()[0]
    del context, worker
    gc.collect()
    assert [name for name in jobs.open_files() if "outcome" in name] == [
        f"{file} {os.readlink(f'/proc/self/fd/{file}')}"
    ]
    assert 2 * LARGE < os.fstat(file).st_blocks * 512 < 2 * LARGE + SMALL

    del dropped

    assert LARGE < os.fstat(file).st_blocks * 512 < LARGE + SMALL
    os.close(file)
    kept += 1
    assert (kept.sum(), small.sum()) == (4 * LARGE, SMALL)


def test_what_a_fork_still_reads_is_not_given_back(run: Run) -> None:
    kept, dropped = run(make_arrays, args=(LARGE, LARGE), nprocs=1).results()[0]
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(theirs)
            os.read(ours, 1)
            code = 0 if (kept.sum(), dropped.sum()) == (LARGE, 2 * LARGE) else 2
        finally:
            os._exit(code)
    os.close(ours)
    del dropped
    gc.collect()
    os.close(theirs)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert kept.sum() == LARGE


def test_results_that_were_read_need_no_descriptors(run: Run) -> None:
    run(jobs.do_nothing, nprocs=1)  # a fork server is started once
    before = len(os.listdir("/proc/self/fd"))
    context = run(make_arrays, args=(SMALL, LARGE), nprocs=2)

    results = context.results()

    assert len(os.listdir("/proc/self/fd")) == before
    assert [large[-1] for _, large in results] == [2, 2]


# --- damaged files, which are the same under every start method


@pytest.fixture
def fork() -> Run:
    return functools.partial(rankspawn.spawn, backend="gloo", start_method="fork")


def damage_at_the_end(size: int | None, offset: int, data: bytes) -> list[Any]:
    """What a process that has the file open as well may do to it once the report is written."""
    atexit.register(_damage, size, offset, data)
    return make_arrays(SMALL)


def _damage(size: int | None, offset: int, data: bytes) -> None:
    assert report_module.current is not None
    fd = report_module.current._fd
    os.pwrite(fd, data, offset)
    if size is not None:
        os.ftruncate(fd, size)


GARBAGE = b"\xff" * 8


@pytest.mark.parametrize(
    ("size", "offset", "data", "story"),
    [
        (0, 0, b"", "cut off after 0 bytes"),
        (5000, 0, b"", "its report was cut off"),
        (None, 8, GARBAGE, "the head of its report was overwritten"),
        (None, 32, GARBAGE, "the table of its report was cut off or overwritten"),
        (None, 48, GARBAGE, "its report was cut off"),
    ],
)
def test_a_damaged_report_is_an_error_of_its_rank(
    fork: Run, size: int | None, offset: int, data: bytes, story: str
) -> None:
    with pytest.raises(ProcessExitedException, match=story) as caught:
        fork(damage_at_the_end, args=(size, offset, data), nprocs=1)

    assert caught.value.rank == 0


def damage_pickle() -> Any:
    atexit.register(_damage, None, 4096, GARBAGE)
    return [1, 2, 3]


def test_a_result_that_was_overwritten_is_an_error_that_names_its_rank(fork: Run) -> None:
    context = fork(damage_pickle, nprocs=1)

    with pytest.raises(pickle.UnpicklingError) as caught:
        context.results()

    assert caught.value.__notes__ == ["The result of rank 0 was being read."]


def raise_and_cut_off_when(gate: Any) -> None:
    def cut_off() -> None:
        assert gate.poll(jobs.DEADLOCK)
        _damage(0, 0, b"")

    atexit.register(cut_off)
    raise ValueError("on purpose")


def test_a_failure_that_was_noted_stays_one(fork: Run) -> None:
    gate, theirs = multiprocessing.Pipe()
    with (
        gate,
        theirs,
        fork(raise_and_cut_off_when, args=(theirs,), nprocs=1, join=False) as context,
    ):
        deadline = time.monotonic() + jobs.DEADLOCK
        group = context._supervisor.group
        while not group.has_failed:
            group.collect()
            assert time.monotonic() < deadline
        gate.send("now")
        assert connection.wait([context.processes[0].sentinel], jobs.DEADLOCK)
        with pytest.raises(ProcessException, match="its report was cut off after 0 bytes"):
            context.join()


def leave_one_that_cuts_the_file_off(gate: Any, done: Any) -> Any:
    if os.fork() == 0:
        code = 1
        try:
            assert gate.poll(jobs.DEADLOCK)
            _damage(0, 0, b"")
        except PermissionError:
            code = 0
        finally:
            done.send(code)
            os._exit(code)
    return make_arrays(LARGE)


def test_a_descendant_cannot_cut_off_what_was_read(fork: Run) -> None:
    gate, theirs = multiprocessing.Pipe()
    done, told = multiprocessing.Pipe()
    with gate, theirs, done, told:
        (array,) = fork(leave_one_that_cuts_the_file_off, args=(theirs, told), nprocs=1).results()[
            0
        ]
        gate.send("now")
        assert done.poll(jobs.DEADLOCK)
        # It may not, because the file is sealed; or it may, and the array is a copy.
        assert done.recv() in (0, 1)
        assert array.sum() == LARGE
