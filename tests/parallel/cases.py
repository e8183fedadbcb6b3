"""What ranks of these tests run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np

import rankspawn
from rankspawn.parallel import Communicator, direct, layout
from rankspawn.parallel.lockstep import Lockstep
from tests.jobs import DEADLOCK

# Sizes at which something changes, with the small slots of these tests.
INLINE, CHUNK, PARCEL = 4096, 8192, 4096
COUNTS = (0, 1, 7, 512, 513, 1024, 1025, 5000)


def small_slots() -> None:
    """Have little data take the ways of much; before the communicator is made."""
    layout.INLINE, layout.CHUNK, layout.PARCEL = INLINE, CHUNK, PARCEL
    direct.SMALLEST, direct._PIECE = 2 * CHUNK, CHUNK


def connect(timeout: float | None = DEADLOCK) -> Communicator:
    small_slots()
    return rankspawn.init_parallel_env(timeout=timeout)


def step_of(comm: Communicator) -> Lockstep:
    """Its inner works."""
    step: Lockstep = comm._step  # type: ignore[attr-defined]
    return step


def data_of(rank: int, count: int, dtype: str = "float64", seed: int = 0) -> Any:
    """What a rank brings: anybody can tell."""
    source = np.random.default_rng([rank, count, seed])
    if np.dtype(dtype).kind == "b":
        return source.integers(0, 2, count).astype(dtype)
    if np.dtype(dtype).kind in "iu":
        return source.integers(0, 100, count).astype(dtype)
    values = source.standard_normal(count)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * source.standard_normal(count)
    return values.astype(dtype)


FUNCTIONS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "avg": np.add,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def reduced(arrays: list[Any], op: str = "sum") -> Any:
    """The same in one process: by rank, and 16 bits with 32."""
    dtype = arrays[0].dtype
    wide = np.dtype("float32") if dtype == np.dtype("float16") else dtype
    total = arrays[0].astype(wide)
    for array in arrays[1:]:
        total = FUNCTIONS[op](total, array.astype(wide))
    if op == "avg":
        total = (total / len(arrays)).astype(wide)
    return total.astype(dtype)


def same(found: Any, expected: Any) -> None:
    """The same bits."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def all_collectives() -> str:
    """Each of them, at each size at which something changes."""
    comm = connect()
    for count in COUNTS:
        one_of_each(comm, count)
    comm.barrier()
    messages(comm)
    return comm.backend


def one_of_each(comm: Communicator, count: int, dtype: str = "float64", seed: int = 0) -> None:
    """Each collective once, compared with what one process makes of it."""
    rank, size = comm.rank, comm.size
    arrays = [data_of(each, count, dtype, seed) for each in range(size)]
    tables = [data_of(each, count * size, dtype, seed).reshape(size, count) for each in range(size)]
    root = (count + seed) % size
    total = reduced(arrays)

    mine = arrays[rank].copy()
    assert comm.all_reduce(mine) is mine
    same(mine, total)
    mine = arrays[rank].copy()
    same(comm.reduce(mine, dst=root), total if rank == root else arrays[rank])
    mine = arrays[rank].copy()
    same(comm.broadcast(mine, src=root), arrays[root])
    same(comm.all_gather(arrays[rank]), np.stack(arrays))
    found = comm.gather(arrays[rank], dst=root)
    assert (found is None) == (rank != root)
    if rank == root:
        same(found, np.stack(arrays))
    same(comm.scatter(tables[root] if rank == root else None, src=root), tables[root][rank])
    same(comm.reduce_scatter(tables[rank]), reduced([table[rank] for table in tables]))
    same(comm.all_to_all(tables[rank]), np.stack([table[rank] for table in tables]))
    objects = [{"rank": each, "data": b"x" * (count * each)} for each in range(size)]
    assert comm.all_gather_object(objects[rank]) == objects
    assert comm.broadcast_object(objects[rank] if rank == root else None, src=root) == objects[root]
    assert comm.gather_object(objects[rank], dst=root) == (objects if rank == root else None)


