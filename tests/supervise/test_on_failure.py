"""``on_failure="continue"``: the others finish, and all failures are raised at once."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable

import pytest

import rankspawn
from rankspawn import (
    MultiprocessContext,
    ProcessExceptionGroup,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnTimeoutError,
)
from rankspawn.supervise.outcome import End
from rankspawn.supervise.supervisor import SupervisionPolicy
from tests.supervise.scripted_group import ScriptedEngine, ScriptedGroup, ScriptedReport

GOES_ON = SupervisionPolicy(stops_on_failure=False)


def fail_if_odd() -> int:
    rank = rankspawn.get_rank()
    if rank == 3:
        os._exit(7)
    if rank == 1:
        raise ValueError(f"rank {rank}")
    return rank * 10


def test_the_others_finish(run: Callable[..., MultiprocessContext]) -> None:
    context = run(fail_if_odd, nprocs=4, join=False, on_failure="continue")

    with pytest.raises(ProcessExceptionGroup, match=r"2 ranks \(1, 3\) of 4 failed") as caught:
        context.results()

    assert {type(error) for error in caught.value.exceptions} == {
        ProcessRaisedException,
        ProcessExitedException,
    }
    assert caught.value.results == {0: 0, 2: 20}
    first, second, third, fourth = context.outcomes()
    assert (first, third) == (0, 20)
    assert isinstance(second, ProcessRaisedException)
    assert isinstance(second.exception, ValueError)
    assert isinstance(fourth, ProcessExitedException)
    assert fourth.exit_code == 7


def one_fails_first(group: ScriptedGroup) -> None:
    group.raises(1, ValueError("no"))
    group.returns(0, "zero")
    group.ends(2, End.DIED, -9)


def test_the_error_survives_pickling_and_splitting() -> None:
    with (
        ScriptedEngine(one_fails_first, count=3).context(GOES_ON) as context,
        pytest.raises(ProcessExceptionGroup) as caught,
    ):
        context.join()

    copy = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, ProcessExceptionGroup)
    assert copy.results == caught.value.results == {0: "zero"}
    assert [type(error) for error in copy.exceptions] == [
        type(error) for error in caught.value.exceptions
    ]
    raised, rest = caught.value.split(ProcessRaisedException)
    assert isinstance(raised, ProcessExceptionGroup)
    assert isinstance(rest, ProcessExceptionGroup)
    assert raised.results == rest.results == {0: "zero"}


def test_nobody_is_stopped_before_the_end() -> None:
    engine = ScriptedEngine(one_fails_first, count=3)
    with (
        engine.context(GOES_ON) as context,
        pytest.raises(ProcessExceptionGroup, match=r"1, 2"),
    ):
        context.join()
    assert engine.groups[0].outcomes[0].end is End.RETURNED


def test_outcomes_of_a_group_that_is_stopped() -> None:
    def fail(group: ScriptedGroup) -> None:
        group.raises(1, ValueError("no"))

    with ScriptedEngine(fail).context(SupervisionPolicy(grace_period=0)) as context:
        victim, cause = context.outcomes()
    assert isinstance(victim, ProcessExitedException)
    assert "it was stopped because another rank failed" in str(victim)
    assert isinstance(cause, ProcessRaisedException)


def test_outcomes_when_the_time_is_over() -> None:
    def one_returns(group: ScriptedGroup) -> None:
        group.returns(0, "zero")

    policy = SupervisionPolicy(grace_period=0, timeout=0.1)
    with ScriptedEngine(one_returns).context(policy) as context:
        value, error = context.outcomes()
    assert value == "zero"
    assert isinstance(error, SpawnTimeoutError)


class Unreadable(ScriptedReport):
    """What a rank returned that cannot be unpickled here."""

    def result(self) -> object:
        raise ImportError("gone")


def test_a_result_that_cannot_be_read_is_no_result() -> None:
    def one_is_unreadable(group: ScriptedGroup) -> None:
        group.returns(0, "zero")
        group.ends(1, End.RETURNED, 0, Unreadable())

    with ScriptedEngine(one_is_unreadable).context(GOES_ON) as context:
        assert context.join()
        value, error = context.outcomes()
    assert value == "zero"
    assert isinstance(error, ImportError)
