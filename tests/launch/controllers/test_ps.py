from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product

import pytest

from rankspawn.launch.controllers import ports_needed
from rankspawn.launch.controllers.ps import plan_ps
from rankspawn.launch.controllers.role_options import check_roles
from rankspawn.launch.controllers.roles import lay_out, listed_nodes
from rankspawn.launch.flags import UsageError
from rankspawn.launch.programs import Node, ProgramSpec
from tests.launch.factories import column, config_of, job_of, make_nodes
from tests.plan.conftest import FakeMachine

LISTS = "--servers 10.0.0.1:7001,10.0.0.2:7001 --trainers 10.0.0.2:7002,10.0.0.1:7002,10.0.0.1:7003"


def plan(
    line: str,
    nodes: list[Node],
    me: int = 0,
    *,
    environ: dict[str, str] | None = None,
    **facts: object,
) -> list[ProgramSpec]:
    config = config_of(line)
    return plan_ps(config, job_of(config, environ, **facts), nodes, me, gloo_path="/gloo")


def own_nodes(line: str) -> list[Node]:
    """The nodes of lists, seen from the first one."""
    return listed_nodes(config_of(f"{line} --host 10.0.0.1"), FakeMachine())[0]


COMMON = {
    "http_proxy": None,
    "https_proxy": None,
    "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6001,10.0.0.1:6002",
    "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6003,10.0.0.1:6004",
    "PADDLE_TRAINERS_NUM": "2",
    "POD_IP": "10.0.0.1",
    "POD_NAME": "pod0",
    "PADDLE_NNODES": "1",
    "PADDLE_GLOO_RENDEZVOUS": "3",
    "PADDLE_GLOO_FS_PATH": "/gloo",
    "PADDLE_GLOO_HTTP_ENDPOINT": "10.0.0.1:6005",
    "PADDLE_WITH_GLOO": "1",
    "PADDLE_LOG_DIR": "/logs",
    "OMP_NUM_THREADS": "2",
    "RANKSPAWN_DEVICE_TYPE": "cpu",
    "RANKSPAWN_DEVICE": None,
    "RANKSPAWN_JOB_TOKEN": None,
    "PADDLE_JOB_TOKEN": None,
}


def test_every_variable_of_a_server_and_a_trainer() -> None:
    nodes = make_nodes(range(6001, 6006))
    line = "--server_num 2 --trainer_num 2 --log_dir /logs"
    tokens = {"RANKSPAWN_JOB_TOKEN": "s3cret", "PADDLE_JOB_TOKEN": "s3cret"}
    programs = plan(line, nodes, environ=tokens, cpu=8)
    assert programs[1].env == COMMON | {
        "PADDLE_ROLE": "PSERVER",
        "TRAINING_ROLE": "PSERVER",
        "PADDLE_PORT": "6002",
        "PADDLE_LOCAL_RANK": "1",
    }
    assert programs[3].env == COMMON | {
        "PADDLE_ROLE": "TRAINER",
        "TRAINING_ROLE": "TRAINER",
        "PADDLE_PORT": "6004",
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_LOCAL_RANK": "1",
    }


def test_servers_start_first_and_the_first_trainer_is_shown() -> None:
    programs = plan("--server_num 2 --trainer_num 2", make_nodes(range(5)))
    assert [program.role for program in programs] == ["server"] * 2 + ["trainer"] * 2
    assert [program.log_name for program in programs] == [
        "serverlog.0",
        "serverlog.1",
        "workerlog.0",
        "workerlog.1",
    ]
    assert [program.on_terminal for program in programs] == [False, False, True, False]
    assert programs[0].command == (sys.executable, "-u", "train.py", "--lr", "0.1")


@pytest.mark.parametrize(
    ("servers", "trainers", "nnodes"), list(product((1, 2, 3), (1, 2, 4), (1, 2, 3)))
)
def test_counts_are_per_node(servers: int, trainers: int, nnodes: int) -> None:
    line = f"--server_num {servers} --trainer_num {trainers} --nnodes {nnodes}"
    config = config_of(line)
    needed = ports_needed(config, job_of(config))
    assert needed == servers + trainers + 1
    nodes = make_nodes(*[range(6000, 6000 + needed)] * nnodes)
    programs = [program for me in range(nnodes) for program in plan(line, nodes, me)]
    for role, count in (("server", servers), ("trainer", trainers)):
        slots = [program for program in programs if program.role == role]
        assert [slot.rank for slot in slots] == list(range(count * nnodes))
        assert column(slots, "PADDLE_LOCAL_RANK") == [str(n) for n in range(count)] * nnodes
    everybody = [
        *str(programs[0].env["PADDLE_PSERVERS_IP_PORT_LIST"]).split(","),
        *str(programs[0].env["PADDLE_TRAINER_ENDPOINTS"]).split(","),
        str(programs[0].env["PADDLE_GLOO_HTTP_ENDPOINT"]),
    ]
    assert len(set(everybody)) == len(everybody) == (servers + trainers) * nnodes + 1
    own = [f"{p.env['POD_IP']}:{p.env['PADDLE_PORT']}" for p in programs]
    assert sorted(own) == sorted(everybody[:-1])
    assert set(column(programs, "PADDLE_TRAINERS_NUM")) == {str(trainers * nnodes)}
    assert set(column(programs, "PADDLE_NNODES")) == {str(nnodes)}
    assert set(column(programs, "PADDLE_GLOO_HTTP_ENDPOINT")) == {everybody[-1]}
    trainer_ids = column(programs, "PADDLE_TRAINER_ID")
    assert [n for n in trainer_ids if n != "unset"] == [str(n) for n in range(trainers * nnodes)]


