"""``init_parallel_env``: from what this process was told about itself to its communicator."""

from __future__ import annotations

import atexit
import os
import sys
import time

from rankspawn.caller import at_users_line
from rankspawn.errors import CollectiveTimeoutError
from rankspawn.parallel.choosing import choose, look_around
from rankspawn.parallel.devices import MemoryAndDevices
from rankspawn.parallel.pieces import check_timeout
from rankspawn.parallel.region import Region, open_at
from rankspawn.parallel.shared_memory import alone
from rankspawn.parallel.splitting import join_region
from rankspawn.parallel.waiting import Sleeper
from rankspawn.parallel_env import get_rank, get_world_size
from rankspawn.workers.meeting import MEETING_VARIABLE, count_listed

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.parallel.communicator import Communicator
    from rankspawn.parallel.over_engine import OverEngine

# How often a rank looks whether all were started.
_LOOK_SECONDS = 0.0005
# The communicator of this process, and which process that is: a fork is another one.
_current: tuple[int, Communicator] | None = None
# Those that were asked for by name beside it.
_others: list[tuple[int, Communicator]] = []


@at_users_line
def init_parallel_env(backend: str = "auto", timeout: float | None = None) -> Communicator:
    """This rank's communicator with all ranks of its job; called again, the same one.

    Waits until all ranks have called it. Outside of a job it is a world of one. It ends with the
    process; ``close()`` ends it earlier.

    Args:
        backend: What carries the data. ``auto``: memory on one machine (``shm``), and for tensors
            on devices or on several machines the collectives of ``torch`` or ``paddle``; ``mpi``
            if that has started the ranks. Or one of these names, also ``torch:gloo`` and the
            like, and ``alone``.
        timeout: Seconds to wait for other ranks in each call; None for as long as they live.

    Raises:
        ValueError: There is no such backend, or no such time.
        RuntimeError: The backend is not installed, or none can connect these ranks.
        RankLostError: A rank ended without having called it.
        CollectiveTimeoutError: The time was over.
    """
    global _current  # noqa: PLW0603 - the process is in this state, not an object
    check_timeout(timeout)
    chosen = choose(backend, look_around())  # refuses what there is not, the second time too
    for pid, comm in (*([_current] if _current else []), *_others):
        if pid == os.getpid() and (backend == "auto" or _is_of(comm, backend)):
            return comm
    made = os.getpid(), _open(chosen, timeout)
    if _current is None or _current[0] != os.getpid():
        _current = made
    else:
        _others.append(made)
    return made[1]


def _is_of(comm: Communicator, backend: str) -> bool:
    return comm.backend == backend or comm.backend.startswith(f"{backend}:")


def _open(chosen: str, timeout: float | None) -> Communicator:
    if chosen == "alone":
        return alone()
    if chosen == "shm":
        return _share_memory(get_rank(), get_world_size(), timeout)
    comm = _open_engine(chosen, timeout)
    atexit.register(comm.close)
    return comm


def _open_engine(chosen: str, timeout: float | None) -> OverEngine:
    from rankspawn.parallel.over_engine import over_engine

    framework = chosen.partition(":")[0]
    if framework == "torch":
        from rankspawn.parallel import torch_groups
        from rankspawn.parallel.hierarchy import through_memory

        engine = torch_groups.connect(chosen, timeout)
        return through_memory(
            engine, timeout, lambda rank, size: _share_memory(rank, size, timeout)
        )
    if framework == "paddle":
        from rankspawn.parallel import paddle_groups

        return over_engine(paddle_groups.connect(chosen), timeout)
    from rankspawn.parallel import mpi

    return over_engine(mpi.connect(chosen), timeout)


def _share_memory(rank: int, size: int, timeout: float | None) -> MemoryAndDevices:
    """The ranks of this machine, which the same process has started."""
    deadline = None if timeout is None else time.monotonic() + timeout
    fd = open_at(os.environ[MEETING_VARIABLE])
    try:
        _check_listed(fd, rank, size, deadline)
    except BaseException:
        os.close(fd)
        raise
    region = Region(fd, size)
    comm = MemoryAndDevices(join_region(region, rank, Sleeper()), timeout=timeout)
    # Others must not wait for a rank that has returned, raised or exited.
    atexit.register(comm.close)
    report = sys.modules.get("rankspawn.workers.report")
    if report is not None and report.current is not None:
        report.current.say_returned = comm.leave
    try:
        comm.meet()
    except BaseException:
        comm.close()
        raise
    return comm


def _check_listed(fd: int, rank: int, size: int, deadline: float | None) -> None:
    """Make sure that all ranks mean the same by this file, before anything is done with it."""
    while not (listed := count_listed(fd)):
        # Whoever starts the ranks is still at it.
        if deadline is not None and time.monotonic() > deadline:
            raise CollectiveTimeoutError(
                "whoever started this rank has not said in time who else there is",
                collective="init_parallel_env",
            )
        time.sleep(_LOOK_SECONDS)
    if listed != size:
        raise RuntimeError(
            f"this is rank {rank} of {size}, but {listed} processes were started with it: only the "
            "ranks of a collective job on one machine share memory"
        )
