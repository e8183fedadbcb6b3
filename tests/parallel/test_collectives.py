"""Collectives, compared with what one process makes of the same numbers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest

import rankspawn
from rankspawn import MultiprocessContext
from rankspawn.parallel import direct
from rankspawn.parallel.reducing import OPERATIONS, check_operation, depends_on_place
from tests.jobs import DEADLOCK
from tests.parallel import cases
from tests.parallel.crew import run_crew, values

Run = Callable[..., MultiprocessContext]
DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "longdouble", "complex64", "complex128"),
)


def test_every_collective_under_each_start_method(run: Run) -> None:
    assert run(cases.all_collectives, nprocs=3).results() == ["shm"] * 3


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_every_collective_with_any_number_of_ranks(size: int) -> None:
    backend = "alone" if size == 1 else "shm"
    assert values(run_crew(size, cases.all_collectives)) == [backend] * size


@pytest.mark.slow
@pytest.mark.parametrize("size", range(1, 17))
def test_every_collective_with_up_to_sixteen_ranks(size: int, run: Run) -> None:
    assert len(run(cases.all_collectives, nprocs=size).results()) == size


def every_type_and_operation() -> int:
    comm = cases.connect()
    done = 0
    for dtype in DTYPES:
        for op in OPERATIONS:
            try:
                check_operation(op, np.dtype(dtype).name)
            except TypeError:
                continue
            for count in (3, 2100):
                arrays = [cases.data_of(rank, count, dtype) for rank in range(comm.size)]
                with np.errstate(all="ignore"):
                    expected = cases.reduced(arrays, op)
                mine, again = arrays[comm.rank].copy(), arrays[comm.rank].copy()
                comm.all_reduce(mine, op)
                comm.all_reduce(again, op)  # small ones are prepared by the first time
                cases.same(again, mine)
                assert (mine.dtype, mine.shape) == (expected.dtype, expected.shape)
                if depends_on_place(op, dtype):  # of the last bit all ranks have the same
                    np.testing.assert_allclose(mine, expected, rtol=1e-5)
                    assert len({data.tobytes() for data in comm.all_gather(mine)}) == 1
                else:
                    np.testing.assert_array_equal(mine, expected, f"{dtype} {op}")
                done += 1
    return done


@pytest.mark.parametrize("size", [2, 3])
def test_every_type_and_operation(size: int) -> None:
    done = values(run_crew(size, every_type_and_operation))
    assert done[0] == 2 * (9 * 7 + 4 * 5 + 2 * 3)
    assert len(set(done)) == 1


def overflow() -> list[float]:
    comm = cases.connect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [comm.all_reduce(np.full(2, 3e38, "f4"))[0] for _ in range(3)]
        found.append(comm.all_reduce(np.full(5000, 3e38, "f4"))[0])
        with pytest.raises(RuntimeWarning):  # the user's own numbers are the user's
            np.float32(3e38) * np.float32(10)
    return [float(each) for each in found]


def test_overflows_are_no_warnings() -> None:
    assert values(run_crew(2, overflow)) == [[np.inf] * 4] * 2


def reduce_into_any_row() -> None:
    comm = cases.connect()
    arrays = [cases.data_of(rank, 3000) for rank in range(comm.size)]
    for dst in range(comm.size):
        mine = comm.empty(3000, "float64")
        mine[:] = arrays[comm.rank]
        comm.reduce(mine, dst)
        cases.same(mine, cases.reduced(arrays) if comm.rank == dst else arrays[comm.rank])


def test_shared_arrays_are_reduced_into_any_one_of_them() -> None:
    values(run_crew(4, reduce_into_any_row))


def meet_unseen() -> list[float]:
    comm = cases.connect()
    step = cases.step_of(comm)
    boards = step._boards

    class Blind:
        """Shows an empty board at the first look, which is made when both have come."""

        def __init__(self) -> None:
            self.seen: set[int] = set()

        def __getitem__(self, parity: int) -> Any:
            if step.phase in self.seen:
                return boards[parity]
            self.seen.add(step.phase)
            while not step.has_come(1 - comm.rank, step.phase):
                time.sleep(0)
            return b""

    step._boards = Blind()  # type: ignore[assignment]
    found = [float(comm.all_reduce(np.ones(2))[0]) for _ in range(5)]
    step._boards = boards
    return found


def test_two_that_come_at_the_same_moment_go_on() -> None:
    assert values(run_crew(2, meet_unseen)) == [[2.0] * 5] * 2


class Play:
    """Random collectives on random groups of ranks, the same on every rank by the same seed."""

    def __init__(self, comm: Any, seed: int) -> None:
        self.source = np.random.default_rng(seed)
        self.comm = comm
        # Each group by its members, of which this process is one.
        self.groups: list[tuple[list[int], Any]] = [([*range(comm.size)], comm)]

    def step(self) -> None:
        roll = self.source.random()
        which = int(self.source.integers(len(self.groups)))
        if roll < 0.02 and len(self.groups) < 6:
            self.split()
        elif roll < 0.06:
            self.shared(which)
        else:
            self.one(which)

    def split(self) -> None:
        colors = self.source.integers(0, 2, self.comm.size)
        keys = self.source.integers(0, 3, self.comm.size)
        part = self.comm.split(int(colors[self.comm.rank]), int(keys[self.comm.rank]))
        members = [
            sorted((rank for rank in range(self.comm.size) if colors[rank] == color),
                   key=lambda rank: (keys[rank], rank))
            for color in (0, 1)
        ]  # fmt: skip
        mine = members[colors[self.comm.rank]]
        assert (part.rank, part.size) == (mine.index(self.comm.rank), len(mine))
        self.groups.append((mine, part))

    def one(self, which: int) -> None:
        members, comm = self.groups[which]
        kind = int(self.source.integers(8))
        # Small and large in turn, which is where a stage that is read too late shows.
        count = int(self.source.choice([0, 1, 5, 300, 511, 513, 1030, 4000]))
        seed, root = int(self.source.integers(1000)), int(self.source.integers(100)) % comm.size
        op = str(self.source.choice(["sum", "max", "avg", "prod"]))
        arrays = [cases.data_of(rank, count, seed=seed) for rank in members]
        mine = arrays[comm.rank].copy()
        if kind <= 2:
            cases.same(comm.all_reduce(mine, op), cases.reduced(arrays, op))
        elif kind == 3:
            cases.same(comm.broadcast(mine, root), arrays[root])
        elif kind == 4:
            expected = cases.reduced(arrays, op) if comm.rank == root else arrays[comm.rank]
            cases.same(comm.reduce(mine, root, op), expected)
        elif kind == 5:
            cases.same(comm.all_gather(mine), np.stack(arrays))
        elif kind == 6:
            assert comm.all_gather_object((members, count)) == [(members, count)] * comm.size
        else:
            comm.barrier()

    def shared(self, which: int) -> None:
        """Sums of arrays that all map, and of some where only some ranks' are."""
        members, comm = self.groups[which]
        count = int(self.source.choice([100, 3000]))
        arrays = [cases.data_of(rank, count) for rank in members]
        mine = comm.empty(count, "float64")
        mine[:] = arrays[comm.rank]
        if self.source.random() < 0.3 and comm.rank == 0:
            mine = mine.copy()
        cases.same(comm.all_reduce(mine), cases.reduced(arrays))