@pytest.mark.parametrize(
    ("line", "roles"),
    [
        ("--run_mode ps", ["server", "trainer"]),
        ("--server_num 2", ["server", "server", "trainer"]),
        ("--trainer_num 2", ["server", "trainer", "trainer"]),
        ("--run_mode ps --worker_num 2", ["server", "trainer", "trainer"]),
    ],
)
def test_what_is_not_given_is_one(line: str, roles: list[str]) -> None:
    config = config_of(line)
    nodes = make_nodes(range(ports_needed(config, job_of(config))))
    assert [program.role for program in plan(line, nodes)] == roles


def test_lists_say_what_runs_where() -> None:
    nodes = own_nodes(LISTS)
    assert nodes == [
        Node(0, "10.0.0.1", (7001, 7002, 7003)),
        Node(1, "10.0.0.2", (7001, 7002)),
    ]
    first, second = plan(LISTS, nodes, 0), plan(LISTS, nodes, 1)
    assert [(p.role, p.rank) for p in first] == [("server", 0), ("trainer", 1), ("trainer", 2)]
    assert [(p.role, p.rank) for p in second] == [("server", 1), ("trainer", 0)]
    assert column(first + second, "PADDLE_LOCAL_RANK") == ["0", "0", "1", "0", "0"]
    assert column(first, "PADDLE_PORT") == ["7001", "7002", "7003"]
    assert column(first, "PADDLE_TRAINER_ID") == ["unset", "1", "2"]
    assert set(column(first + second, "PADDLE_GLOO_HTTP_ENDPOINT")) == {"10.0.0.1:6767"}
    assert set(column(first + second, "PADDLE_NNODES")) == {"2"}
    # The node's first trainer is shown, whatever its rank.
    assert [p.on_terminal for p in first] == [False, True, False]
    assert [p.on_terminal for p in second] == [False, True]


def test_a_machine_may_have_servers_only() -> None:
    line = "--servers 10.0.0.1:1,10.0.0.1:2 --trainers 10.0.0.2:1"
    nodes = own_nodes(line)
    programs = plan(line, nodes, 0)
    assert [p.role for p in programs] == ["server", "server"]
    assert [p.on_terminal for p in programs] == [True, False]
    assert [p.role for p in plan(line, nodes, 1)] == ["trainer"]
    # Its devices are for trainers, of which it has none.
    selected = plan(f"{line} --gpus 0", nodes, 0, devices={"gpu": 1})
    assert set(column(selected, "FLAGS_selected_gpus")) == {"unset"}


def test_listed_endpoints_need_no_ports() -> None:
    config = config_of(LISTS)
    assert ports_needed(config, job_of(config)) == 0


def test_nodes_that_met_may_have_another_order_than_the_lists() -> None:
    nodes = make_nodes((), (), hosts=["10.0.0.2", "10.0.0.1"])
    assert [(p.role, p.rank) for p in plan(LISTS, nodes, 0)] == [("server", 1), ("trainer", 0)]


def test_localhost_is_loopback() -> None:
    line = "--servers localhost:1 --trainers 127.0.0.1:2"
    for host in ("", " --host localhost", " --host 127.0.0.1"):
        nodes, me = listed_nodes(config_of(line + host), FakeMachine())
        assert (nodes, me) == ([Node(0, "127.0.0.1", (1, 2))], 0)
        assert len(plan(line + host, nodes, me)) == 2


