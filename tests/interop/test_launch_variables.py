"""The variables of our workers, next to those of real launchers for the same command.

``python -m paddle.distributed.launch`` and ``torchrun`` are black boxes here: they start
processes that report their environment. What a launcher draws by chance (ports, names of
nodes, temporary folders) is taken from theirs, so that everything else can be compared as it
stands. All differences are listed, each with its reason: one that goes or comes shows up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from rankspawn.launch.config import UsageError, read_config
from rankspawn.launch.controllers import plan_programs, ports_needed, resolve_job
from rankspawn.launch.controllers.ipu import ipu_command
from rankspawn.launch.controllers.role_options import check_roles
from rankspawn.launch.controllers.roles import listed_nodes
from rankspawn.launch.programs import Node
from tests.interop.launchers import (
    BASE,
    WORKER,
    Environment,
    compare,
    listed_endpoints,
    outputs,
    run,
    with_changes,
)
from tests.plan.conftest import FakeMachine
from tests.ports import free_port

pytestmark = pytest.mark.interop

needs_paddle = pytest.mark.skipif(find_spec("paddle") is None, reason="paddlepaddle is missing")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is missing")

ROLE = str(Path(__file__).with_name("paddle_role.py"))
PADDLE = (sys.executable, "-m", "paddle.distributed.launch")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")

MACHINE = FakeMachine(devices={"gpu": 8, "xpu": 8}, cpu=16)
CPU_ONLY = FakeMachine(cpu=16)


# --- differences and their reasons ------------------------------------------------------

OURS_ALONE = {
    "RANKSPAWN_DEVICE_TYPE": "tells rankspawn.ParallelEnv what the worker runs on",
}
# So that one worker can use any framework; see SPEC 3.
OTHER_DIALECTS = {
    **dict.fromkeys(
        (
            *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
            *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
            *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
            *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        ),
        "torch's variables, which Paddle's launcher does not set",
    ),
    "JAX_COORDINATOR_ADDRESS": "JAX's variable, which neither launcher sets",
}
THREADS = {"OMP_NUM_THREADS": "a fair share of the CPUs; theirs is 1, or unset for one of torchrun"}
OF_PADDLE = {
    "CUSTOM_DEVICE_ROOT": "a side effect of `import paddle` in the launcher; ours imports nothing",
    "http_proxy_original": "a copy of the proxy that was removed; nothing reads it",
    "https_proxy_original": "the same",
    **THREADS,
}
COLLECTIVE_OF_PADDLE = {
    "PADDLE_AUTO_CLUSTER": "a switch of Paddle's auto-tuner, which is not a part of launching",
    "PADDLE_BACKUP_ENV_PATH": (
        "a file with the whole environment in the log directory, which must hold no secrets"
    ),
}
PADDLE_COLLECTIVE = {**OURS_ALONE, **OTHER_DIALECTS, **OF_PADDLE, **COLLECTIVE_OF_PADDLE}
PADDLE_PS = {
    **OURS_ALONE,
    **OF_PADDLE,
    "PADDLE_LOCAL_RANK": "lets rankspawn.get_local_rank() answer in trainers and servers, too",
    "PADDLE_BACKUP_ENV_PATH": COLLECTIVE_OF_PADDLE["PADDLE_BACKUP_ENV_PATH"],
}


# --- Paddle, collective -----------------------------------------------------------------


def paddle_nodes(theirs: list[Environment]) -> list[Node]:
    """Their nodes, as ours."""
    endpoints = theirs[0]["PADDLE_TRAINER_ENDPOINTS"].split(",")
    nodes: list[Node] = []
    for worker in theirs:
        if worker["PADDLE_LOCAL_RANK"] == "0":
            first = int(worker["PADDLE_GLOBAL_RANK"])
            own = endpoints[first : first + int(worker["PADDLE_LOCAL_SIZE"])]
            host = own[0].rpartition(":")[0]
            ports = tuple(int(endpoint.rpartition(":")[2]) for endpoint in own)
            nodes.append(Node(len(nodes), host, ports, name=worker["POD_NAME"]))
    return nodes


def compare_paddle_collective(
    flags: Sequence[Sequence[str]],
    count: int,
    folder: Path,
    expected: Mapping[str, str],
    mask: Mapping[str, str] | None = None,
) -> tuple[list[Environment], list[Environment]]:
    """Run Paddle's launcher with these flags on each node, and plan the same."""
    environ = {**BASE, **(mask or {})}
    lines = [[*own, "--log_dir", str(folder / f"log{n}"), WORKER] for n, own in enumerate(flags)]
    theirs = run([(*PADDLE, *line) for line in lines], count, folder, environ)
    theirs.sort(key=lambda worker: int(worker["PADDLE_GLOBAL_RANK"]))
    nodes = paddle_nodes(theirs)
    ours: list[Environment] = []
    for node in nodes:
        # Which launcher became which node was decided when they met.
        log_dir = theirs[len(ours)]["PADDLE_LOG_DIR"]
        line = next(line for line in lines if log_dir in line)
        config = read_config(line, environ)
        job = resolve_job(config, environ, MACHINE if mask else CPU_ONLY)
        programs = plan_programs(
            config,
            job,
            nodes,
            node.rank,
            master=theirs[0]["PADDLE_MASTER"],
            gloo_path="",
            run_id="run",
            restart_count=0,
        )
        ours += [with_changes(environ, program) for program in programs]
    compare(ours, theirs, expected)
    return ours, theirs


