"""What ``spawn`` accepts, and what it says about the rest."""

from __future__ import annotations

import itertools
import multiprocessing
import re
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from rankspawn.option_types import Options
from rankspawn.option_values import DebugpyRequest, DebugRequest
from rankspawn.options import (
    _DEPRECATED,
    _READERS,
    SpawnOptions,
    check_args,
    check_nprocs,
    check_rank_args,
    read_options,
)

DEPRECATED = {
    "selected_devices": ("0,1", "gpus"),
    "selected_gpus": ("0,1", "gpus"),
    "cluster_node_ips": ("127.0.0.1", "ips"),
    "node_ip": ("127.0.0.1", "ips"),
    "started_port": (6070, "launch"),
    "use_paddlecloud": (True, "PaddleCloud"),
}


def make_env(rank: int) -> dict[str, str | None]:
    """An ``env`` by rank."""
    return {"X": str(rank)}


def test_no_option_gives_the_defaults() -> None:
    assert read_options({}) == SpawnOptions()


def test_none_is_the_same_as_not_given() -> None:
    names = [field.name for field in fields(SpawnOptions)]
    assert read_options(dict.fromkeys([*names, *DEPRECATED])) == SpawnOptions()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("start_method", "spawn", "spawn"),
        ("backend", "gloo", "gloo"),
        ("gpus", "4,5", ("4", "5")),
        ("gpus", " 4 , 05 ", ("4", "5")),
        ("gpus", [4, 5], ("4", "5")),
        ("gpus", (np.int64(4), "5"), ("4", "5")),
        ("gpus", range(2), ("0", "1")),
        ("gpus", "GPU-8932f937,MIG-1/2/3", ("GPU-8932f937", "MIG-1/2/3")),
        ("xpus", "0", ("0",)),
        ("ips", "10.0.0.1, 10.0.0.2", ("10.0.0.1", "10.0.0.2")),
        ("ips", ["node-a", "[fe80::1]"], ("node-a", "fe80::1")),
        ("print_config", True, True),
        ("kwargs", {"lr": 0.1}, {"lr": 0.1}),
        ("rank_args", [(1,), [2, 3]], ((1,), (2, 3))),
        ("rank_args", iter([(1,)]), ((1,),)),
        ("rank_kwargs", [{"a": 1}, {}], ({"a": 1}, {})),
        ("on_failure", "continue", "continue"),
        ("env", {"A": "1", "B": None}, {"A": "1", "B": None}),
        ("env", make_env, make_env),
        ("logging", "inherit", "inherit"),
        ("logging", "relay", "relay"),
        ("stall_timeout", 3, 3.0),
        ("stacks", False, False),
        ("keep_alive_on_failure", True, True),
        ("debug", 1, DebugRequest(1)),
        ("debug", "2", DebugRequest(2)),
        ("debug", "hold", DebugRequest(0, holds=True)),
        ("debug", "1, hold", DebugRequest(1, holds=True)),
        ("debugpy", 1, DebugpyRequest(1)),
        ("debugpy", "2, wait", DebugpyRequest(2, waits=True)),
        ("debugpy", "all", DebugpyRequest(None)),
        ("timeout", 3, 3.0),
        ("timeout", np.float32(0.5), 0.5),
        ("timeout", float("inf"), None),
        ("grace_period", 0, 0.0),
        ("log_dir", "log", "log"),
        ("log_dir", Path("a/b"), "a/b"),
        ("tee", True, True),
        ("tee", "0,3", (0, 3)),
        ("tee", "0", (0,)),
        ("tee", [3, 0, 3], (0, 3)),
        ("prefix", "[{rank}] ", "[{rank}] "),
        ("on_report", make_env, make_env),
        ("trace", Path("run.html"), "run.html"),
        ("trace", "a/run.JSON", "a/run.JSON"),
        ("max_restarts", 2, 2),
        ("device_visibility", "own", "own"),
        ("share_devices", True, True),
        ("numa", "core-complex", "core-complex"),
        ("threads_per_rank", np.int32(4), 4),
        ("agent_store", True, True),
    ],
)
def test_a_supported_value_is_read(name: str, value: Any, expected: Any) -> None:
    assert getattr(read_options({name: value}), name) == expected


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_every_start_method_of_the_platform_is_accepted(method: str) -> None:
    assert read_options({"start_method": method}).start_method == method


