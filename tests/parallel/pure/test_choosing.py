"""The one rule by which ranks find what connects them."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType

import pytest

from rankspawn.parallel.choosing import Surroundings, choose, is_installed, look_around
from rankspawn.workers.meeting import MEETING_VARIABLE

ONE = Surroundings(rank=1, size=2)
FOREIGN = dataclasses.replace(ONE, has_place=False)
MANY = dataclasses.replace(ONE, nodes=2)
MPI = Surroundings(has_place=False, mpi_size=2, has_mpi4py=True)


@pytest.mark.parametrize(
    ("wanted", "here", "chosen"),
    [
        ("auto", Surroundings(), "alone"),
        ("auto", Surroundings(has_place=False), "alone"),
        ("auto", ONE, "shm"),
        # On one machine the memory is better than any framework.
        ("auto", dataclasses.replace(ONE, frameworks=("torch",)), "shm"),
        ("auto", dataclasses.replace(MANY, frameworks=("torch", "paddle")), "torch"),
        ("auto", dataclasses.replace(MANY, frameworks=("paddle",)), "paddle"),
        ("auto", dataclasses.replace(FOREIGN, frameworks=("torch",)), "torch"),
        ("auto", MPI, "mpi"),
        ("auto", dataclasses.replace(MPI, mpi_size=1), "alone"),
        ("auto", dataclasses.replace(MPI, has_mpi4py=False), "alone"),
        ("auto", dataclasses.replace(MPI, size=2, frameworks=("torch",)), "mpi"),
        # MPI has started rankrun, not this rank.
        ("auto", dataclasses.replace(MPI, size=2, has_place=True), "shm"),
        ("shm", ONE, "shm"),
        ("shm", Surroundings(), "alone"),
        ("alone", ONE, "alone"),
        ("torch", ONE, "torch"),
        ("torch:gloo", MANY, "torch:gloo"),
        ("paddle", FOREIGN, "paddle"),
        ("mpi", ONE, "mpi"),
    ],
)
def test_the_rule(wanted: str, here: Surroundings, chosen: str) -> None:
    assert choose(wanted, here) == chosen


@pytest.mark.parametrize(
    ("wanted", "here", "message"),
    [
        ("auto", MANY, "on 2 machines, .* use torch or paddlepaddle, .* mpirun .* mpi4py"),
        ("shm", MANY, "on 2 machines, and memory is shared within one"),
        ("auto", FOREIGN, "which rankspawn has not started, .* MASTER_ADDR"),
        ("auto", dataclasses.replace(ONE, role="PSERVER"), "of the role PSERVER is no rank"),
        ("torch", dataclasses.replace(ONE, role="PSERVER"), "of the role PSERVER is no rank"),
    ],
)
def test_where_nothing_connects_the_ranks_the_ways_are_named(
    wanted: str, here: Surroundings, message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        choose(wanted, here)


def test_a_process_looks_at_its_variables_and_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEETING_VARIABLE, raising=False)
    told = {"WORLD_SIZE": "4", "RANK": "3", "GROUP_WORLD_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "4"}
    told |= {"MASTER_ADDR": "a", "MASTER_PORT": "1", "PADDLE_TRAINER_ENDPOINTS": "a:1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    for name in ("torch", "paddle", "mpi4py"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    connected = ModuleType("paddle.distributed")
    setattr(connected, "is_initialized", lambda: True)  # noqa: B010 - which mypy would not have
    monkeypatch.setitem(sys.modules, "torch.distributed", ModuleType("torch.distributed"))
    monkeypatch.setitem(sys.modules, "paddle.distributed", connected)

    # The one that is connected first, whichever comes first in our list.
    assert look_around() == Surroundings(3, 4, 2, False, 4, True, ("paddle", "torch"))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not is_installed("torch")
    assert look_around().frameworks == ("paddle",)
