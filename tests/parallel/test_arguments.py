"""What calls may be given; what is refused harms no communicator."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rankspawn
from rankspawn.parallel.over_engine import over_engine
from tests.parallel import cases
from tests.parallel.crew import run_crew, values
from tests.parallel.test_engines import Bytes


def give_odd_things(engine: bool) -> list[Any]:
    comm: Any = cases.connect()
    if engine:
        comm = over_engine(Bytes(comm))
    masked = np.ma.masked_array(np.ones(2), [False, True])
    calls: list[Callable[[], object]] = [
        lambda: comm.broadcast(np.full(2, float(comm.rank)), src=np.int64(1)).tolist(),
        lambda: comm.broadcast_object(comm.rank, src=True if comm.rank else 1),
        lambda: comm.all_reduce(np.matrix([[1.0, 2.0]])).tolist(),
        lambda: comm.all_reduce(np.matrix([[1.0], [2.0]]).T).tolist(),
        lambda: comm.all_reduce(masked),
        lambda: comm.broadcast(np.ones(1), src=0.0),
        lambda: comm.barrier(timeout="1"),
        lambda: comm.barrier(timeout=-1),
        lambda: comm.all_reduce(np.ones(1), timeout=float("nan")),
        lambda: comm.send(np.ones(1), 1 - comm.rank, timeout=-1),
        lambda: pickle.dumps(comm),
        lambda: comm.send(np.ones(1), 1 - comm.rank, tag="a"),
        lambda: comm.recv(np.ones(1), 1 - comm.rank, tag=1 << 70),
        lambda: comm.rank or comm.scatter(np.array(["a", "b"])),
        lambda: comm.all_reduce(np.ones(1), timeout=np.float32(60)).tolist(),
        lambda: comm.split([1]),
        lambda: comm.split(0, key="b"),
        lambda: comm.empty((2, -1)),
        lambda: [comm.empty(np.int64(3)).shape, comm.empty((np.int64(1), 2)).shape],
        lambda: comm.split(np.int64(comm.rank), key=0.5).size,
    ]
    found: list[Any] = []
    for call in calls:
        try:
            found.append(call())
        except (TypeError, ValueError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize("engine", [False, True])
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_odd_arguments_are_taken_or_refused_with_a_word(engine: bool) -> None:
    first, second = values(run_crew(2, give_odd_things, engine))

    assert first[:4] == second[:4]
    assert first[:4] == [[1.0, 1.0], 1, [[2.0, 4.0]], [[2.0, 4.0]]]
    assert [text.partition(":")[0] for text in first[4:11]] == [
        "TypeError", "ValueError", "TypeError", "ValueError", "ValueError", "ValueError",
        "TypeError",
    ]  # fmt: skip
    assert "give its .filled() copy" in first[4]
    assert first[5] == "ValueError: src=0.0: ranks of this group are 0 to 1"
    assert first[6] == "TypeError: timeout='1': seconds are a number, or None for no limit"
    assert first[7] == "ValueError: timeout=-1: seconds cannot be less than 0"
    assert "cannot be pickled: it belongs to its process" in first[10]
    assert first[11] == "TypeError: tag='a': tags are whole numbers"
    assert first[12].startswith("ValueError: tag=1180591620717411303424: tags have 63 bits")
    assert first[13].startswith("TypeError: scatter takes numbers and times, not str")
    assert first[14] == [2.0]
    assert first[15] == "TypeError: color=[1]: it is a whole number, a text, or None for no part"
    assert first[16] == "TypeError: key='b': ranks are ordered by numbers"
    assert first[17].startswith("ValueError")
    assert first[18:] == [[(3,), (1, 2)], 1]


def test_a_time_that_is_none_is_refused_before_anybody_waits() -> None:
    with pytest.raises(ValueError, match="timeout=-2: seconds cannot be less than 0"):
        rankspawn.init_parallel_env(timeout=-2)