def play(seed: int, steps: int) -> int:
    game = Play(cases.connect(), seed)
    for _ in range(steps):
        game.step()
    return len(game.groups)


def test_random_collectives_on_random_groups() -> None:
    groups = values(run_crew(4, play, 1, 1500))
    assert groups[0] > 3


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 5, 8])
def test_many_random_collectives_on_random_groups(size: int) -> None:
    # On two cores eight ranks take 30 to 50 s for it, and far longer beside other work.
    values(run_crew(size, play, size, 10_000, bound=10 * DEADLOCK))


def exchange_much(nbytes: int) -> tuple[int, int]:
    comm = rankspawn.init_parallel_env(timeout=None)
    data = np.zeros(nbytes, "uint8")
    if comm.rank == 1:
        data[[0, 1 << 31, -1]] = 7
    comm.broadcast(data, src=1)
    comm.all_reduce(data, "sum")
    return int(np.count_nonzero(data)), int(data[1 << 31])


@pytest.mark.slow
def test_more_bytes_than_31_bits_can_count() -> None:
    nbytes = (1 << 31) + 5000
    if psutil.virtual_memory().available < 4 * nbytes:
        pytest.skip("needs 9 GB of free memory")
    assert values(run_crew(2, exchange_much, nbytes)) == [(3, 14)] * 2


def broadcast_directly(how: str) -> list[Any]:
    """Large data of a root whose memory can be read, or not by one rank, or has no known place."""
    comm = cases.connect()
    direct.SMALLEST = 8
    calls: list[bool] = []
    read = direct.read_from

    def read_or_not(pid: int, address: int, target: memoryview) -> bool:
        done = read(pid if how != "refused" or comm.rank != 2 else -1, address, target)
        calls.append(done)
        return done

    vars(direct)["read_from"] = read_or_not
    for count in (1, 512, 5000):
        for root in range(comm.size):
            mine = cases.data_of(comm.rank, count)
            if how == "read-only" and comm.rank == root:
                mine.flags.writeable = False
            cases.same(comm.broadcast(mine, src=root), cases.data_of(root, count))
    turned = np.full((300, 2), float(comm.rank)).T
    assert (comm.broadcast(turned, src=1) == 1).all()
    return calls


@pytest.mark.parametrize("how", ["read", "refused", "read-only"])
def test_large_data_is_read_where_the_root_has_it(how: str) -> None:
    found = values(run_crew(3, broadcast_directly, how))

    assert all(all(calls) for calls in found) == (how != "refused")
    # Refused once, to rank 2, nobody tries again.
    assert [len(calls) for calls in found] == {
        "read": [7, 6, 7], "refused": [0, 1, 1], "read-only": [1, 0, 1],
    }[how]  # fmt: skip
