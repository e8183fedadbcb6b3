"""The environment of our ranks, next to the one that real Paddle computes for its own.

Paddle is a black box here: it is told how many devices there are, and asked for the
variables of its workers. What both say about ranks, devices and endpoints must be equal,
except where we differ on purpose; each of these cases is listed with its reason.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest

from rankspawn.options import read_options
from rankspawn.plan.job import make_plan, resolve

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # Paddle says the same of the CPU as we do.
    pytest.mark.filterwarnings("ignore:Your model will be trained under CPUONLY:UserWarning"),
]

COUNT = 8
CLOUD = {
    "PADDLE_TRAINERS": "10.0.0.1,10.0.0.2",
    "POD_IP": "10.0.0.2",
    "PADDLE_TRAINER_ID": "1",
    "TRAINER_PORTS_NUM": "2",
    "PADDLE_TRAINERS_NUM": "2",
}
LISTED = "10.0.0.1:7001,10.0.0.1:7002,10.0.0.2:7003,10.0.0.2:7004"
READ_BY_BOTH = ("PADDLE_", "FLAGS_selected_", "TRAINER_", "POD_", "DISTRIBUTED_")


class EightOfEach:
    """A machine with eight GPUs, XPUs and NPUs, which is the second of two nodes."""

    def device_count(self, device_type: str) -> int:
        """Eight of the types that Paddle is told about."""
        return COUNT if device_type in ("gpu", "xpu", "npu") else 0

    def gpu_vendor(self) -> str:
        """The one that Paddle's CPU build is told about."""
        return "nvidia"

    def cpus(self) -> int:
        """Some."""
        return 4

    def addresses(self) -> frozenset[str]:
        """The second of two nodes."""
        return frozenset({"127.0.0.1", "10.0.0.2"})

    def resolve(self, host: str) -> frozenset[str]:
        """Addresses stand for themselves."""
        return frozenset({host})


@pytest.fixture(scope="module")
def paddle_spawn() -> Any:
    """Paddle's spawn module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("paddle")
        return importlib.import_module("paddle.distributed.spawn")


@pytest.fixture(autouse=True)
def eight_of_each(paddle_spawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paddle believes in eight devices of each type, and no variable is set yet."""
    core = paddle_spawn.core
    answers: dict[str, Any] = {
        "is_compiled_with_cuda": True,
        "is_compiled_with_xpu": True,
        "get_cuda_device_count": COUNT,
        "get_xpu_device_count": COUNT,
        "get_all_custom_device_type": ["npu"],
        "get_custom_device_count": COUNT,
    }
    for name, answer in answers.items():
        # The CPU build lacks some of these.
        monkeypatch.setattr(core, name, lambda *_, answer=answer: answer, raising=False)
    for name in list(os.environ):
        if name.startswith(READ_BY_BOTH) or name.endswith("_VISIBLE_DEVICES"):
            monkeypatch.delenv(name)


Ranks = list[dict[str, str]]


def paddle_says(
    paddle_spawn: Any, nprocs: int, options: Mapping[str, Any], environ: Mapping[str, str]
) -> Ranks:
    """The variables that Paddle would set in each of its workers."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        given = dict(options)
        paddle_spawn._options_valid_check(given)
        ranks: Ranks = paddle_spawn._get_subprocess_env_list(nprocs, given)
        return ranks


def we_say(nprocs: int, options: Mapping[str, Any], environ: Mapping[str, str]) -> Ranks:
    """The variables that we set, as far as they are Paddle's."""
    job = resolve(nprocs, read_options(options), environ, EightOfEach())
    ports = job.topology.own.ports or range(5000, 5000 + nprocs)
    plan = make_plan(job, ports, run_id="job")
    return [
        {
            name: value
            for name, value in spec.env.items()
            if value is not None and name.startswith(("PADDLE_", "FLAGS_selected_"))
        }
        for spec in plan.ranks
    ]


def without_free_ports(ranks: Ranks) -> Ranks:
    """The same with the ports of loopback, which are free ones, in order: 0, 1, …."""
    endpoints = ranks[0]["PADDLE_TRAINER_ENDPOINTS"].split(",")
    assert len(set(endpoints)) == len(endpoints)
    plain = [f"{e.rpartition(':')[0]}:{n}" for n, e in enumerate(endpoints)]
    return [
        rank
        | {
            "PADDLE_TRAINER_ENDPOINTS": ",".join(plain),
            "PADDLE_CURRENT_ENDPOINT": plain[endpoints.index(rank["PADDLE_CURRENT_ENDPOINT"])],
        }
        for rank in ranks
    ]


MASKS = [None, "0,1,2,3", "4,5,6,7", "7,2,5,0"]


