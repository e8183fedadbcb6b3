"""Ranks over an engine that compares nothing are told of mistakes all the same, by number."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rankspawn.parallel import agreeing
from rankspawn.parallel.announcing import Call
from rankspawn.parallel.over_engine import OverEngine, over_engine
from tests.parallel import cases
from tests.parallel.crew import run_crew, values
from tests.parallel.test_engines import Bytes


class Plain(Bytes):
    """An engine that has neither messages nor time limits."""

    has_messages = False
    has_tags = False
    has_timeouts = False


def connect(machines: str = "aaaaaaaa", engine: type[Bytes] = Bytes) -> OverEngine:
    """Ranks as if on these machines, one letter for each rank."""
    comm = cases.connect()
    machine = machines[comm.rank]
    agreeing._machine = lambda: machine
    return over_engine(engine(comm))


def told(call: Callable[[], object]) -> tuple[str, str, Any]:
    """The error of a call: its name, text, and the ranks that it is about."""
    try:
        call()
    except (RuntimeError, TimeoutError) as error:
        about = [getattr(error, name, None) for name in ("ranks", "rank", "missing")]
        return (
            type(error).__name__,
            str(error),
            next((each for each in about if each is not None), None),
        )
    return "", "", None


def call_something_else(machines: str) -> Any:
    comm = connect(machines)
    comm.barrier()
    found = told(lambda: comm.all_reduce(np.ones(4 if comm.rank == 2 else 3)))
    again = told(comm.barrier) if found[0] else None
    comm.close()
    return found, again


@pytest.mark.parametrize("machines", ["aaa", "abb", "abc"])
def test_two_ranks_that_call_different_things_are_named(machines: str) -> None:
    for rank, (found, again) in enumerate(values(run_crew(3, call_something_else, machines))):
        # Where ranks of one machine disagree, others may only see that those went no further.
        if found[0] == "CollectiveMismatchError":
            other = 0 if rank == 2 and machines == "abc" else found[2][1]
            assert found[2] == (rank, other)
            assert 2 in found[2]
            assert f"rank {rank} called all_reduce of float64[{4 if rank == 2 else 3}]" in found[1]
            assert f"{__file__}:" in found[1]
            assert "failed before, with CollectiveMismatchError" in again[1]
        else:
            assert (machines, rank) == ("abb", 0)


def be_late() -> Any:
    comm = connect(engine=Plain)
    if comm.rank == 2:
        # The others come here when they have given up.
        comm._engine.barrier(None)
        comm.close()
        return None
    found = told(lambda: comm.barrier(timeout=0.05))
    comm._engine.barrier(None)
    comm.close()
    return found


def test_a_rank_that_is_late_is_named_by_an_engine_without_time_limits() -> None:
    first, second, _ = values(run_crew(3, be_late))

    for found in (first, second):
        assert found[0] == "CollectiveTimeoutError"
        assert found[1].startswith("rank 2 did not come to barrier ")
        assert found[2] == (2,)


def leave_others(machines: str) -> Any:
    comm = connect(machines)
    comm.barrier()
    if comm.rank == 2:
        comm.close()
        return None
    return told(comm.barrier)


def test_ranks_have_the_numbers_of_all_ranks() -> None:
    _, found, _ = values(run_crew(3, leave_others, "baa"))[0:3]

    assert found[0] == "RankLostError"
    assert found[1].startswith("rank 2 has left ")
    assert found[2] == 2


def exchange_messages() -> Any:
    comm = connect("aab", Plain)
    if comm.rank == 0:
        comm.send(np.full(3, 7.0), 1, tag=5)
    if comm.rank == 1:
        assert comm.recv(np.zeros(3), 0, tag=5).tolist() == [7.0] * 3
        with pytest.raises(RuntimeError, match="messages between two of 3 ranks do not arrive"):
            comm.send(np.ones(1), 2)
        with pytest.raises(ValueError, match="bytes can only wait until all come"):
            comm.barrier(timeout=3)
    comm.barrier()
    return comm.statistics().waited_for.keys() <= {0, 1}


def test_messages_that_an_engine_cannot_carry_go_through_memory() -> None:
    assert values(run_crew(3, exchange_messages)) == [True] * 3


def go_without(how: str) -> Any:
    if how == "unreachable" and os.environ["RANK"] == "1":
        vars(agreeing)["open_at"] = fail_to_open
    if how == "switched off" and os.environ["RANK"] == "1":
        os.environ[agreeing.CHECK_VARIABLE] = "0"
    comm = connect("aab" if how == "unreachable" else "abc")
    agreement = comm._agreement
    assert agreement is not None
    assert agreement.find_loss("barrier") is None
    total = comm.all_reduce(np.ones(3)).tolist()
    part = comm.split(comm.rank % 2)
    assert part is not None
    found = part.all_gather_object(comm.rank)
    comm.close()
    return agreement.local is None, agreement._asks_all, total, found


def fail_to_open(address: str) -> int:
    raise RuntimeError(address)


@pytest.mark.parametrize("how", ["unreachable", "switched off"])
def test_ranks_that_share_no_memory_talk_all_the_same(how: str) -> None:
    found = values(run_crew(3, go_without, how))

    asks = how == "unreachable"
    assert found[0] == found[2] == (True, asks, [3.0] * 3, [0, 2])
    assert found[1] == (True, asks, [3.0] * 3, [1])


def lose_a_rank_in_the_engine() -> Any:
    comm = connect()
    comm.barrier()
    if comm.rank == 1:
        os._exit(3)
    return told(lambda: comm._guard(Call("barrier"), 0, None, fail_as_engines_do))


def fail_as_engines_do(wait: float | None) -> None:
    raise RuntimeError(f"Connection reset by peer {wait}")


def test_a_rank_that_the_engine_has_lost_is_named() -> None:
    ends = run_crew(3, lose_a_rank_in_the_engine)

    for end in (ends[0], ends[2]):
        assert (end.value[0], end.value[2]) == ("RankLostError", 1), end
