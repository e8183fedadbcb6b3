"""Recordings for these tests, and what their workers run."""

from __future__ import annotations

import math
import time
from typing import Any

import rankspawn
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


def talk(seen: Any) -> None:
    """Rank 0 waits for rank 1 again and again, until that was seen."""
    comm = rankspawn.init_parallel_env()
    is_over = bytearray(1)
    while not is_over[0]:
        if comm.rank == 1:
            time.sleep(0.01)
        comm.barrier()
        is_over[0] = seen.is_set()
        comm.broadcast(is_over, 0)
    comm.close()


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
        state = "done" if failed is None else "failed" if rank == failed else "stopped"
        lane.ends(Ended(state, state, 9.5, rank == failed, "ValueError\n" * (rank == failed)), 9.9)
        lane.lines = [(1.0, HOSTILE), (None, f"line of rank {rank}")]
    if failed is not None:
        recording.fails(ValueError(f"rank {failed} failed {HOSTILE}"))
    return recording


def data_of(count: int, *, failed: int | None = None) -> dict[str, Any]:
    return make_recording(count, failed=failed).as_data()