@needs_paddle
@pytest.mark.parametrize("nprocs", [1, 3])
def test_paddle_on_the_cpu(nprocs: int, tmp_path: Path) -> None:
    flags = ["--nproc_per_node", str(nprocs)]
    compare_paddle_collective([flags], nprocs, tmp_path, PADDLE_COLLECTIVE)


DEVICE = {"RANKSPAWN_DEVICE": "the absolute id of the rank's device, for its own information"}


@needs_paddle
@pytest.mark.parametrize(
    ("flags", "mask", "count"),
    [
        ([], {"CUDA_VISIBLE_DEVICES": "4,5,6"}, 3),
        (["--devices", "5,7"], {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 2),
        (["--gpus", "7,5", "--nproc_per_node", "2"], {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 2),
        (["--nproc_per_node", "2"], {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 2),
        (["--xpus", "5,6"], {"XPU_VISIBLE_DEVICES": "4,5,6,7"}, 2),
    ],
    ids=str,
)
def test_paddle_on_devices(
    flags: list[str], mask: dict[str, str], count: int, tmp_path: Path
) -> None:
    compare_paddle_collective([flags], count, tmp_path, {**PADDLE_COLLECTIVE, **DEVICE}, mask)


@needs_paddle
def test_paddle_gives_all_devices_to_a_single_worker(tmp_path: Path) -> None:
    expected = {
        **PADDLE_COLLECTIVE,
        **DEVICE,
        "FLAGS_selected_gpus": "a rank has one device here; Paddle itself uses the first one",
    }
    mask = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    ours, theirs = compare_paddle_collective(
        [["--nproc_per_node", "1"]], 1, tmp_path, expected, mask
    )
    assert theirs[0]["FLAGS_selected_gpus"] == "0,1,2,3"
    assert ours[0]["FLAGS_selected_gpus"] == "0"


@needs_paddle
def test_paddle_drops_devices_that_were_selected(tmp_path: Path) -> None:
    """And so do we, but not without a word: it may be a mistake."""
    flags, mask = (
        ["--devices", "4,5,6", "--nproc_per_node", "2"],
        {"CUDA_VISIBLE_DEVICES": "4,5,6,7"},
    )
    ours, _ = compare_paddle_collective([flags], 2, tmp_path, {**PADDLE_COLLECTIVE, **DEVICE}, mask)
    assert [worker["FLAGS_selected_gpus"] for worker in ours] == ["0", "1"]
    assert "is used" in read_config([*flags, WORKER], mask).notes[0]


@needs_paddle
def test_paddle_on_two_nodes(tmp_path: Path) -> None:
    flags = ["--master", f"127.0.0.1:{free_port()}", "--nnodes", "2", "--nproc_per_node", "2"]
    ours, _ = compare_paddle_collective([flags, flags], 4, tmp_path, PADDLE_COLLECTIVE)
    assert [worker["GROUP_RANK"] for worker in ours] == ["0", "0", "1", "1"]


# --- Paddle, parameter servers ----------------------------------------------------------


def seat(worker: Environment) -> tuple[str, str]:
    return worker["TRAINING_ROLE"], worker["PADDLE_PORT"]


def port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def counted_nodes(theirs: list[Environment], nnodes: int) -> list[Node]:
    """Their nodes by counts: the same ports in the order that ours have them in."""
    one = theirs[0]
    roles = [one["PADDLE_PSERVERS_IP_PORT_LIST"], one["PADDLE_TRAINER_ENDPOINTS"]]
    # Stages as they are on one node; no launcher has them by counts on several.
    roles.append(one.get("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST", ""))
    gloo = port_of(one["PADDLE_GLOO_HTTP_ENDPOINT"])
    nodes = []
    for rank in range(nnodes):
        ports: list[int] = []
        for role in roles:
            everybody = [port_of(endpoint) for endpoint in role.split(",") if endpoint]
            each = len(everybody) // nnodes
            ports += everybody[rank * each : (rank + 1) * each]
        name = next(w.get("POD_NAME", "") for w in theirs if int(w["PADDLE_PORT"]) == ports[0])
        nodes.append(Node(rank, one["POD_IP"], (*ports, gloo), name=name))
    return nodes


def compare_paddle_ps(
    flags: Sequence[Sequence[str]],
    count: int,
    folder: Path,
    expected: Mapping[str, str],
    environ: Mapping[str, str] = BASE,
) -> tuple[list[Environment], list[Environment]]:
    """Run Paddle's launcher with these flags on each node, and plan the same."""
    lines = [[*own, "--log_dir", str(folder / f"log{n}"), WORKER] for n, own in enumerate(flags)]
    theirs = run([(*PADDLE, *line) for line in lines], count, folder, environ)
    ours: list[Environment] = []
    listed = bool(read_config(lines[0], environ).servers)
    nodes = [] if listed else counted_nodes(theirs, len(flags))
    for me in range(len(flags)):
        first = str(nodes[me].ports[0]) if nodes else theirs[0]["PADDLE_PORT"]
        sample = next(worker for worker in theirs if worker["PADDLE_PORT"] == first)
        log_dir = sample.get("PADDLE_LOG_DIR", lines[0][-2])
        config = read_config(next(line for line in lines if log_dir in line), environ)
        if listed:
            own_address = FakeMachine(own=frozenset({sample["POD_IP"]}))
            nodes, own = listed_nodes(config, own_address)
            assert own == me
            nodes = [Node(n.rank, n.host, n.ports, name=sample.get("POD_NAME", "")) for n in nodes]
        job = resolve_job(config, environ, MACHINE)
        assert ports_needed(config, job) == (0 if listed else len(nodes[me].ports))
        programs = plan_programs(
            config,
            job,
            nodes,
            me,
            master="",
            gloo_path=sample["PADDLE_GLOO_FS_PATH"],
            run_id="run",
            restart_count=0,
        )
        ours += [with_changes(environ, program) for program in programs]
    ours.sort(key=seat)
    theirs.sort(key=seat)
    compare(ours, theirs, expected)
    return ours, theirs


@needs_paddle
@pytest.mark.parametrize(
    ("flags", "count"),
    [
        (["--run_mode", "ps"], 2),
        (["--server_num", "2", "--trainer_num", "2"], 4),
        (["--trainer_num", "2", "--with_gloo", "0"], 3),
    ],
    ids=str,
)
def test_paddle_servers_by_counts(flags: list[str], count: int, tmp_path: Path) -> None:
    compare_paddle_ps([flags], count, tmp_path, PADDLE_PS)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address that Paddle takes for this machine's own; endpoints elsewhere it skips."""
    folder = tmp_path_factory.mktemp("host")
    theirs = run([(*PADDLE, "--run_mode", "ps", WORKER)], 2, folder, BASE)
    return theirs[0]["POD_IP"]


@needs_paddle
def test_paddle_servers_by_lists(host: str, tmp_path: Path) -> None:
    servers, trainers = listed_endpoints(host, 2, 3)
    flags = ["--servers", servers, "--trainers", trainers, "--gloo_port", "7799"]
    expected = {**PADDLE_PS, "PADDLE_NNODES": "Paddle sets it by counts only; it is known here too"}
    ours, _ = compare_paddle_ps([flags], 5, tmp_path, expected)
    assert {worker["PADDLE_NNODES"] for worker in ours} == {"1"}


@needs_paddle
def test_paddle_does_not_ask_which_host_it_is(host: str, tmp_path: Path) -> None:
    """With lists it ignores --host, so two nodes on one machine would start the same processes."""
    elsewhere = "127.0.0.2"
    here, there = (
        one.split(",") for one in (listed_endpoints(host, 2) + listed_endpoints(elsewhere, 2))
    )
    line = ["--host", elsewhere, "--log_dir", str(tmp_path / "log")]
    line += ["--servers", f"{here[0]},{there[0]}", "--trainers", f"{there[1]},{here[1]}"]
    theirs = run([(*PADDLE, *line, WORKER)], 2, tmp_path, BASE)
    ports = sorted(int(worker["PADDLE_PORT"]) for worker in theirs)
    assert ports == sorted(map(port_of, here))

    nodes, me = listed_nodes(read_config([*line, WORKER], BASE), CPU_ONLY)
    assert nodes[me] == Node(1, elsewhere, tuple(map(port_of, there)))


@needs_paddle
def test_paddle_servers_on_two_nodes(tmp_path: Path) -> None:
    master = f"127.0.0.1:{free_port()}"
    flags = ["--master", master, "--nnodes", "2", "--server_num", "1", "--trainer_num", "2"]
    compare_paddle_ps([flags, flags], 6, tmp_path, PADDLE_PS)


@needs_paddle
def test_paddle_servers_with_a_port_for_gloo(tmp_path: Path) -> None:
    flags = ["--run_mode", "ps", "--gloo_port", "7799"]
    expected = {
        **PADDLE_PS,
        "PADDLE_GLOO_HTTP_ENDPOINT": "Paddle ignores --gloo_port by counts; here it is used",
    }
    ours, _ = compare_paddle_ps([flags], 2, tmp_path, expected)
    assert {port_of(worker["PADDLE_GLOO_HTTP_ENDPOINT"]) for worker in ours} == {7799}


@needs_paddle
def test_paddle_servers_with_gpus(tmp_path: Path) -> None:
    flags = ["--server_num", "1", "--trainer_num", "2", "--gpus", "5,7"]
    expected = {
        **PADDLE_PS,
        **DEVICE,
        "FLAGS_selected_gpus": "Paddle ignores --gpus here; ours tells each trainer its device",
    }
    environ = {**BASE, "CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    ours, _ = compare_paddle_ps([flags], 3, tmp_path, expected, environ)
    assert [worker.get("FLAGS_selected_gpus") for worker in ours] == [None, "1", "3"]


@needs_paddle
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        # Paddle ignores the list, takes ports of its own and starts a trainer that nobody named.
        (["--servers", "127.0.0.1:8101"], "--servers lists endpoints of the whole job"),
        (["--trainers", "127.0.0.1:8101"], "--trainers lists endpoints of the whole job"),
        # Paddle ignores the first of the two.
        (["--run_mode", "collective", "--server_num", "1"], "--run_mode collective"),
        (["--nproc_per_node", "2", "--run_mode", "ps"], "--nproc_per_node 2 and --run_mode ps"),
    ],
    ids=str,
)
def test_paddle_ignores_what_it_was_told(flags: list[str], words: str, tmp_path: Path) -> None:
    line = [*flags, "--log_dir", str(tmp_path / "log"), WORKER]
    theirs = run([(*PADDLE, *line)], 2, tmp_path, BASE)
    assert sorted(worker["TRAINING_ROLE"] for worker in theirs) == ["PSERVER", "TRAINER"]
    assert "127.0.0.1:8101" not in {f"127.0.0.1:{worker['PADDLE_PORT']}" for worker in theirs}
    with pytest.raises(UsageError, match=words):
        check_roles(read_config(line, BASE))


@needs_paddle
def test_paddle_finds_its_role(tmp_path: Path) -> None:
    """Without any launcher: the variables alone have to do."""
    flags = ["--server_num", "2", "--trainer_num", "2", "--with_gloo", "0"]
    config = read_config([*flags, "--log_dir", str(tmp_path), ROLE], BASE)
    node = Node(0, "127.0.0.1", (6001, 6002, 6003, 6004, 6005))
    programs = plan_programs(
        config,
        resolve_job(config, BASE, CPU_ONLY),
        [node],
        0,
        master="",
        gloo_path=str(tmp_path),
        run_id="run",
        restart_count=0,
    )
    roles = outputs([(one.command, with_changes(BASE, one)) for one in programs], "ROLE ")
    everybody = [[f"127.0.0.1:{port}" for port in ports] for ports in ((6001, 6002), (6003, 6004))]
    assert roles == [
        f"{json.dumps([is_server, not is_server, index])} {json.dumps(everybody)}"
        for is_server in (True, False)
        for index in (0, 1)
    ]


# --- Paddle, heter workers --------------------------------------------------------------

PADDLE_HETER = {
    **OURS_ALONE,
    **OF_PADDLE,
    "PADDLE_LOCAL_RANK": PADDLE_PS["PADDLE_LOCAL_RANK"],
    **dict.fromkeys(
        ("PADDLE_ROLE", "PADDLE_NNODES", "PADDLE_LOG_DIR"),
        "Paddle's older launcher, which has this mode, lacks them; they are as in mode ps",
    ),
    "PADDLE_COORDINATOR_ENDPOINTS": "always empty: federated learning is not a part of this",
    **dict.fromkeys(
        (
            *("FLAGS_selected_gpus", "CUDA_VISIBLE_DEVICES"),
            *("FLAGS_selected_xpus", "XPU_VISIBLE_DEVICES"),
        ),
        "Paddle points everybody but servers at device 0 of both types, over the user's masks",
    ),
}


@needs_paddle
def test_paddle_heter_workers_by_lists(host: str, tmp_path: Path) -> None:
    servers, trainers, second, third = listed_endpoints(host, 1, 2, 2, 1)
    flags = ["--run_mode", "ps-heter", "--servers", servers, "--workers", trainers]
    flags += ["--heter_workers", f"{second};{third}", "--heter_devices", "cpu;gpu"]
    expected = {
        **PADDLE_HETER,
        "PADDLE_GLOO_HTTP_ENDPOINT": "ours is --gloo_port, as in mode ps; Paddle's is any port",
    }
    compare_paddle_ps([flags], 6, tmp_path, expected)


@needs_paddle
def test_paddle_heter_workers_by_counts(tmp_path: Path) -> None:
    flags = ["--run_mode", "ps-heter", "--server_num", "1", "--worker_num", "2"]
    flags += ["--heter_worker_num", "2;1", "--heter_devices", "gpu;cpu"]
    ours, _ = compare_paddle_ps([flags], 6, tmp_path, PADDLE_HETER)
    assert {worker["PADDLE_WITH_GLOO"] for worker in ours} == {"0"}


# --- Paddle, IPUs -----------------------------------------------------------------------


@needs_paddle
@pytest.mark.parametrize(
    ("devices", "hosts", "nproc", "ipus"), [("4", "localhost,h2", "2", "1"), ("8", "a", "2", "2")]
)
def test_paddle_command_for_ipus(
    devices: str, hosts: str, nproc: str, ipus: str, tmp_path: Path
) -> None:
    """A stand-in for poprun writes down what it is asked for."""
    poprun = tmp_path / "poprun"
    poprun.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"open({str(tmp_path / 'asked')!r}, 'w').write(json.dumps(sys.argv[1:]))\n"
    )
    poprun.chmod(0o755)
    line = ["--devices", devices, "--log_dir", str(tmp_path / "log"), "ipu"]
    line += [f"--hosts={hosts}", f"--nproc_per_host={nproc}", f"--ipus_per_replica={ipus}"]
    line += ["--ipu_partition=pod16", "--vipu_server=10.0.0.9", WORKER, "--lr", "0.1"]
    environ = {**BASE, "PATH": f"{tmp_path}:{BASE['PATH']}"}
    # It takes the number of IPUs for the id of a GPU first, and fails if it does not see that.
    run([(*PADDLE, *line)], 0, tmp_path, {**environ, "CUDA_VISIBLE_DEVICES": devices})

    theirs = json.loads((tmp_path / "asked").read_text())
    program, *ours = ipu_command(read_config(line, environ), environ, "poprun")
    assert program == "poprun"
    # Unbuffered, as everywhere, so that logs are complete when a process is killed.
    ours.remove("-u")
    assert ours == theirs


# --- torchrun ---------------------------------------------------------------------------

TORCH = {
    **OURS_ALONE,
    "JAX_COORDINATOR_ADDRESS": OTHER_DIALECTS["JAX_COORDINATOR_ADDRESS"],
    **dict.fromkeys(
        (
            *("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_CURRENT_ENDPOINT"),
            *("PADDLE_TRAINER_ENDPOINTS", "PADDLE_DISTRI_BACKEND", "PADDLE_MASTER"),
            *("PADDLE_GLOBAL_SIZE", "PADDLE_LOCAL_SIZE", "PADDLE_GLOBAL_RANK"),
            *("PADDLE_LOCAL_RANK", "PADDLE_NNODES", "PADDLE_RANK_IN_NODE", "PADDLE_LOG_DIR"),
            "POD_NAME",
        ),
        "Paddle's variables, which torchrun does not set",
    ),
    **THREADS,
    "MASTER_PORT": "the port of rank 0, which hosts the store; torchrun's agent does so itself",
    "TORCHELASTIC_USE_AGENT_STORE": "only with --agent_store, which costs an import of torch",
    "TORCHELASTIC_ERROR_FILE": "for tracebacks; here they are found in the log, decorated or not",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "an instruction to torch's own launcher",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "a setting of NCCL; torch has a default for it of its own",
    "http_proxy": "removed: traffic on the loopback must not go through a proxy",
    "https_proxy": "the same",
}


def compare_torch(
    commands: Sequence[Sequence[str]],
    own: Sequence[Sequence[str]],
    count: int,
    folder: Path,
    expected: Mapping[str, str],
) -> tuple[list[Environment], list[Environment]]:
    """Run torchrun with these flags on each node, and plan the same in our own words."""
    theirs = run([(*TORCHRUN, *line, WORKER) for line in commands], count, folder, BASE)
    theirs.sort(key=lambda worker: int(worker["RANK"]))
    each = count // len(own)
    nodes = [
        Node(n, "127.0.0.1", tuple(range(6000 + n * each, 6000 + (n + 1) * each)), name="pod")
        for n in range(len(own))
    ]
    ours: list[Environment] = []
    for me, line in enumerate(own):
        config = read_config([*line, WORKER], BASE)
        programs = plan_programs(
            config,
            resolve_job(config, BASE, CPU_ONLY),
            nodes,
            me,
            master="127.0.0.1:5999",
            gloo_path="",
            run_id=theirs[0]["TORCHELASTIC_RUN_ID"],
            restart_count=0,
        )
        ours += [with_changes(BASE, program) for program in programs]
    compare(ours, theirs, expected)
    return ours, theirs


LOCALHOST = {"MASTER_ADDR": "127.0.0.1 where torchrun says localhost, which may be ::1 first"}


@needs_torch
@pytest.mark.parametrize("nprocs", [1, 2])
def test_torchrun_on_one_node(nprocs: int, tmp_path: Path) -> None:
    flags = ["--nproc_per_node", str(nprocs)]
    compare_torch([flags], [flags], nprocs, tmp_path, {**TORCH, **LOCALHOST})


@needs_torch
def test_torchrun_that_may_restart(tmp_path: Path) -> None:
    torchrun = ["--nproc_per_node", "2", "--max_restarts", "2"]
    own = ["--nproc_per_node", "2", "--elastic_level", "1", "--max_restart", "2"]
    ours, theirs = compare_torch([torchrun], [own], 2, tmp_path, {**TORCH, **LOCALHOST})
    assert {w["TORCHELASTIC_MAX_RESTARTS"] for w in (*ours, *theirs)} == {"2"}


@needs_torch
def test_torchrun_on_two_nodes(tmp_path: Path) -> None:
    port = str(free_port())
    flags = ["--nnodes", "2", "--nproc_per_node", "2"]
    meeting = ["--master_addr", "127.0.0.1", "--master_port", port]
    theirs = [[*flags, *meeting, "--node_rank", rank] for rank in "01"]
    own = [[*flags, "--master", f"127.0.0.1:{port}", "--rank", rank] for rank in "01"]
    ours, _ = compare_torch(theirs, own, 4, tmp_path, TORCH)
    # Rank 0's own endpoint: the nodes' meeting place stays in use by the launchers.
    assert {worker["MASTER_PORT"] for worker in ours} == {"6000"}
