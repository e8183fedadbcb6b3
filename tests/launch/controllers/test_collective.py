from __future__ import annotations

import sys
from itertools import product

import pytest

from rankspawn.launch.controllers import plan_programs, ports_needed
from rankspawn.launch.controllers.collective import plan_collective
from rankspawn.launch.flags import UsageError
from rankspawn.launch.programs import Node, ProgramSpec
from tests.launch.factories import column, config_of, job_of, make_nodes


def plan(
    line: str,
    nodes: list[Node],
    me: int = 0,
    *,
    environ: dict[str, str] | None = None,
    restart_count: int = 0,
    **facts: object,
) -> list[ProgramSpec]:
    config = config_of(line)
    return plan_collective(
        config,
        job_of(config, environ, **facts),
        nodes,
        me,
        master="10.0.0.1:5999",
        run_id="run",
        restart_count=restart_count,
    )


def test_torchruns_prefix_has_the_local_rank() -> None:
    nodes = make_nodes((6001, 6002), (6101, 6102))
    streams = [program.streams for program in plan("--nproc_per_node 2 --tee 3", nodes, 1)]
    assert [own and own.prefix for own in streams] == ["[default0]:", "[default1]:"]


def test_every_variable_of_one_worker() -> None:
    nodes = make_nodes((6001, 6002), (6101, 6102))
    tokens = {"RANKSPAWN_JOB_TOKEN": "s3cret", "PADDLE_JOB_TOKEN": "s3cret"}
    worker = plan("--nproc_per_node 2 --log_dir /logs", nodes, 1, environ=tokens, cpu=8)[1]
    assert worker.env == {
        "http_proxy": None,
        "https_proxy": None,
        "PADDLE_TRAINER_ID": "3",
        "PADDLE_TRAINERS_NUM": "4",
        "PADDLE_CURRENT_ENDPOINT": "10.0.0.2:6102",
        "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6001,10.0.0.1:6002,10.0.0.2:6101,10.0.0.2:6102",
        "PADDLE_DISTRI_BACKEND": "gloo",
        "PADDLE_MASTER": "10.0.0.1:5999",
        "PADDLE_GLOBAL_SIZE": "4",
        "PADDLE_LOCAL_SIZE": "2",
        "PADDLE_GLOBAL_RANK": "3",
        "PADDLE_LOCAL_RANK": "1",
        "PADDLE_NNODES": "2",
        "PADDLE_RANK_IN_NODE": "1",
        "PADDLE_LOG_DIR": "/logs",
        "POD_NAME": "pod1",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "6001",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "run",
        "TORCHELASTIC_USE_AGENT_STORE": None,
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:6001",
        "OMP_NUM_THREADS": "4",
        "RANKSPAWN_DEVICE_TYPE": "cpu",
        "RANKSPAWN_DEVICE": None,
        "RANKSPAWN_JOB_TOKEN": None,
        "PADDLE_JOB_TOKEN": None,
    }


def test_how_each_worker_is_started_and_logged() -> None:
    workers = plan("--nproc_per_node 2", make_nodes((1, 2), (1, 2)), 1)
    assert [worker.role for worker in workers] == ["trainer", "trainer"]
    assert [worker.rank for worker in workers] == [2, 3]
    assert [worker.on_terminal for worker in workers] == [True, False]
    # By global rank, so that nodes with a common file system do not write to one file.
    assert [worker.log_name for worker in workers] == ["workerlog.2", "workerlog.3"]
    assert {worker.command for worker in workers} == {
        (sys.executable, "-u", "train.py", "--lr", "0.1")
    }


@pytest.mark.parametrize(
    "sizes", [(1,), (4,), (2, 2), (1, 3), (3, 1, 2), (1, 1, 1, 1, 1), (8, 8, 8)]
)
def test_ranks_of_nodes_with_any_number_of_workers(sizes: tuple[int, ...]) -> None:
    nodes = make_nodes(*(range(6000, 6000 + size) for size in sizes))
    seen: list[str | None] = []
    for me, size in enumerate(sizes):
        workers = plan(f"--nproc_per_node {size}", nodes, me)
        seen += column(workers, "RANK")
        assert column(workers, "PADDLE_TRAINER_ID") == column(workers, "RANK")
        assert column(workers, "PADDLE_GLOBAL_RANK") == column(workers, "RANK")
        assert column(workers, "LOCAL_RANK") == [str(n) for n in range(size)]
        assert set(column(workers, "WORLD_SIZE")) == {str(sum(sizes))}
        assert set(column(workers, "LOCAL_WORLD_SIZE")) == {str(size)}
        assert set(column(workers, "GROUP_RANK")) == {str(me)}
        endpoints = str(workers[0].env["PADDLE_TRAINER_ENDPOINTS"]).split(",")
        for worker in workers:
            assert worker.env["PADDLE_CURRENT_ENDPOINT"] == endpoints[worker.rank]
    assert seen == [str(n) for n in range(sum(sizes))]


