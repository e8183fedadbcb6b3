"""The error tree: what programs catch and read, also after a trip through pickle."""

from __future__ import annotations

import pickle

import pytest

from rankspawn import (
    NodeLostError,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnTimeoutError,
)
from tests.jobs import TwoArguments

ERRORS = [
    ProcessException("who and why", 3, 99),
    ProcessRaisedException("who and why", 3, 99, KeyError("k"), "Traceback ..."),
    ProcessRaisedException("who and why", 3, 99, TwoArguments(7, "bad luck"), "Traceback ..."),
    ProcessExitedException("who and why", 3, 99, -9, "SIGKILL"),
    NodeLostError("who and why", 3, 99, "gpu1"),
    SpawnTimeoutError("who and why", 3, 99, {0: "stack"}),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_survives_pickling(error: ProcessException) -> None:
    error.failures = (error, ProcessExitedException("another", 1, 2, 5))
    error.add_note("a note")

    back = pickle.loads(pickle.dumps(error))

    assert type(back) is type(error)
    assert (str(back), back.rank, back.error_index, back.pid, back.msg) == (
        "who and why",
        3,
        3,
        99,
        "who and why",
    )
    assert back.failures[0] is back
    assert [failure.rank for failure in back.failures] == [3, 1]
    assert back.__notes__ == ["a note"]
    for name in ("traceback", "exit_code", "signal_name", "host", "stacks"):
        assert getattr(back, name, None) == getattr(error, name, None)


def test_a_timeout_has_no_number_of_the_systems() -> None:
    error = SpawnTimeoutError("who and why", 3, 99, {})

    assert (error.errno, error.strerror) == (None, None)


def test_the_original_exception_is_the_cause_also_after_pickling() -> None:
    back = pickle.loads(pickle.dumps(ERRORS[1]))

    assert isinstance(back.__cause__, KeyError)
    assert back.__cause__ is back.exception


def test_an_original_that_pickle_alone_cannot_bring_back_comes_back() -> None:
    back = pickle.loads(pickle.dumps(ERRORS[2]))

    assert isinstance(back.exception, TwoArguments)
    assert (back.exception.code, back.exception.reason) == (7, "bad luck")


def test_the_names_of_torchs_parameters_work() -> None:
    error = ProcessExitedException(msg="m", error_index=1, error_pid=2, exit_code=3)

    assert (error.msg, error.rank, error.pid, error.exit_code) == ("m", 1, 2, 3)


def test_a_timeout_is_a_timeout_error() -> None:
    with pytest.raises(TimeoutError):
        raise ERRORS[-1]
