"""Recordings for these tests, and what their workers run."""

from __future__ import annotations

import math
import os
import time
from typing import Any

import rankspawn
from rankspawn.parallel.looking import waiting
from rankspawn.parallel.statistics import Talk
from rankspawn.supervise.reports import Steps
from rankspawn.trace.recording import Ended, Recording
from rankspawn.view.ranks import Usage
from tests import jobs

# What a rank may print that must stay text.
HOSTILE = "</script><script>document.title = 'hit'</script><!-- &lt; \u2028 \ud800 %%DATA%%"


def report_and_fail() -> None:
    print(HOSTILE.encode("utf-8", "backslashreplace").decode())
    rankspawn.report(step=3, total=4, loss=0.5)
    if rankspawn.get_rank() == 1:
        raise ValueError("the loss is </pre> gone")
    jobs.sleep_for_ever()


def talk() -> None:
    """Rank 0 waits for rank 1, in a part in which they are numbered the other way round."""
    comm = rankspawn.init_parallel_env()
    pids = dict(enumerate(comm.all_gather_object(os.getpid())))
    part = comm.split(0, key=-comm.rank)
    assert part is not None
    while comm.rank == 1 and not waiting(pids):
        time.sleep(0.001)
    part.barrier()
    comm.all_reduce(bytearray(3), "max")


def make_recording(count: int, *, failed: int | None = None) -> Recording:
    """So many ranks that ran for ten seconds, one of which may have failed."""
    recording = Recording([(rank, "cpu") for rank in range(count)], {"what": "train"})
    recording.starts.append(0.0)
    recording.seconds = 10.0
    for lane in recording.lanes:
        rank = lane.rank
        lane.starts(0.01 * (rank % 7), 1000 + rank)
        lane.is_in("loading", 0.3)
        lane.is_in("running", 0.6 + 0.01 * (rank % 5))
        for at in range(1, 10):
            lane.is_in("running", at)
            lane.takes(Usage(50 + 40 * math.sin(at + rank), (100 + at * (rank % 9)) << 20), at)
            lane.reports(Steps(at * 10 - rank % 4, 100, {"loss": 1 / at + rank % 3 / 50}), at)
        lane.talks(Talk({"barrier": 9}, {"barrier": 0.5}, 0, {0: 0.25}), 9.5)
        state = "done" if failed is None else "failed" if rank == failed else "stopped"
        lane.ends(Ended(state, state, 9.5, rank == failed, "ValueError\n" * (rank == failed)), 9.9)
        lane.lines = [(1.0, HOSTILE), (None, f"line of rank {rank}")]
    if failed is not None:
        recording.fails(ValueError(f"rank {failed} failed {HOSTILE}"))
    return recording


def data_of(count: int, *, failed: int | None = None) -> dict[str, Any]:
    return make_recording(count, failed=failed).as_data()
