from __future__ import annotations

from itertools import product

import pytest

from rankspawn.launch.controllers import ports_needed
from rankspawn.launch.controllers.heter import plan_heter
from rankspawn.launch.controllers.role_options import check_roles
from rankspawn.launch.controllers.roles import listed_nodes
from rankspawn.launch.flags import UsageError
from rankspawn.launch.programs import Node, ProgramSpec
from tests.launch.factories import column, config_of, job_of, make_nodes
from tests.plan.conftest import FakeMachine

COUNTS = "--run_mode ps-heter --server_num 1 --trainer_num 2 --heter_worker_num 2;1"
LISTS = (
    "--servers 10.0.0.1:1 --trainers 10.0.0.1:2,10.0.0.2:2 "
    "--heter_workers 10.0.0.1:3,10.0.0.2:3;10.0.0.2:4"
)


def plan(
    line: str,
    nodes: list[Node],
    me: int = 0,
    *,
    environ: dict[str, str] | None = None,
    **facts: object,
) -> list[ProgramSpec]:
    config = config_of(line)
    return plan_heter(config, job_of(config, environ, **facts), nodes, me, gloo_path="/gloo")


def stages_of(programs: list[ProgramSpec]) -> list[tuple[str, str | None, str | None]]:
    return [(p.role, p.env.get("STAGE_ID"), p.env["PADDLE_PORT"]) for p in programs]


def test_roles_and_stages() -> None:
    programs = plan(COUNTS, make_nodes(range(6001, 6008)))
    assert stages_of(programs) == [
        ("server", None, "6001"),
        ("trainer", "1", "6002"),
        ("trainer", "1", "6003"),
        ("heter", "2", "6004"),
        ("heter", "2", "6005"),
        ("heter", "3", "6006"),
    ]
    assert column(programs, "TRAINING_ROLE") == [
        "PSERVER",
        *["TRAINER"] * 2,
        *["HETER_TRAINER"] * 3,
    ]
    assert [program.log_name for program in programs] == [
        "serverlog.0",
        "workerlog.0",
        "workerlog.1",
        "heterlog.0",
        "heterlog.1",
        "heterlog.2",
    ]
    assert [program.on_terminal for program in programs].index(True) == 1
    assert column(programs, "PADDLE_TRAINER_ID") == ["unset", "0", "1", *["unset"] * 3]
    everybody = "10.0.0.1:6004,10.0.0.1:6005,10.0.0.1:6006"
    assert set(column(programs, "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST")) == {everybody}


def test_each_stage_knows_its_neighbours() -> None:
    server, trainer, _, second, _, third = plan(COUNTS, make_nodes(range(6001, 6008)))
    trainers, seconds = "10.0.0.1:6002,10.0.0.1:6003", "10.0.0.1:6004,10.0.0.1:6005"
    neighbours = [
        (
            program.env["PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST"],
            program.env["PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST"],
        )
        for program in (trainer, second, third)
    ]
    assert neighbours == [("", seconds), (trainers, "10.0.0.1:6006"), (seconds, "")]
    for program in (trainer, second, third):
        assert program.env["PADDLE_STAGE_TRAINERS_NUM"] == "[2, 2, 1]"
        assert program.env["STAGE_NUM"] == "3"
    assert not {"STAGE_ID", "STAGE_NUM", "HETER_DEVICE_TYPE"} & server.env.keys()


@pytest.mark.parametrize(
    ("stages", "nnodes"), list(product([(1,), (2,), (2, 1), (1, 2, 3)], [1, 2, 3]))
)
def test_counts_are_per_node(stages: tuple[int, ...], nnodes: int) -> None:
    line = f"--nnodes {nnodes} --heter_worker_num {';'.join(map(str, stages))}"
    config = config_of(line)
    needed = ports_needed(config, job_of(config))
    assert needed == 1 + 1 + sum(stages) + 1
    nodes = make_nodes(*[range(6000, 6000 + needed)] * nnodes)
    heter = [p for me in range(nnodes) for p in plan(line, nodes, me) if p.role == "heter"]
    assert sorted(p.rank for p in heter) == list(range(sum(stages) * nnodes))
    everybody = str(heter[0].env["PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST"]).split(",")
    for program in heter:
        # Ranks and the list count in the same order, stage after stage.
        assert everybody[program.rank] == f"{program.env['POD_IP']}:{program.env['PADDLE_PORT']}"
    by_rank = sorted(heter, key=lambda p: p.rank)
    expected = [str(n + 2) for n, count in enumerate(stages) for _ in range(count * nnodes)]
    assert column(by_rank, "STAGE_ID") == expected
    for me in range(nnodes):
        own = [p for p in plan(line, nodes, me) if p.role == "heter"]
        assert column(own, "PADDLE_LOCAL_RANK") == [str(n) for n in range(sum(stages))]