def test_a_start_method_that_the_platform_lacks_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(ValueError, match=r"start_method='fork' does not exist .*use one of spawn"):
        read_options({"start_method": "fork"})


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("start_method", "vfork", ValueError, "'spawn', 'fork', 'forkserver'"),
        ("start_method", 1, TypeError, "start_method must be one of"),
        ("backend", "mpi", ValueError, "backend='mpi' is not supported"),
        ("logging", "rely", ValueError, "use one of 'inherit', 'relay', None"),
        ("gpus", 2, TypeError, r"gpus must be device ids, such as gpus='4,5' .* not 2 \(int\)"),
        ("gpus", {4, 5}, TypeError, "gpus must be device ids"),
        ("gpus", [True], TypeError, "gpus must be device ids"),
        ("gpus", [1.0], TypeError, "gpus must be device ids"),
        ("gpus", "", ValueError, "gpus selects no device"),
        ("gpus", [], ValueError, "gpus selects no device"),
        ("gpus", "4,,5", ValueError, "'' is no device id"),
        ("gpus", [-1], ValueError, "-1 is no device id"),
        ("gpus", "4,5,04", ValueError, "gpus names '4' twice: 4,5,4"),
        ("devices", "0", ValueError, "devices needs device_type"),
        ("device_type", "n pu", ValueError, "device_type='n pu' is no device type"),
        ("device_type", "", ValueError, "device_type must not be empty"),
        ("ips", 1, TypeError, "ips must be node addresses"),
        ("ips", "", ValueError, "'' is no address"),
        ("ips", [], ValueError, "ips is empty"),
        ("ips", [1], TypeError, "ips must be node addresses"),
        ("ips", "10.0.0.1:6070", ValueError, "names a port"),
        ("ips", "10.0.0.1 10.0.0.2", ValueError, "is no address"),
        ("ips", "a,b,a", ValueError, "ips names 'a' twice"),
        ("print_config", 1, TypeError, r"print_config must be True or False, not 1 \(int\)"),
        ("kwargs", [("a", 1)], TypeError, "kwargs must be a mapping"),
        ("kwargs", {1: 2}, TypeError, "the key 1 is no string"),
        ("rank_args", "ab", TypeError, "rank_args must be a sequence"),
        ("rank_args", 3, TypeError, "rank_args must be a sequence"),
        ("rank_kwargs", {"a": 1}, TypeError, "rank_kwargs must be a sequence with one mapping"),
        ("rank_kwargs", [{}, (1,)], TypeError, r"rank_kwargs\[1\] must be a mapping"),
        ("on_failure", "go on", ValueError, "'stop', 'continue'"),
        ("rank_args", itertools.repeat(1), TypeError, "must be a tuple"),
        ("rank_args", [(1,), 2], TypeError, r"rank_args\[1\] must be a tuple.*write \(2,\)"),
        ("env", ["A=1"], TypeError, "env must be a mapping, or a callable"),
        ("env", {"A": 1}, TypeError, r"env\['A'\] is 1 \(int\).*write str\(1\)"),
        ("env", {1: "A"}, TypeError, "the variable name 1 is not a string"),
        ("env", {"A=B": "1"}, ValueError, "'A=B' cannot be a variable's name"),
        ("env", {"A\0": "1"}, ValueError, "cannot be a variable's name"),
        ("env", {"": "1"}, ValueError, "cannot be a variable's name"),
        ("env", {"A": "\0"}, ValueError, "NUL"),
        ("debugpy", "one", ValueError, "debugpy='one' is no rank: give one such as 1, or 'all'"),
        ("debugpy", "1,hold", ValueError, "debugpy='1,hold' is no rank"),
        ("debug", -1, ValueError, "debug=-1 is out of range"),
        ("debug", "one", ValueError, "debug='one' is no rank: give one such as 1, 'hold'"),
        ("debug", "1,", ValueError, "debug='1,' is no rank"),
        ("timeout", 0, ValueError, "timeout=0 is out of range"),
        ("timeout", -1, ValueError, "timeout=-1 is out of range"),
        ("timeout", float("nan"), ValueError, "timeout=nan is out of range"),
        ("timeout", "3", TypeError, r"timeout must be a positive number .* not '3' \(str\)"),
        ("timeout", True, TypeError, "timeout must be a positive number"),
        ("grace_period", -0.1, ValueError, "grace_period=-0.1 is out of range"),
        ("log_dir", 3, TypeError, "log_dir must be a path"),
        ("log_dir", "", ValueError, "log_dir must not be empty"),
        ("tee", 1, TypeError, "tee must be True, False or ranks"),
        ("tee", "0,x", ValueError, "tee='0,x' names something that is no rank"),
        ("tee", "", ValueError, "no rank"),
        ("tee", [-1], ValueError, "no rank"),
        ("prefix", 1, TypeError, "prefix must be a string"),
        ("on_report", 1, TypeError, "on_report must be a function"),
        ("trace", "run.svg", ValueError, "a trace ends in .html"),
        ("preload", 1, TypeError, "preload must be module names"),
        ("preload", [1], TypeError, "preload must be module names"),
        ("preload", "a b", ValueError, "'a b' is no module name"),
        ("preload", ["numpy"], ValueError, "preload is for start_method='forkserver' only"),
        ("max_restarts", -1, ValueError, "max_restarts=-1 is out of range"),
        ("max_restarts", 1.0, TypeError, "max_restarts must be an int"),
        ("max_restarts", True, TypeError, "max_restarts must be an int"),
        ("device_visibility", "none", ValueError, "use one of 'all', 'own'"),
        ("numa", "all", ValueError, "use one of 'node', 'socket', 'exclusive', 'core-complex'"),
        ("threads_per_rank", 0, ValueError, "threads_per_rank=0 is out of range"),
        ("threads_per_rank", "4", TypeError, "threads_per_rank must be an int"),
    ],
)
def test_a_wrong_value_names_the_option_and_what_is_allowed(
    name: str, value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_options({name: value})


def test_a_huge_value_does_not_fill_the_message() -> None:
    with pytest.raises(TypeError) as caught:
        read_options({"timeout": "x" * 10_000})
    assert len(str(caught.value)) < 300


def test_preload_goes_with_forkserver() -> None:
    options = read_options({"preload": "numpy,os.path", "start_method": "forkserver"})
    assert options.preload == ("numpy", "os.path")


@pytest.mark.parametrize(
    "given",
    [
        {"gpus": "0", "xpus": "0"},
        {"gpus": "0", "devices": "0", "device_type": "npu"},
        {"xpus": "0", "device_type": "npu"},
    ],
)
def test_only_one_kind_of_device_can_be_selected(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"cannot be given at once|goes with devices"):
        read_options(given)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("gpu", "gpus"),
        ("start_methods", "start_method"),
        ("time_out", "timeout"),
        ("selected_gpu", "selected_gpus"),
        ("GPUS", "gpus"),
        ("environment", "env"),
        ("max_restart", "max_restarts"),
    ],
)
def test_an_unknown_name_is_told_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"no option '{name}': did you mean '{nearest}'") as caught:
        read_options({name: 1})
    assert "threads_per_rank" in str(caught.value)