@pytest.mark.parametrize(
    ("hosts", "own", "me"),
    [
        (["10.0.0.1", "10.0.0.2"], {"10.0.0.2"}, 1),
        (["alpha", "beta"], {"10.0.0.7"}, 1),
    ],
)
def test_this_node_is_the_one_with_an_own_address(hosts: list[str], own: set[str], me: int) -> None:
    config = config_of(f"--servers {hosts[0]}:1,{hosts[1]}:1 --trainers {hosts[0]}:2")
    machine = FakeMachine(own=frozenset(own), names={"beta": "10.0.0.7"})
    assert listed_nodes(config, machine)[1] == me


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (LISTS, "none of the hosts .*10.0.0.1, 10.0.0.2.* belong to this machine.*--host"),
        ("--servers 127.0.0.1:1,127.0.0.2:1 --trainers 127.0.0.1:2", "several of the hosts"),
        (f"{LISTS} --host 10.0.0.9", "--host 10.0.0.9 is not among the hosts.*10.0.0.1, 10.0.0.2"),
        (f"{LISTS} --nnodes 3", "--nnodes 3 and --servers/--trainers contradict.*2 hosts"),
    ],
)
def test_lists_that_do_not_fit_this_machine(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        listed_nodes(config_of(line), FakeMachine())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--servers h:1", ("--servers", "--trainers", "--server_num and --trainer_num")),
        ("--trainers h:1", ("--trainers", "--servers", "--server_num and --trainer_num")),
        ("--servers h:1 --trainer_num 2", ("--servers", "--trainer_num", "--trainers")),
        ("--trainers h:1 --server_num 2", ("--trainers", "--server_num", "--servers")),
        ("--servers h:1 --trainers h:2 --server_num 3", ("--server_num 3", "--servers", "leave")),
        (
            "--servers h:1 --trainers h:2 --trainer_num 3",
            ("--trainer_num 3", "--trainers", "leave"),
        ),
        ("--servers h:1 --trainers h:1", ("h:1", "--servers", "--trainers", "port of its own")),
        ("--servers 10.0.0.1:1 --trainers 127.0.0.1:2", ("127.0.0.1:2", "different machine")),
        ("--servers h:1 --trainers h:6767", ("--gloo_port 6767", "h:6767", "change one")),
        ("--servers h:1 --trainers h:2 --nproc_per_node 1", ("--nproc_per_node 1", "--trainers")),
        ("--run_mode ps --nproc_per_node 2", ("--nproc_per_node 2", "ps", "--trainer_num 2")),
        ("--trainer_num 3 --nproc_per_node 2", ("--nproc_per_node 2", "ps", "--trainer_num 2")),
        ("--run_mode ps --nnodes 2:4", ("--run_mode ps", "--nnodes 2:4", "--nnodes 4")),
        ("--run_mode ps --heter_devices gpu", ("--heter_devices", "--run_mode ps")),
    ],
)
def test_options_that_contradict_each_other(line: str, words: tuple[str, ...]) -> None:
    config = config_of(line)
    with pytest.raises(UsageError) as caught:
        check_roles(config)
    assert [word for word in words if word not in str(caught.value)] == []
    # Nobody gets past it by not asking.
    with pytest.raises(UsageError):
        lay_out(config, make_nodes(range(9)))


@pytest.mark.parametrize(
    "line",
    [
        "--run_mode collective --server_num 1 --trainer_num 1",
        "--run_mode collective --servers h:1 --trainers h:2",
        "--run_mode ps --heter_worker_num 2",
    ],
)
def test_a_mode_and_the_flags_of_another(line: str) -> None:
    with pytest.raises(UsageError, match="--run_mode"):
        config_of(line)


def test_what_says_the_same_twice_is_no_contradiction() -> None:
    for line in (
        "--servers h:1,g:1 --trainers h:2,g:2 --server_num 1 --trainer_num 1",
        "--trainer_num 2 --nproc_per_node 2",
        "--run_mode ps --nproc_per_node 1",
    ):
        check_roles(config_of(line))


def test_without_a_word_about_servers_there_are_none() -> None:
    """Not even on a machine without a GPU, where other launchers chose them silently."""
    assert config_of("").run_mode == "collective"
    assert config_of("--nproc_per_node 2 --devices 0,1").run_mode == "collective"


def test_an_endpoint_on_no_node() -> None:
    nodes = make_nodes((), hosts=["10.0.0.1"])
    with pytest.raises(UsageError, match=r"--servers names 10.0.0.2:7001, but no node.*10.0.0.1"):
        plan(LISTS, nodes)


def test_lists_cannot_tell_two_nodes_on_one_address_apart() -> None:
    nodes = make_nodes((), (), hosts=["127.0.0.1", "localhost"])
    with pytest.raises(UsageError, match=r"nodes 0 and 1 are both localhost.*--server_num"):
        plan("--servers 127.0.0.1:1 --trainers 127.0.0.1:2", nodes)


def test_a_node_with_other_counts() -> None:
    nodes = make_nodes(range(4), range(5))
    with pytest.raises(
        UsageError, match=r"node 1 \(10.0.0.2\) has 5 ports, but 4 are needed.*same"
    ):
        plan("--server_num 1 --trainer_num 2", nodes)