def test_lists() -> None:
    config = config_of(LISTS)
    nodes, me = listed_nodes(config, FakeMachine(own=frozenset({"10.0.0.2"})))
    assert me == 1
    assert config.run_mode == "ps-heter"
    assert stages_of(plan(LISTS, nodes, 0)) == [
        ("server", None, "1"),
        ("trainer", "1", "2"),
        ("heter", "2", "3"),
    ]
    second = plan(LISTS, nodes, 1)
    assert stages_of(second) == [("trainer", "1", "2"), ("heter", "2", "3"), ("heter", "3", "4")]
    assert [p.rank for p in second] == [1, 1, 2]
    assert column(second, "PADDLE_LOCAL_RANK") == ["0", "0", "1"]
    assert [p.on_terminal for p in second] == [True, False, False]


def test_a_machine_with_heter_workers_only_shows_the_first() -> None:
    line = "--servers 10.0.0.1:1 --trainers 10.0.0.1:2 --heter_workers 10.0.0.2:1,10.0.0.2:2"
    nodes, me = listed_nodes(config_of(f"{line} --host 10.0.0.2"), FakeMachine())
    assert [p.on_terminal for p in plan(line, nodes, me)] == [True, False]


def test_gloo_is_off_unless_asked_for() -> None:
    nodes = make_nodes(range(7))
    assert set(column(plan(COUNTS, nodes), "PADDLE_WITH_GLOO")) == {"0"}
    assert set(column(plan(f"{COUNTS} --with_gloo 1", nodes), "PADDLE_WITH_GLOO")) == {"1"}
    assert set(column(plan(f"{COUNTS} --with_gloo 0", nodes), "PADDLE_WITH_GLOO")) == {"0"}


MASK = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}


@pytest.mark.parametrize(
    ("line", "types", "indices"),
    [
        ("", ["cpu"] * 3, ["unset"] * 3),
        ("--heter_devices gpu", ["gpu"] * 3, ["unset"] * 3),
        ("--heter_devices gpu;cpu --gpus 5,7", ["gpu", "gpu", "cpu"], ["1", "3", "unset"]),
        ("--heter_devices cpu;gpu --gpus 5,7", ["cpu", "cpu", "gpu"], ["unset", "unset", "1,3"]),
        ("--gpus 4,5,7", ["gpu"] * 3, ["0", "1", "3"]),
        ("--devices 4,5,7", ["gpu"] * 3, ["0", "1", "3"]),
        ("--heter_devices gpu;xpu --gpus 5,7", ["gpu", "gpu", "xpu"], ["1", "3", "unset"]),
    ],
)
def test_devices_of_heter_workers(line: str, types: list[str], indices: list[str]) -> None:
    nodes = make_nodes(range(6001, 6008))
    programs = plan(f"{COUNTS} {line}", nodes, environ=MASK, devices={"gpu": 8})
    heter = [program for program in programs if program.role == "heter"]
    assert column(heter, "HETER_DEVICE_TYPE") == types
    assert column(heter, "FLAGS_selected_gpus") == indices
    rest = [program for program in programs if program.role != "heter"]
    assert column(rest, "HETER_DEVICE_TYPE") == ["unset", "cpu", "cpu"]
    assert set(column(rest, "FLAGS_selected_gpus")) == {"unset"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--heter_devices cpu --gpus 5,7", "type gpu, but --heter_devices cpu;cpu has no stage"),
        ("--gpus 5,7", "2 devices cannot be shared out among 3 heter workers on gpu"),
        ("--heter_devices gpu;cpu --gpus 4,5,6", "3 devices cannot be shared out among 2 heter"),
    ],
)
def test_devices_that_do_not_fit(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(f"{COUNTS} {line}", make_nodes(range(7)), environ=MASK, devices={"gpu": 8})


def test_devices_are_for_nodes_that_have_heter_workers_of_their_type() -> None:
    line = "--servers 10.0.0.1:1 --trainers 10.0.0.1:2 --heter_workers 10.0.0.2:1 --gpus 4"
    nodes, _ = listed_nodes(config_of(f"{line} --host 10.0.0.2"), FakeMachine())
    for me, indices in ((0, ["unset", "unset"]), (1, ["0"])):
        programs = plan(line, nodes, me, environ=MASK, devices={"gpu": 8})
        assert column(programs, "FLAGS_selected_gpus") == indices


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--run_mode ps-heter", ("--heter_worker_num", "--heter_workers", "--run_mode ps")),
        ("--heter_workers h:1", ("--heter_workers", "--servers and --trainers")),
        (
            "--servers h:1 --trainers h:2 --heter_worker_num 1",
            ("--servers", "--heter_worker_num", "--heter_workers"),
        ),
        ("--servers h:1 --trainers h:2 --heter_workers h:2", ("h:2", "port of its own")),
        ("--heter_worker_num 1;1;1 --heter_devices gpu;cpu", ("2 types", "3 stages")),
        ("--heter_worker_num 1 --nnodes 1:2", ("ps-heter", "--nnodes 1:2")),
    ],
)
def test_options_that_contradict_each_other(line: str, words: tuple[str, ...]) -> None:
    config = config_of(line)
    with pytest.raises(UsageError) as caught:
        check_roles(config)
    assert [word for word in words if word not in str(caught.value)] == []