def test_an_unknown_name_that_resembles_nothing_is_told_all_names() -> None:
    with pytest.raises(ValueError, match=r"no option 'qqq'\. Supported are start_method, backend"):
        read_options({"qqq": 1})


@pytest.mark.parametrize("name", DEPRECATED)
def test_a_deprecated_name_says_what_to_use(name: str) -> None:
    value, replacement = DEPRECATED[name]
    with pytest.warns(DeprecationWarning, match=f"{name} is deprecated: .*{replacement}"):
        read_options({name: value})


@pytest.mark.parametrize("old", ["selected_devices", "selected_gpus"])
@pytest.mark.parametrize(
    ("others", "new"),
    [
        ({}, "selected_devices"),
        ({"backend": "auto"}, "selected_devices"),
        ({"backend": "nccl"}, "gpus"),
        ({"backend": "bkcl"}, "xpus"),
        ({"backend": "xccl"}, "devices"),
        ({"device_type": "npu"}, "devices"),
    ],
)
def test_selected_devices_become_those_of_the_backend(
    old: str, others: dict[str, str], new: str
) -> None:
    with pytest.warns(DeprecationWarning, match=old):
        options = read_options({old: "1,2", **others})
    assert getattr(options, new) == ("1", "2")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"selected_gpus": 4}, "selected_gpus must be device ids, such as selected_gpus='4,5'"),
        ({"selected_gpus": "4,4"}, "selected_gpus names '4' twice"),
        ({"selected_devices": "4,-1", "backend": "nccl"}, "selected_devices: '-1' is no device"),
        ({"cluster_node_ips": "a,b,a"}, "cluster_node_ips names 'a' twice"),
    ],
)
def test_messages_have_the_name_that_was_written(given: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        read_options(given)


def test_devices_may_repeat_where_that_is_asked_for() -> None:
    for name in ("gpus", "xpus"):
        assert getattr(read_options({name: "4,4", "share_devices": True}), name) == ("4", "4")
        with pytest.raises(ValueError, match=r"twice: 4,4; .*share_devices=True"):
            read_options({name: "4,4", "share_devices": False})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_deprecated_names_keep_their_meaning() -> None:
    given = {"cluster_node_ips": "10.0.0.1,10.0.0.2", "node_ip": "10.0.0.2", "started_port": 7000}
    options = read_options(given)
    assert options.ips == ("10.0.0.1", "10.0.0.2")
    assert (options.node_ip, options.started_port) == ("10.0.0.2", 7000)
    assert read_options({"use_paddlecloud": True}).use_paddlecloud


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"selected_gpus": "0", "gpus": "0"}, "selected_gpus and gpus mean the same"),
        ({"selected_devices": "0", "xpus": "0"}, "selected_devices and xpus mean the same"),
        ({"selected_gpus": "0", "selected_devices": "0"}, "mean the same"),
        ({"cluster_node_ips": "a", "ips": "a"}, "cluster_node_ips and ips mean the same"),
        ({"started_port": 0}, "started_port=0 is out of range"),
        ({"started_port": 65536}, "at most 65535"),
        ({"node_ip": "a:1"}, "names a port"),
    ],
)
def test_deprecated_names_are_checked_too(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_options(given)


def test_the_warning_points_at_the_users_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_options({"selected_gpus": "0"})
        read_options({"selected_gpus": "0"})
    lines = [warning.lineno for warning in caught]
    assert [warning.filename for warning in caught] == [__file__, __file__]
    assert lines[1] == lines[0] + 1


def test_options_do_not_change_with_what_they_were_read_from() -> None:
    env = {"A": "1"}
    kwargs = {"lr": 1}
    options = read_options({"env": env, "kwargs": kwargs})
    env["A"] = "2"
    kwargs["lr"] = 2
    assert options.env == {"A": "1"}
    assert options.kwargs == {"lr": 1}


@pytest.mark.parametrize("nprocs", [-1, 1, 64, np.int64(2)])
def test_nprocs_may_be_minus_one_or_positive(nprocs: Any) -> None:
    got = check_nprocs(nprocs)
    assert got == nprocs
    assert type(got) is int


@pytest.mark.parametrize(
    ("nprocs", "error"),
    [
        (0, ValueError),
        (-2, ValueError),
        (True, TypeError),
        (False, TypeError),
        (1.0, TypeError),
        ("2", TypeError),
        (None, TypeError),
    ],
)
def test_other_numbers_of_processes_are_errors(nprocs: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"nprocs.*a positive int, or -1"):
        check_nprocs(nprocs)


@pytest.mark.parametrize("args", [(), [], (1, 2), [1, 2]])
def test_args_are_a_tuple_or_a_list(args: Any) -> None:
    assert check_args(args) == tuple(args)


@pytest.mark.parametrize("args", ["text", 1, None, {"a": 1}, range(2)])
def test_a_bare_value_is_told_how_to_write_args(args: Any) -> None:
    with pytest.raises(TypeError, match=r"args=\(value,\)") as caught:
        check_args(args)
    assert f"args=({args!r},)" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "row", "kind"), [("rank_args", (1,), "tuple"), ("rank_kwargs", {"a": 1}, "mapping")]
)
def test_rows_need_one_entry_per_rank(name: str, row: object, kind: str) -> None:
    check_rank_args(read_options({}), 2)
    with pytest.raises(ValueError, match=f"{name} has 100000 entries, but nprocs is 2"):
        check_rank_args(read_options({name: itertools.repeat(row)}), 2)
    check_rank_args(read_options({name: [row, row]}), 2)
    with pytest.raises(ValueError, match=f"{name} has 1 entries, .* give one {kind} per rank"):
        check_rank_args(read_options({name: [row]}), 2)