def test_the_order_in_which_nodes_are_listed_does_not_matter() -> None:
    nodes = make_nodes((1,), (2,), (3,))
    assert plan("--nproc_per_node 1", nodes, 1) == plan("--nproc_per_node 1", nodes[::-1], 1)


MASK = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}


@pytest.mark.parametrize(
    ("line", "environ", "indices"),
    [
        ("", MASK, ["0", "1", "2", "3"]),
        ("--nproc_per_node 2", MASK, ["0", "1"]),
        ("--devices 5,7", MASK, ["1", "3"]),
        ("--gpus 7,5", MASK, ["3", "1"]),
        ("--gpus 5,7", {}, ["5", "7"]),
        ("--nproc_per_node gpu", MASK, ["0", "1", "2", "3"]),
        ("--gpus GPU-b", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, ["1"]),
    ],
)
def test_gpus(line: str, environ: dict[str, str], indices: list[str]) -> None:
    nodes = make_nodes(range(6000, 6000 + len(indices)))
    workers = plan(line, nodes, environ=environ, devices={"gpu": 8})
    assert column(workers, "FLAGS_selected_gpus") == indices
    assert set(column(workers, "PADDLE_DISTRI_BACKEND")) == {"unset"}
    assert set(column(workers, "RANKSPAWN_DEVICE_TYPE")) == {"gpu"}


@pytest.mark.parametrize(
    ("line", "environ", "flag", "indices"),
    [
        ("--xpus 5,7", {"XPU_VISIBLE_DEVICES": "4,5,6,7"}, "FLAGS_selected_xpus", ["1", "3"]),
        ("--npus 1", {}, "FLAGS_selected_npus", ["1"]),
        ("--devices 3 --device_type mlu", {}, "FLAGS_selected_mlus", ["3"]),
    ],
)
def test_other_devices(line: str, environ: dict[str, str], flag: str, indices: list[str]) -> None:
    nodes = make_nodes(range(6000, 6000 + len(indices)))
    workers = plan(line, nodes, environ=environ, devices={"xpu": 8, "npu": 2, "mlu": 4})
    assert column(workers, flag) == indices


