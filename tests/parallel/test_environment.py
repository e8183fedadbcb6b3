"""Who can talk to whom: under spawn, rankrun and pytest, alone, and where it cannot be."""

from __future__ import annotations

import array
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankspawn
from rankspawn import MultiprocessContext
from rankspawn.parallel import Communicator, environment, waiting
from rankspawn.workers.meeting import MEETING_VARIABLE, MeetingPlace
from tests import jobs
from tests.launch.running import rankrun, write_script
from tests.parallel import cases, supervised
from tests.parallel.crew import run_crew, values

Run = Callable[..., MultiprocessContext]


def test_alone_it_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_current", None)
    comm = rankspawn.init_parallel_env()
    try:
        assert (comm.rank, comm.size, comm.backend) == (0, 1, "alone")
        assert rankspawn.init_parallel_env() is comm
        assert isinstance(comm, Communicator)
        cases.one_of_each(comm, 3)
        cases.one_of_each(comm, 300_000)
        assert comm.all_reduce(comm.empty(3)).shape == (3,)
        part = comm.split(7)
        assert part is not None
        assert part.all_gather(np.ones(2)).shape == (1, 2)
        assert comm.split(None) is None
        with pytest.raises(ValueError, match="dst=0 is this rank itself"):
            comm.send(np.ones(1), 0)
    finally:
        comm.close()
    with pytest.raises(RuntimeError, match=r"barrier was called after close\(\)"):
        comm.barrier()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "which rankspawn has not started"),
        ({"GROUP_WORLD_SIZE": "2"}, "on 2 machines, and memory is shared within one: use torch"),
        ({"TRAINING_ROLE": "PSERVER"}, "of the role PSERVER is no rank"),
        ({MEETING_VARIABLE: "1:99:1:1"}, "cannot be reached at process 1"),
    ],
)
def test_where_ranks_cannot_talk_an_error_says_why(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_current", None)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", **variables}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(RuntimeError, match=message):
        rankspawn.init_parallel_env()


def count_differently() -> str:
    if rankspawn.get_rank() == 1:
        os.environ["WORLD_SIZE"] = "3"
    try:
        cases.connect(timeout=None)
    except RuntimeError as error:
        return str(error)
    return "joined"


def test_ranks_that_count_differently_do_each_other_no_harm() -> None:
    first, second = values(run_crew(2, count_differently))

    assert first.startswith("rank 1 (process ")
    assert second.startswith("this is rank 1 of 3, but 2 processes were started with it")


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="backend='nccl' is unknown: there are auto, shm"):
        rankspawn.init_parallel_env("nccl")


def test_a_place_that_means_another_file_by_now_is_not_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "_current", None)
    place = MeetingPlace()
    pid, fd, device, inode = place.address.split(":")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(MEETING_VARIABLE, f"{pid}:{fd}:{device}:{int(inode) + 1}")

    with pytest.raises(RuntimeError, match="the number means another file by now"):
        rankspawn.init_parallel_env()
    place.close()


def change_user() -> str:
    os.setuid(65534)
    try:
        cases.connect()
    except RuntimeError as error:
        return str(error)
    return "joined"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_reach_the_memory() -> None:
    for story in values(run_crew(2, change_user)):
        assert "cannot be reached at process" in story


SCRIPT = """
import numpy as np
import rankspawn

comm = rankspawn.init_parallel_env()
total = comm.all_reduce(np.full(100_000, comm.rank + 1.0))
print(comm.backend, comm.size, total[0], total[-1], flush=True)
"""


def test_ranks_of_rankrun_talk(tmp_path: Path) -> None:
    script = write_script(tmp_path, SCRIPT)
    done = rankrun(tmp_path, "--nproc_per_node", "3", str(script))

    assert done.code == 0, done.errors
    assert [done.log(f"workerlog.{rank}") for rank in range(3)] == ["shm 3 6.0 6.0\n"] * 3


def test_a_program_that_a_rank_wraps_talks_for_it(tmp_path: Path) -> None:
    script = write_script(tmp_path, SCRIPT)
    wrapper = write_script(tmp_path, f"#!/bin/sh\n{sys.executable} {script}\n", "wrapper")
    wrapper.chmod(0o755)

    done = rankrun(tmp_path, "--nproc_per_node", "2", str(wrapper))

    assert done.code == 0, done.errors
    assert done.log("workerlog.1") == "shm 2 3.0 3.0\n"


@pytest.mark.ranks(3, backend="gloo")
def test_ranks_of_a_test_talk() -> None:
    comm = rankspawn.init_parallel_env()
    assert comm.all_gather_object(comm.rank) == [0, 1, 2]
    comm.close()


def test_a_restarted_group_has_memory_of_its_own(run: Run) -> None:
    found = run(supervised.fail_once, nprocs=2, max_restarts=1).results()
    assert found[0] == found[1]


def use_no_numpy() -> list[Any]:
    sys.modules["numpy"] = None  # type: ignore[assignment]
    comm = cases.connect()
    numbers = array.array("d", [1.5, comm.rank])
    comm.all_reduce(numbers)
    small = array.array("B", [200, comm.rank])
    comm.all_reduce(small)
    large = array.array("i", [comm.rank]) * 3000
    comm.all_reduce(large, "max")
    data = bytearray(b"abc" if comm.rank == 1 else 3)
    comm.broadcast(data, src=1)
    comm.barrier()
    try:
        comm.all_gather(numbers)
    except RuntimeError as error:
        story = str(error)
    return [
        numbers.tolist(), small.tolist(), set(large), bytes(data),
        comm.all_gather_object(comm.rank), story,
    ]  # fmt: skip


def test_without_numpy_small_buffers_and_objects_go() -> None:
    found = values(run_crew(2, use_no_numpy))

    expected = [[3.0, 1.0], [144, 1], {1}, b"abc", [0, 1]]
    assert [story[:-1] for story in found] == [expected] * 2
    assert all("needs NumPy, which is not installed" in story[-1] for story in found)


def without_futex() -> str:
    class Napping(waiting.Sleeper):
        def __init__(self) -> None:
            super().__init__(sleeps=True)
            self.fence = lambda: None

    setattr(environment, "Sleeper", Napping)  # noqa: B010 - which mypy would not have
    return cases.all_collectives()


def test_without_a_futex_ranks_nap() -> None:
    assert values(run_crew(3, without_futex)) == ["shm"] * 3


def test_a_machine_whose_order_is_not_known_is_refused() -> None:
    with pytest.raises(RuntimeError, match="has no known order"):
        waiting.Sleeper("pdp11")


def open_after_close() -> tuple[int, int]:
    before = set(os.listdir("/proc/self/fd"))
    comm = cases.connect()
    cases.one_of_each(comm, 5000)
    cases.messages(comm)
    part = comm.split(0)
    assert part is not None
    part.barrier()
    shared = comm.empty(5000)
    comm.all_reduce(shared)
    used = len(os.listdir("/proc/self/fd"))
    del shared
    comm.close()
    comm.close()
    return used, len(set(os.listdir("/proc/self/fd")) - before)


def test_nothing_is_open_after_close() -> None:
    for used, left in values(run_crew(2, open_after_close)):
        assert used > 0
        assert left <= 1  # the listing's own


def test_a_rank_that_does_not_talk_has_nothing_of_it(run: Run) -> None:
    for files in run(jobs.open_files, nprocs=2).results():
        assert not [file for file in files if "meeting" in file]
