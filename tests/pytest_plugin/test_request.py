"""What a marker may say."""

from __future__ import annotations

from typing import Any

import pytest

from rankspawn.pytest_plugin.request import RanksRequest, read_marker

INI = {"timeout": "120", "start_method": "spawn"}


def read(*args: Any, **kwargs: Any) -> RanksRequest:
    return read_marker(args, kwargs, INI)


def test_defaults_come_from_the_configuration() -> None:
    request = read(4)

    assert (request.ranks, request.timeout) == (4, 120.0)
    assert request.options["start_method"] == "spawn"
    assert request.options["backend"] == "gloo"


def test_the_marker_wins_over_the_configuration() -> None:
    request = read(2, timeout=5, start_method="fork", backend="nccl", env={"A": "1"})

    assert request.timeout == 5.0
    assert request.options["start_method"] == "fork"
    assert request.options["backend"] == "nccl"
    assert request.options["env"] == {"A": "1"}


def test_devices_decide_about_the_backend() -> None:
    assert read(2, gpus="0,1").options["backend"] == "auto"


def test_number_by_name() -> None:
    assert read(n=3).ranks == 3


def test_a_fork_server_imports_pytest_once() -> None:
    preload = read(2, start_method="forkserver", preload=["json"]).options["preload"]

    assert "pytest" in preload
    assert preload[-1] == "json"


def test_no_limit() -> None:
    assert [read(2, timeout=limit).timeout for limit in (0, "0", None, float("inf"))] == [None] * 4


# In one test, since there are many and each is quick.
def test_a_wrong_marker_is_explained() -> None:
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "give the number of ranks"),
        ((2, 3), {}, "give the number of ranks"),
        ((2,), {"n": 2}, "give the number of ranks"),
        ((0,), {}, "positive int, not 0"),
        ((True,), {}, "positive int, not True"),
        (("2",), {}, "positive int, not '2'"),
        ((2,), {"timeout": "soon"}, "number of seconds, not 'soon'"),
        ((2,), {"timeout": -1}, "not be negative"),
        ((2,), {"timout": 3}, "unknown option 'timout'; there are timeout"),
        ((2,), {"log_dir": "x"}, "unknown option 'log_dir'"),
    ]
    for args, kwargs, words in cases:
        with pytest.raises((TypeError, ValueError), match=words):
            read(*args, **kwargs)