@pytest.mark.parametrize(
    ("line", "environ", "message"),
    [
        ("--devices 0,1", {}, "--devices 0,1 selects devices, but this machine shows none"),
        ("--gpus 0,1", {}, "^--gpus: the device '0' is not visible"),
        ("--gpus 5,9", MASK, "^--gpus: the device '9' is not visible: CUDA_VISIBLE_DEVICES='4,5"),
        (
            "--devices 4,5 --nproc_per_node 3",
            MASK,
            "^--devices='4,5' selects 2 devices, but --nproc",
        ),
        (
            "--nproc_per_node 5",
            MASK,
            "lower --nproc_per_node.*share them with --share_devices, or use --device_type cpu",
        ),
        (
            "--npus 9",
            {"ASCEND_RT_VISIBLE_DEVICES": "4,5"},
            "^--npus: the device '9' is not visible",
        ),
        ("--devices 9 --device_type gpu", MASK, "^--devices: the device '9' is not visible"),
        ("--devices 0 --device_type cpu", {}, "^--devices cannot be used with --device_type='cpu'"),
    ],
)
def test_devices_that_are_not_there(line: str, environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        job_of(config_of(line), environ)


def test_a_variable_that_selects_devices_is_named() -> None:
    environ = {"PADDLE_DEVICES": "9", "CUDA_VISIBLE_DEVICES": "4,5"}
    with pytest.raises(UsageError, match=r"^PADDLE_DEVICES: the device '9' is not visible"):
        job_of(config_of("", environ), environ)


@pytest.mark.parametrize("line", ["--nproc_per_node 1", "--server_num 1 --trainer_num 1"])
def test_variables_of_paddlecloud_are_not_asked_for_nodes(line: str) -> None:
    """The launcher finds its nodes by its flags; these contradict each other."""
    cloud = {
        "PADDLE_TRAINERS": "10.0.0.1,10.0.0.2",
        "POD_IP": "10.0.0.9",
        "PADDLE_TRAINER_ID": "7",
        "TRAINER_PORTS_NUM": "1",
    }
    assert job_of(config_of(line, cloud), cloud).nprocs == 1


def test_without_a_device_there_is_one_worker_per_cpu() -> None:
    assert job_of(config_of(""), cpu=3).nprocs == 3
    assert job_of(config_of("--device_type cpu"), cpu=3).nprocs == 3
    assert job_of(config_of("--nproc_per_node 7"), cpu=3).nprocs == 7


@pytest.mark.parametrize(
    ("line", "most"),
    [
        ("", "0"),
        ("--max_restart 5", "0"),
        ("--elastic_level 1", "3"),
        ("--elastic_level 0 --max_restart 5", "5"),
        ("--nnodes 1:2 --max_restart 5", "5"),
    ],
)
def test_restarts_are_announced_where_there_can_be_any(line: str, most: str) -> None:
    worker = plan(f"{line} --nproc_per_node 1", make_nodes((6001,)), restart_count=2)[0]
    assert worker.env["TORCHELASTIC_MAX_RESTARTS"] == most
    assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "2"


def test_threads_of_the_user_are_kept() -> None:
    worker = plan("--nproc_per_node 1", make_nodes((1,)), environ={"OMP_NUM_THREADS": "9"})[0]
    assert "OMP_NUM_THREADS" not in worker.env


def test_an_address_of_ipv6_has_brackets_in_endpoints_only() -> None:
    nodes = make_nodes((6001,), (6001,), hosts=["fd00::1", "fd00::2"])
    env = plan("--nproc_per_node 1", nodes, 1)[0].env
    assert env["PADDLE_TRAINER_ENDPOINTS"] == "[fd00::1]:6001,[fd00::2]:6001"
    assert env["MASTER_ADDR"] == "fd00::1"


def test_a_worker_of_a_parameter_server_does_not_pass_its_role_on() -> None:
    outer = {"TRAINING_ROLE": "TRAINER", "STAGE_ID": "1", "PADDLE_PORT": "7000"}
    inside = plan(
        "--nproc_per_node 1", make_nodes((1,)), environ={**outer, "RANKSPAWN_DEVICE_TYPE": "cpu"}
    )
    assert [inside[0].env[name] for name in outer] == [None] * 3
    # Whoever sets it without being a worker has a reason.
    outside = plan("--nproc_per_node 1", make_nodes((1,)), environ=outer)
    assert not outer.keys() & outside[0].env.keys()


def test_a_node_without_a_name_sets_none() -> None:
    assert "POD_NAME" not in plan("--nproc_per_node 1", [Node(0, "127.0.0.1", (6001,))])[0].env


def test_two_nodes_on_one_endpoint() -> None:
    nodes = make_nodes((6001,), (6001,), hosts=["127.0.0.1"] * 2)
    with pytest.raises(
        UsageError, match=r"nodes 0 and 1 would both use 127.0.0.1:6001.*start_port"
    ):
        plan("--nproc_per_node 1", nodes)


@pytest.mark.parametrize("ranks", [(0, 0), (1, 2), (0, 2), ()])
def test_nodes_that_are_not_numbered_from_0(ranks: tuple[int, ...]) -> None:
    nodes = [Node(rank, f"10.0.0.{place}", (1,)) for place, rank in enumerate(ranks)]
    with pytest.raises(ValueError, match="numbered from 0"):
        plan("--nproc_per_node 1", nodes)


def test_a_port_for_each_worker() -> None:
    with pytest.raises(ValueError, match="2 trainers need as many ports, not 1"):
        plan("--nproc_per_node 2", make_nodes((6001,)))


def test_the_mode_decides_who_plans() -> None:
    for line, roles in [
        ("--nproc_per_node 2", ["trainer", "trainer"]),
        ("--server_num 1 --trainer_num 1", ["server", "trainer"]),
        ("--run_mode ps", ["server", "trainer"]),
        ("--heter_worker_num 1", ["server", "trainer", "heter"]),
    ]:
        config = config_of(line)
        job = job_of(config)
        nodes = make_nodes(range(6000, 6000 + ports_needed(config, job)))
        programs = plan_programs(
            config, job, nodes, 0, master="m:1", gloo_path="/g", run_id="r", restart_count=0
        )
        assert [program.role for program in programs] == roles


def test_a_mode_without_programs_of_its_own() -> None:
    config = config_of(
        "--devices 4 ipu --hosts a --nproc_per_host 1 --ipus_per_replica 1 --ipu_partition p "
        "--vipu_server s"
    )
    job = job_of(config_of(""))
    assert ports_needed(config, job) == 0
    with pytest.raises(ValueError, match="'ipu' has no programs"):
        plan_programs(
            config, job, make_nodes(()), 0, master="", gloo_path="", run_id="", restart_count=0
        )


@pytest.mark.parametrize(
    ("nprocs", "nnodes"), [*product((1, 2, 3, 8), (1, 2, 5)), (64, 16)], ids=str
)
def test_endpoints_of_all_ranks_differ(nprocs: int, nnodes: int) -> None:
    nodes = make_nodes(*[range(6000, 6000 + nprocs)] * nnodes)
    plans = [plan(f"--nproc_per_node {nprocs}", nodes, me) for me in range(nnodes)]
    workers = [worker for plan in plans for worker in plan]
    assert len(set(column(workers, "PADDLE_CURRENT_ENDPOINT"))) == nprocs * nnodes
    assert len(set(column(workers, "PADDLE_TRAINER_ENDPOINTS"))) == 1
    assert [worker.on_terminal for worker in workers].count(True) == nnodes
