"""Communicators over an engine that can do little, and the errors of those that are missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import rankspawn
from rankspawn.parallel import Communicator, environment
from rankspawn.parallel.buffers import Flat
from rankspawn.parallel.engines import Engine, Transfers
from rankspawn.parallel.hierarchy import Hierarchy
from rankspawn.parallel.over_engine import OverEngine
from rankspawn.parallel.shared_memory import SharedMemory, alone
from tests.parallel import cases
from tests.parallel.crew import run_crew, values


class Bytes:
    """An engine that moves bytes, through memory in which only sums of float64 are made."""

    name = "bytes"
    has_messages = True
    has_tags = True
    has_timeouts = True

    def __init__(self, comm: Any) -> None:
        self._comm: SharedMemory = comm
        self.rank, self.size = comm.rank, comm.size

    def hold(self, tensor: Any) -> Flat:
        raise TypeError(f"{tensor} is on no device")

    def make_like(self, flat: Flat, shape: Sequence[int]) -> Flat:
        raise TypeError(f"{flat} is on no device: {shape}")

    def reduces(self, flat: Flat, op: str) -> bool:
        return (flat.dtype, op) == ("float64", "sum")

    def all_reduce(self, flat: Flat, op: str, timeout: float | None) -> None:
        self._comm.all_reduce(flat, op, timeout=timeout)

    def broadcast(self, data: Any, src: int, timeout: float | None) -> None:
        self._comm.broadcast(data, src, timeout=timeout)

    def all_gather(self, rows: Sequence[Any], data: Any, timeout: float | None) -> None:
        found = memoryview(self._comm.all_gather(data, timeout=timeout)).cast("B")
        for rank, row in enumerate(rows):
            row[:] = found[rank * len(row) : (rank + 1) * len(row)]

    def exchange(self, sends: Transfers, receives: Transfers, timeout: float | None) -> None:
        jobs = [(self.rank, other, data) for other, data in sends]
        jobs += [(other, self.rank, data) for other, data in receives]
        for source, to, data in sorted(jobs, key=lambda job: job[:2]):
            if source == self.rank:
                self.send(data, to, 0, timeout)
            else:
                self.recv(data, source, 0, timeout)

    def send(self, data: Any, dst: int, tag: int, timeout: float | None) -> None:
        self._comm.send(data, dst, tag, timeout=timeout)

    def recv(self, data: Any, src: int, tag: int, timeout: float | None) -> None:
        self._comm.recv(data, src, tag, timeout=timeout)

    def post(self, data: memoryview, dst: int, tag: int) -> None:
        self._comm.send(data, dst, tag)

    def barrier(self, timeout: float | None) -> None:
        self._comm.barrier(timeout=timeout)

    def split(self, groups: Sequence[Sequence[int]], mine: Sequence[int]) -> Bytes | None:
        color = mine[0] if tuple(mine) in groups else None
        part = self._comm.split(color, mine.index(self.rank) if mine else 0)
        return None if part is None else Bytes(part)

    def close(self) -> None:
        self._comm.close()


def connect() -> OverEngine:
    engine: Engine = Bytes(cases.connect())
    return OverEngine(engine)


def talk() -> Any:
    comm = connect()
    assert isinstance(comm, Communicator)
    for count in (0, 1, 513, 5000):
        cases.one_of_each(comm, count)
    for dtype in ("float16", "int16", "bool", "complex64"):
        cases.one_of_each(comm, 700, dtype)
    for op in ("prod", "min", "max", "avg", "band"):
        dtype = "uint8" if op == "band" else "float32"
        arrays = [cases.data_of(rank, 700, dtype) for rank in range(comm.size)]
        cases.same(comm.all_reduce(arrays[comm.rank].copy(), op), cases.reduced(arrays, op))
    cases.messages(comm)
    comm.barrier()
    pair = comm.split(comm.rank % 2, key=-comm.rank)
    assert pair is not None
    found = pair.all_gather_object(comm.rank)
    assert comm.split(None) is None
    assert comm.empty((2, 3)).shape == (2, 3)
    told = comm.statistics()
    comm.close()
    comm.close()
    with pytest.raises(RuntimeError, match=r"barrier was called after close\(\)"):
        comm.barrier()
    return pair.backend, found, told.calls["all_gather"], repr(comm)


def test_all_collectives_are_made_of_few() -> None:
    first, second, third = values(run_crew(3, talk))

    assert (first[0], first[1]) == (third[0], third[1]) == ("bytes", [2, 0])
    assert (second[0], second[1]) == ("alone", [1])
    assert first[2] == 8
    assert second[3] == "<Communicator bytes: rank 1 of 3>"


def make_mistakes() -> list[str]:
    comm = connect()
    stories = []
    calls = (
        lambda: comm.broadcast(np.ones(1), src=5),
        lambda: comm.send(np.ones(1), comm.rank),
        lambda: comm.all_to_all(np.ones(7)),
        lambda: comm.all_reduce(np.ones(3), "xor"),
        lambda: comm.all_reduce(np.ones(3), "avg", timeout=0.05) if comm.rank else comm.barrier,
        lambda: comm.barrier() if comm.rank else None,
    )
    for call in calls:
        try:
            call()
        except (ValueError, RuntimeError, TimeoutError) as error:
            stories.append(f"{type(error).__name__}: {error}")
    return stories


def test_mistakes_over_an_engine() -> None:
    first, second = values(run_crew(2, make_mistakes))

    assert len(first) == 4
    assert second[0].startswith("ValueError: src=5: ranks of this group are 0 to 1")
    assert second[1] == "ValueError: dst=1 is this rank itself"
    assert second[2].startswith("ValueError: all_to_all needs one entry per rank")
    assert second[3].startswith("ValueError: op='xor' is unknown")
    assert second[4].startswith(("CollectiveTimeoutError: ", "RankLostError: rank 0"))
    assert second[5].startswith("RuntimeError: barrier was called on a communicator that failed")


def fail(error: Exception, wait: float | None, seconds: float) -> BaseException:
    engine = Bytes(alone())
    comm = OverEngine(engine)
    explained = comm._explain(error, "barrier", wait, seconds)
    comm.close()
    return explained


def test_errors_of_engines_are_told_as_ours() -> None:
    late = fail(RuntimeError("Operation timed out!"), 0.5, 0.6)
    assert isinstance(late, rankspawn.CollectiveTimeoutError)
    assert "did not come to barrier in 0.5 s" in str(late)
    lost = fail(RuntimeError("Connection closed by peer [::1]:7"), None, 0.6)
    assert isinstance(lost, rankspawn.RankLostError)
    assert (lost.rank, lost.collective) == (-1, "barrier")
    for error in (RuntimeError("other"), ValueError("Connection reset")):
        assert fail(error, 9.0, 0.6) is error


def on_two_machines() -> Any:
    """Four ranks, as if two of them were on each of two machines."""
    whole = cases.connect()
    machine, place = whole.rank % 2, whole.rank // 2
    local = whole.split(machine)
    first = whole.split(0 if place == 0 else None)
    assert isinstance(local, SharedMemory)
    leaders = None if first is None else Bytes(first)
    comm = Hierarchy(Bytes(whole), leaders, local, [machine, machine + 2], [0, 1, 0, 1])
    for count in (0, 3, 5000):
        # Sums of two machines' sums: not in the order of ranks, so whole numbers.
        arrays = [cases.data_of(rank, count, "int64") for rank in range(4)]
        for op in ("sum", "max"):
            cases.same(comm.all_reduce(arrays[comm.rank].copy(), op), cases.reduced(arrays, op))
        for root in range(4):
            cases.same(comm.broadcast(arrays[comm.rank].copy(), src=root), arrays[root])
            wanted = cases.reduced(arrays) if comm.rank == root else arrays[comm.rank]
            cases.same(comm.reduce(arrays[comm.rank].copy(), dst=root), wanted)
    means = comm.all_reduce(np.full(5, float(comm.rank)), "avg")
    shared = comm.empty(2000, "float64")
    shared[:] = comm.rank
    comm.all_reduce(shared)
    calls = comm.statistics().calls["all_reduce"]
    comm.close()
    return means.tolist(), set(shared), calls


def test_ranks_of_a_machine_reduce_in_its_memory_first() -> None:
    assert values(run_crew(4, on_two_machines)) == [([1.5] * 5, {6.0}, 8)] * 4


@pytest.mark.parametrize(
    ("backend", "module", "message"),
    [
        ("torch", "torch", "backend='torch' needs torch, .* pip install torch"),
        ("torch:gloo", "torch", "backend='torch:gloo' needs torch"),
        ("paddle", "paddle", "backend='paddle' needs paddlepaddle"),
        ("mpi", "mpi4py", "backend='mpi' needs mpi4py and an MPI"),
    ],
)
def test_an_engine_that_is_not_installed_is_named(
    backend: str, module: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_current", None)
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(RuntimeError, match=message):
        rankspawn.init_parallel_env(backend)