def test_gloo() -> None:
    nodes = make_nodes(range(6001, 6004))
    assert set(column(plan("--run_mode ps --gloo_port 7799", nodes), COMMON_GLOO)) == {
        "10.0.0.1:7799"
    }
    off = plan("--run_mode ps --with_gloo 0", nodes)
    assert set(column(off, "PADDLE_WITH_GLOO")) == {"0"}
    listed = plan(f"{LISTS} --gloo_port 7799", own_nodes(LISTS))
    assert set(column(listed, COMMON_GLOO)) == {"10.0.0.1:7799"}


COMMON_GLOO = "PADDLE_GLOO_HTTP_ENDPOINT"


@pytest.mark.parametrize(
    ("line", "indices"),
    [
        ("--trainer_num 2 --device_type cpu", ["unset", "unset"]),
        ("--trainer_num 2 --gpus 5,7", ["1", "3"]),
        ("--trainer_num 2 --devices 5,7", ["1", "3"]),
        ("--trainer_num 2 --device_type gpu", ["0,1", "2,3"]),
        ("--trainer_num 1 --gpus 4,5,6", ["0,1,2"]),
    ],
)
def test_gpus_of_trainers(line: str, indices: list[str]) -> None:
    nodes = make_nodes(range(6001, 6003 + len(indices)))
    mask = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    server, *trainers = plan(line, nodes, environ=mask, devices={"gpu": 8})
    assert column(trainers, "FLAGS_selected_gpus") == indices
    assert "FLAGS_selected_gpus" not in server.env


@pytest.mark.parametrize(
    ("mask", "trainers", "seen"),
    [
        ("0,1,2,3", 4, ["0", "1", "2", "3"]),
        ("6,7", 1, ["6"]),
        ("6,7", 3, ["6", "7", "6"]),
        ("GPU-5e1ec7ed-1,GPU-5e1ec7ed-2", 2, ["GPU-5e1ec7ed-1", "GPU-5e1ec7ed-2"]),
    ],
)
def test_each_trainer_sees_one_gpu_of_a_mask(mask: str, trainers: int, seen: list[str]) -> None:
    nodes = make_nodes(range(6001, 6003 + trainers))
    environ = {"CUDA_VISIBLE_DEVICES": mask}
    server, *others = plan(f"--server_num=1 --worker_num={trainers}", nodes, environ=environ)
    assert column(others, "CUDA_VISIBLE_DEVICES") == seen
    assert set(column(others, "FLAGS_selected_gpus")) == {"0"}
    assert set(column(others, "RANKSPAWN_DEVICE_TYPE")) == {"gpu"}
    assert server.env["RANKSPAWN_DEVICE_TYPE"] == "cpu"
    assert not {"CUDA_VISIBLE_DEVICES", "FLAGS_selected_gpus"} & server.env.keys()


@pytest.mark.parametrize("mask", ["", "-1", None])
def test_trainers_run_on_the_cpu_unless_a_mask_shows_gpus(mask: str | None) -> None:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    programs = plan(
        "--server_num 1 --trainer_num 1", make_nodes(range(3)), environ=environ, devices={"gpu": 8}
    )
    assert set(column(programs, "RANKSPAWN_DEVICE_TYPE")) == {"cpu"}


@pytest.mark.parametrize("selected", ["4", "4,5,6"])
def test_gpus_that_cannot_be_shared_out(selected: str) -> None:
    with pytest.raises(UsageError, match=r"devices cannot be shared out among 2 trainers"):
        plan(f"--trainer_num 2 --gpus {selected}", make_nodes(range(4)), devices={"gpu": 8})


def test_ranks_of_an_outer_job_are_not_inherited() -> None:
    outer = {"RANK": "3", "PADDLE_TRAINER_ID": "3", "PADDLE_MASTER": "h:1", "STAGE_ID": "2"}
    server, trainer = plan("--run_mode ps", make_nodes(range(3)), environ=outer)
    assert [server.env[name] for name in outer] == [None] * 4
    assert trainer.env["PADDLE_TRAINER_ID"] == "0"
    assert trainer.env["RANK"] is None


def test_ipv6() -> None:
    line = "--servers [fd00::1]:7001 --trainers [fd00::1]:7002 --host fd00::1"
    nodes, me = listed_nodes(config_of(line), FakeMachine())
    assert nodes == [Node(0, "fd00::1", (7001, 7002))]
    programs = plan(line, nodes, me)
    assert column(programs, "PADDLE_PORT") == ["7001", "7002"]
    assert set(column(programs, "POD_IP")) == {"fd00::1"}
    assert set(column(programs, COMMON_GLOO)) == {"[fd00::1]:6767"}


def test_the_node_of_a_name_is_kept() -> None:
    nodes = [replace(node, name="abc") for node in make_nodes(range(3))]
    assert set(column(plan("--run_mode ps", nodes), "POD_NAME")) == {"abc"}