def messages(comm: Communicator) -> None:
    """Around a ring, with tags that are asked for in another order than they come."""
    if comm.size == 1:
        return
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in (0, 3, 400):
        for tag in (1, 2):
            comm.send(data_of(comm.rank, count, seed=tag), right, tag)
        for tag in (2, 1):
            same(comm.recv(np.empty(count), left, tag), data_of(left, count, seed=tag))
    # More than the channel holds: one has to take while the other sends.
    for source in range(comm.size):
        if comm.rank == source:
            comm.send(data_of(source, 9000), right)
        elif comm.rank == (source + 1) % comm.size:
            same(comm.recv(np.empty(9000), source), data_of(source, 9000))
    comm.barrier()


def die_at(comm: Communicator, victim: int, call: int, moment: str) -> None:
    """Have a rank be killed in its n-th meeting from now on, before or after it has counted."""
    if comm.rank != victim:
        return
    step = step_of(comm)
    meet = step.meet
    left = [call]

    def meet_or_die() -> int:
        if left[0] == 0:
            if moment == "after":
                step._wait = _die  # type: ignore[assignment, method-assign]
                step._let_go = _die  # type: ignore[assignment, method-assign]
                meet()
            _die()
        left[0] -= 1
        return meet()

    step.meet = meet_or_die  # type: ignore[method-assign]


def die_after_pieces(comm: Communicator, count: int) -> None:
    """Have this rank be killed when it has sent so many pieces of its next message."""
    channels = comm._channels  # type: ignore[attr-defined]
    count_on, left = channels._count_on, [count]

    def count_on_or_die(*args: int) -> None:
        if not left[0]:
            _die()
        left[0] -= 1
        count_on(*args)

    channels._count_on = count_on_or_die


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


Job = Callable[[Communicator], None]
JOBS: dict[str, Job] = {
    "barrier": lambda comm: comm.barrier(),
    "all_reduce, small": lambda comm: _sum(comm, 10),
    "all_reduce, large": lambda comm: _sum(comm, 5000),
    "all_reduce, shared": lambda comm: _sum_shared(comm, 5000),
    "reduce": lambda comm: _keep(comm.reduce(data_of(comm.rank, 5000), dst=1)),
    "broadcast": lambda comm: _keep(comm.broadcast(data_of(comm.rank, 5000), src=1)),
    "broadcast, direct": lambda comm: _broadcast_directly(comm, 5000),
    "all_gather": lambda comm: _keep(comm.all_gather(data_of(comm.rank, 5000))),
    "gather": lambda comm: _keep(comm.gather(data_of(comm.rank, 5000), dst=1)),
    "scatter": lambda comm: _keep(
        comm.scatter(data_of(0, 15000).reshape(3, 5000) if comm.rank == 1 else None, src=1)
    ),
    "reduce_scatter": lambda comm: _keep(
        comm.reduce_scatter(data_of(comm.rank, 15000).reshape(3, 5000))
    ),
    "all_to_all": lambda comm: _keep(comm.all_to_all(data_of(comm.rank, 15000).reshape(3, 5000))),
    "all_gather_object": lambda comm: _keep(comm.all_gather_object(b"x" * 20_000)),
    "broadcast_object": lambda comm: _keep(comm.broadcast_object(b"x" * 20_000, src=1)),
    "gather_object": lambda comm: _keep(comm.gather_object(b"x" * 20_000, dst=1)),
    "empty": lambda comm: _keep(comm.empty(1000)),
    "split": lambda comm: _keep(comm.split(0)),
}


def _keep(value: object) -> None:
    pass


def _sum(comm: Communicator, count: int) -> None:
    arrays = [data_of(rank, count) for rank in range(comm.size)]
    same(comm.all_reduce(arrays[comm.rank].copy()), reduced(arrays))


def _sum_shared(comm: Communicator, count: int) -> None:
    mine = comm.empty(count, "float64")
    arrays = [data_of(rank, count) for rank in range(comm.size)]
    mine[:] = arrays[comm.rank]
    same(comm.all_reduce(mine), reduced(arrays))


def _broadcast_directly(comm: Communicator, count: int) -> None:
    direct.SMALLEST = 8
    same(comm.broadcast(data_of(comm.rank, count), src=1), data_of(1, count))


def lose_a_rank(job: str, victim: int, call: int, moment: str) -> tuple[str, int, int]:
    """A rank dies in the middle of a collective; what the others get, and how often it worked."""
    comm = connect(timeout=None)
    comm.barrier()
    die_at(comm, victim, call, moment)
    worked = 0
    try:
        while True:
            JOBS[job](comm)
            worked += 1
    except rankspawn.RankLostError as error:
        return type(error).__name__, error.rank, worked