@pytest.mark.parametrize(("mask", "nprocs"), list(product(MASKS, [1, 2, 3, 4])))
def test_one_node_on_gpus(paddle_spawn: Any, mask: str | None, nprocs: int) -> None:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    options = {"backend": "nccl"}
    ours = we_say(nprocs, options, environ)
    theirs = paddle_says(paddle_spawn, nprocs, options, environ)
    assert without_free_ports(ours) == without_free_ports(theirs)


SELECTIONS = [("5,7", None), ("7,5", "4,5,6,7"), ("5,7", "4,5,6,7"), ("0,2", "7,2,5,0"), ("3", "3")]


@pytest.mark.parametrize("name", ["gpus", "selected_devices"])
@pytest.mark.parametrize(("selection", "mask"), SELECTIONS)
def test_selected_gpus(paddle_spawn: Any, name: str, selection: str, mask: str | None) -> None:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    options = {"backend": "nccl", name: selection}
    nprocs = selection.count(",") + 1
    ours = we_say(nprocs, options, environ)
    theirs = paddle_says(paddle_spawn, nprocs, options, environ)
    assert without_free_ports(ours) == without_free_ports(theirs)


@pytest.mark.parametrize(
    ("backend", "environ"),
    [("bkcl", {}), ("xccl", {}), ("xccl", {"FLAGS_selected_npus": "4,5,6,7"}), ("gloo", {})],
)
@pytest.mark.parametrize("nprocs", [1, 2, 4])
def test_one_node_on_other_devices(
    paddle_spawn: Any, backend: str, environ: dict[str, str], nprocs: int
) -> None:
    options = {"backend": backend}
    ours = we_say(nprocs, options | ({"device_type": "npu"} if backend == "xccl" else {}), environ)
    theirs = paddle_says(paddle_spawn, nprocs, options, environ)
    assert without_free_ports(ours) == without_free_ports(theirs)


NODES = [
    {"ips": "10.0.0.1,10.0.0.2", "node_ip": "10.0.0.2"},
    {"ips": "10.0.0.1,10.0.0.2", "node_ip": "10.0.0.1"},
    {"cluster_node_ips": "10.0.0.2,10.0.0.1", "node_ip": "10.0.0.2"},
    {"ips": "10.0.0.1,10.0.0.2,10.0.0.3", "node_ip": "10.0.0.2", "started_port": 7000},
    {"started_port": 7000},
]


@pytest.mark.parametrize(("options", "nprocs"), list(product(NODES, [1, 2, 3])))
def test_several_nodes(paddle_spawn: Any, options: dict[str, Any], nprocs: int) -> None:
    options = {"backend": "nccl", **options}
    assert we_say(nprocs, options, {}) == paddle_says(paddle_spawn, nprocs, options, {})


def test_one_node_at_an_address_of_its_own(paddle_spawn: Any) -> None:
    options = {"backend": "nccl", "ips": "10.0.0.2"}
    ours, theirs = we_say(2, options, {}), paddle_says(paddle_spawn, 2, options, {})
    assert without_free_ports(ours) == without_free_ports(theirs)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"PADDLE_PORT": "7100"},
        {"DISTRIBUTED_TRAINER_ENDPOINTS": LISTED},
        {"DISTRIBUTED_TRAINER_ENDPOINTS": LISTED, "PADDLE_PORT": "7100"},
    ],
)
def test_paddlecloud(paddle_spawn: Any, named: bool, extra: dict[str, str]) -> None:
    options: dict[str, Any] = {"backend": "nccl"} | ({"use_paddlecloud": True} if named else {})
    environ = CLOUD | extra
    assert we_say(2, options, environ) == paddle_says(paddle_spawn, 2, options, environ)


def test_incomplete_cloud_variables_mean_one_node(paddle_spawn: Any) -> None:
    environ = {name: value for name, value in CLOUD.items() if name != "TRAINER_PORTS_NUM"}
    options = {"backend": "nccl"}
    ours, theirs = we_say(2, options, environ), paddle_says(paddle_spawn, 2, options, environ)
    assert without_free_ports(ours) == without_free_ports(theirs)