def test_rows_of_both_kinds_are_as_many() -> None:
    """Whatever nprocs is: on the CPU it may come from one of them."""
    options = read_options({"rank_args": [(1,)] * 3, "rank_kwargs": [{}] * 2})
    with pytest.raises(ValueError, match="rank_args has 3 entries, rank_kwargs has 2 entries: "):
        check_rank_args(options, 3)


def test_what_goes_on_after_a_failure_is_not_started_again() -> None:
    with pytest.raises(ValueError, match="give one of the two"):
        read_options({"on_failure": "continue", "max_restarts": 1})


def test_cpu_is_gloo_by_the_name_of_its_device() -> None:
    assert read_options({"backend": "cpu"}) == read_options({"backend": "gloo"})


def test_a_callable_environment_is_not_called_while_reading() -> None:
    def fail(rank: int) -> dict[str, str | None]:
        raise AssertionError(f"called for {rank}")

    env: Callable[[int], dict[str, str | None]] = fail
    assert read_options({"env": env}).env is fail


def test_checkers_know_the_options_that_are_read() -> None:
    assert Options.__annotations__.keys() == _READERS.keys() | _DEPRECATED.keys()
    assert not Options.__required_keys__


def test_the_reference_has_a_row_for_each_option_and_for_nothing_else() -> None:
    reference = (Path(__file__).parent.parent / "docs" / "reference.md").read_text()
    table = reference.partition("## Options\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == {*Options.__annotations__}


@pytest.mark.parametrize("name", ["start_method", "backend", "device_visibility"])
def test_checkers_know_the_values_that_are_accepted(name: str) -> None:
    known = get_args(get_args(get_type_hints(Options)[name])[0])
    with pytest.raises(ValueError, match="use one of") as caught:
        read_options({name: "?"})
    assert str(caught.value).endswith("use one of " + ", ".join(map(repr, known)))
