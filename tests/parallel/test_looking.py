"""Who waits for whom, as a process sees it that the waiting ranks do not help."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from rankspawn.parallel.looking import Waiting, awaited, stragglers, waiting
from rankspawn.workers.stacks import say_who_waits
from tests.jobs import DEADLOCK
from tests.parallel import cases
from tests.parallel.crew import run_crew, values


def see(pids: dict[int, int], names: dict[int, str]) -> dict[int, Waiting]:
    """What is seen once these ranks wait in these collectives."""
    deadline, found = time.monotonic() + DEADLOCK, waiting(pids)
    while {rank: each.collective for rank, each in found.items()} != names:
        assert time.monotonic() < deadline, found
        found = waiting(pids)
    return found


def look_while_others_wait() -> Any:
    """Rank 0 waits in a part for 2, 2 for a message of 1, and 3 for all."""
    comm = cases.connect()
    pids = dict(enumerate(comm.all_gather_object(os.getpid())))
    part = comm.split(comm.rank % 2)
    assert part is not None
    found: dict[int, Waiting] = {}
    said: dict[int, str] = {}
    if comm.rank == 1:
        found = see(pids, {0: "barrier", 2: "recv", 3: "all_reduce"})
        said = say_who_waits(pids, pids)
        comm.send(np.zeros(2), 2)
    if comm.rank == 2:
        comm.recv(np.zeros(2), 1)
    if comm.rank % 2 == 0:
        part.barrier()
    comm.all_reduce(np.ones(40_000))  # more than one meeting
    assert waiting({}) == {}
    assert stragglers({}) == {}
    after = stragglers(pids)
    comm.barrier()
    statistics = comm.statistics()
    comm.close()
    assert comm.statistics() == statistics
    return found, said, after


def test_who_waits_for_whom_is_seen_from_outside() -> None:
    found, said, after = values(run_crew(4, look_while_others_wait))[1]

    missed = {rank: each.waits_for for rank, each in found.items()}
    assert missed == {0: (2,), 2: (1,), 3: (0, 1, 2)}
    assert found[3].call.startswith("all_reduce of float64[40000] op=sum at ")
    assert f"{__file__}:" in found[3].call
    assert found[2].call == "recv"
    assert all(each.seconds >= 0 for each in found.values())
    assert awaited(found) == {1: [0, 2, 3]}
    assert said[2].startswith("(waits ")
    assert said[2].endswith(" s for rank 1 in recv)\n\n")
    assert said[1].startswith("(ranks 0, 2, 3 wait for this rank in all_reduce, barrier, recv")
    assert after[1] > 0
    assert list(after.values()) == sorted(after.values(), reverse=True)


def look_before_joining() -> dict[int, Waiting]:
    found = waiting({1: os.getpid()}, [os.getppid()])
    cases.connect()
    return found


def test_a_rank_that_has_not_joined_waits_for_nobody() -> None:
    assert values(run_crew(2, look_before_joining)) == [{}, {}]