@pytest.mark.parametrize(
    ("nprocs", "options", "environ", "error"),
    [
        (9, {"backend": "nccl"}, {}, RuntimeError),
        (3, {"backend": "nccl"}, {"CUDA_VISIBLE_DEVICES": "4,5"}, RuntimeError),
        (3, {"backend": "nccl", "gpus": "5,7"}, {}, ValueError),
        (2, {"backend": "nccl", "gpus": "5,9"}, {"CUDA_VISIBLE_DEVICES": "4,5"}, ValueError),
        (1, {"backend": "nccl", "node_ip": "10.0.0.2"}, {}, ValueError),
        (1, {"backend": "nccl", "no_such_option": 1}, {}, ValueError),
    ],
)
def test_the_same_mistakes_are_the_same_errors(
    paddle_spawn: Any,
    nprocs: int,
    options: dict[str, Any],
    environ: dict[str, str],
    error: type[Exception],
) -> None:
    with pytest.raises(error):
        we_say(nprocs, options, environ)
    with pytest.raises(error):
        paddle_says(paddle_spawn, nprocs, options, environ)


def column(ranks: Ranks, name: str) -> list[str]:
    return [rank[name] for rank in ranks]


class TestDifferencesOnPurpose:
    """Each one states what Paddle does, so that a change of it shows up here."""

    def test_xpus_are_told_their_position_in_the_mask(self, paddle_spawn: Any) -> None:
        """A mask renumbers: index 5 of a process that sees four devices does not exist."""
        options = {"backend": "bkcl", "xpus": "5,7"}
        environ = {"XPU_VISIBLE_DEVICES": "4,5,6,7"}
        theirs = paddle_says(paddle_spawn, 2, options, environ)
        assert column(theirs, "FLAGS_selected_xpus") == ["5", "7"]
        assert column(we_say(2, options, environ), "FLAGS_selected_xpus") == ["1", "3"]

    def test_an_empty_mask_shows_nothing(self, paddle_spawn: Any) -> None:
        """CUDA shows no device then, so the workers would fail later and worse."""
        options, environ = {"backend": "nccl"}, {"CUDA_VISIBLE_DEVICES": ""}
        assert len(paddle_says(paddle_spawn, 2, options, environ)) == 2
        with pytest.raises(RuntimeError, match="0 devices"):
            we_say(2, options, environ)

    def test_devices_that_the_backend_cannot_use_are_an_error(self, paddle_spawn: Any) -> None:
        """A selection that is ignored is a mistake that stays unnoticed."""
        options = {"backend": "gloo", "gpus": "0,1"}
        assert len(paddle_says(paddle_spawn, 2, options, {})) == 2
        with pytest.raises(ValueError, match="gpus cannot be used with backend='gloo'"):
            we_say(2, options, {})

    def test_several_nodes_may_run_on_the_cpu(self, paddle_spawn: Any) -> None:
        """Nothing about gloo is limited to one machine."""
        options = {"backend": "gloo", "ips": "10.0.0.1,10.0.0.2"}
        with pytest.raises(AssertionError):
            paddle_says(paddle_spawn, 2, options, {})
        assert column(we_say(2, options, {}), "PADDLE_TRAINER_ID") == ["2", "3"]

    def test_loopback_next_to_other_nodes_is_an_error(self, paddle_spawn: Any) -> None:
        """The other node would look for rank 0 on itself, and wait."""
        options = {"backend": "nccl", "ips": "127.0.0.1,10.0.0.2", "node_ip": "127.0.0.1"}
        assert len(paddle_says(paddle_spawn, 2, options, {})) == 2
        with pytest.raises(ValueError, match="means a different machine on every node"):
            we_say(2, options, {})

    def test_a_list_of_gpus_is_accepted(self, paddle_spawn: Any) -> None:
        """Ids need not be packed into a string."""
        options = {"backend": "nccl", "gpus": [5, 7]}
        with pytest.raises(AttributeError):
            paddle_says(paddle_spawn, 2, options, {})
        assert column(we_say(2, options, {}), "FLAGS_selected_gpus") == ["5", "7"]

    def test_the_oldest_name_of_gpus_still_works(self, paddle_spawn: Any) -> None:
        """Scripts of Paddle 2 use it."""
        options = {"backend": "nccl", "selected_gpus": "5,7"}
        with pytest.raises(ValueError, match="selected_gpus"):
            paddle_says(paddle_spawn, 2, options, {})
        assert column(we_say(2, options, {}), "FLAGS_selected_gpus") == ["5", "7"]

    def test_a_cloud_of_one_trainer_uses_free_ports(self, paddle_spawn: Any) -> None:
        """One node needs no agreed ports, so two jobs at once do not collide."""
        options, environ = {"backend": "nccl"}, CLOUD | {"PADDLE_TRAINERS_NUM": "1"}
        theirs = paddle_says(paddle_spawn, 2, options, environ)
        assert column(theirs, "PADDLE_CURRENT_ENDPOINT") == ["127.0.0.1:6070", "127.0.0.1:6071"]
        ours = we_say(2, options, environ)
        assert column(ours, "PADDLE_CURRENT_ENDPOINT") == ["127.0.0.1:5000", "127.0.0.1:5001"]
