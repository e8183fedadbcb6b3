"""The words of torchrun and of Paddle's launcher, put into ours."""

from __future__ import annotations

from typing import Any

import pytest

from rankspawn.launch.command_line import all_flags
from rankspawn.launch.config import LaunchConfig, read_config
from rankspawn.launch.flags import TORCHRUN, Flag, UsageError
from rankspawn.launch.torchrun import Streams
from rankspawn.plan.environ import WORKER_VARIABLE

ALL = {flag.name: flag for flag in all_flags()}
ONLY_TORCHRUNS = [flag for flag in ALL.values() if flag.of == (TORCHRUN,)]

# For each word of torchrun's alone: what else stands on the line, its text, and what is asked for.
TORCHRUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "no_python": ("", "", {"runner": "program"}),
    "run_path": ("", "", {"runner": "run_path"}),
    "standalone": ("--nnodes 3 --rdzv-endpoint a:1", "", {"max_nodes": 1, "master": None}),
    "rdzv_backend": (
        "--rdzv-endpoint a:1 --nnodes 2",
        "etcd-v2",
        {"master": "etcd://a:1", "node_rank": -1},
    ),
    "rdzv_endpoint": ("--nnodes 2", "a:1", {"master": "a:1"}),
    "rdzv_id": ("", "night", {"job_id": "night", "run_name": "night"}),
    "rdzv_conf": (
        "",
        "join_timeout=60,last_call_timeout=5,keep_alive_interval=4",
        {"join_timeout": 60.0, "elastic_timeout": 5.0, "node_timeout": 12.0},
    ),
    "node_rank": ("--nnodes 2 --master-addr a", "1", {"node_rank": 1, "master": "a:29500"}),
    "master_addr": ("--nnodes 2 --master-port 7", "a", {"master": "a:7"}),
    "master_port": ("", "7", {"first_port": 7, "master": None}),
    "local_addr": ("", "10.0.0.2", {"host": "10.0.0.2"}),
    "max_restarts": ("", "2", {"elastic_level": 1, "max_restart": 2}),
    "shutdown_timeout": ("", "3", {"grace_period": 3.0}),
    "role": ("", "bob", {"role": "bob"}),
    "virtual_local_rank": ("", "", {"own_devices": True}),
    "redirects": ("", "3", {"streams": Streams(redirects=3)}),
    "tee": ("", "0:1,1:2", {"streams": Streams(tee={0: 1, 1: 2})}),
    "local_ranks_filter": ("", "0,2", {"streams": Streams(shown_ranks=frozenset({0, 2}))}),
    "duplicate_stdout_filters": (
        "",
        "a,b,,c",
        {"streams": Streams(stdout_filters=("a", "b,c"))},
    ),
    "duplicate_stderr_filters": ("", "x", {"streams": Streams(stderr_filters=("x",))}),
    "numa_binding": ("", "node", {"numa_binding": "node"}),
    "monitor_interval": ("", "0.1", {}),
    "start_method": ("", "spawn", {}),
    "event_log_handler": ("", "null", {}),
    "logs_specs": ("", "mine", {}),
    "signals_to_handle": ("", "SIGTERM,SIGUSR1", {}),
}


def read(line: str, **variables: str) -> LaunchConfig:
    return read_config(line.split(), variables)


def refused(line: str, **variables: str) -> str:
    with pytest.raises(UsageError) as raised:
        read(line, **variables)
    return str(raised.value)


def has(config: LaunchConfig, fields: dict[str, Any]) -> bool:
    return {name: getattr(config, name) for name in fields} == fields


def test_every_word_of_torchruns_has_an_example() -> None:
    assert set(TORCHRUNS) == {flag.name for flag in ONLY_TORCHRUNS}


@pytest.mark.parametrize("flag", ONLY_TORCHRUNS, ids=lambda flag: str(flag.name))
class TestEveryWordOfTorchruns:
    def test_with_dashes(self, flag: Flag) -> None:
        more, text, fields = TORCHRUNS[flag.name]
        assert has(read(f"{more} --{flag.name.replace('_', '-')} {text} train.py"), fields)

    def test_with_underscores_and_an_equals_sign(self, flag: Flag) -> None:
        more, text, fields = TORCHRUNS[flag.name]
        word = f"--{flag.name}={text}" if text else f"--{flag.name}"
        assert has(read(f"{word} {more} train.py"), fields)

    def test_by_its_variable(self, flag: Flag) -> None:
        more, text, fields = TORCHRUNS[flag.name]
        config = read(f"{more} train.py", **{f"PET_{flag.name.upper()}": text or "1"})
        assert has(config, fields)

    def test_the_command_line_wins(self, flag: Flag) -> None:
        more, text, fields = TORCHRUNS[flag.name]
        variable = {f"PET_{flag.name.upper()}": "nonsense!"}
        assert has(read(f"{more} --{flag.name} {text} train.py", **variable), fields)

    def test_what_has_no_counterpart_is_told_in_one_line(self, flag: Flag) -> None:
        more, text, _ = TORCHRUNS[flag.name]
        notes = read(f"{more} --{flag.name} {text} train.py").notes
        expected = [f"--{flag.name} has no effect: {flag.instead}"] if flag.instead else []
        assert list(notes) == expected


class TestALineOfTorchruns:
    """One word that torchrun alone has decides what the others mean."""

    def test_one_worker_unless_it_says_otherwise(self) -> None:
        assert read("--standalone train.py").nproc_per_node == 1
        assert read("train.py").nproc_per_node is None
        assert read("--standalone --nproc-per-node auto train.py").nproc_per_node is None
        assert read("--standalone --gpus 0,1 train.py").nproc_per_node is None

    def test_all_workers_are_shown(self) -> None:
        streams = read("--standalone train.py").streams
        assert streams == Streams()
        assert [streams.shown(0), streams.shown(7)] == [3, 3]
        assert read("--log_dir out train.py").streams is None

    @pytest.mark.parametrize(
        ("line", "shown", "prefixed"),
        [
            ("--redirects 3", [0, 0], [0, 0]),
            ("--redirects 0:1,1:2", [2, 1], [0, 0]),
            ("--tee 3", [3, 3], [3, 3]),
            ("--tee 0:3 --redirects 1:3", [3, 0], [3, 0]),
            ("-t 1 -r3", [1, 1], [1, 1]),
            ("-t3 --local-ranks-filter 1", [0, 3], [3, 3]),
        ],
    )
    def test_streams(self, line: str, shown: list[int], prefixed: list[int]) -> None:
        streams = read(f"{line} train.py").streams
        assert streams is not None
        assert [streams.shown(0), streams.shown(1)] == shown
        assert [streams.prefixed(0), streams.prefixed(1)] == prefixed

    def test_max_restart_is_short_for_max_restarts(self) -> None:
        """Torchrun takes it for that; alone it is Paddle's."""
        config = read("--standalone --max_restart 2 train.py")
        assert (config.elastic_level, config.max_restart, config.notes) == (1, 2, ())
        assert read("--max_restart 2 train.py").elastic_level == -1

    def test_servers_have_one_log_each(self) -> None:
        config = read("--server_num 1 --trainer_num 1 --tee 3 --numa-binding node train.py")
        assert (config.streams, config.numa_binding, config.nproc_per_node) == (None, None, None)
        assert config.notes == (
            "how torchrun shows streams and lays logs has no effect with --run_mode ps",
            "--numa_binding has no effect with --run_mode ps",
        )

    def test_no_restart(self) -> None:
        assert read("--max-restarts 0 train.py").elastic_level == -1
        assert read("--max-restarts 0 train.py").notes == ()
        # The count is also that of nodes that come and go.
        assert read("--max-restarts 0 --nnodes 1:3 train.py").max_restart == 3

    @pytest.mark.parametrize(
        ("line", "master", "rank"),
        [
            ("--rdzv-backend c10d --rdzv-endpoint head", "head:29400", -1),
            ("--rdzv-backend c10d --rdzv-endpoint [fd00::1]:5", "[fd00::1]:5", -1),
            ("--rdzv-endpoint fd00::1", "[fd00::1]:29400", -1),
            ("--rdzv-backend c10d --rdzv-endpoint h:1 --node-rank 1", "h:1", -1),
            ("--rdzv-backend static --rdzv-endpoint h:1 --node-rank 1", "h:1", 1),
            ("--rdzv-backend etcd --rdzv-endpoint a:1,b", "etcd://a:1,b:2379", -1),
            ("--master-addr h --node-rank 0", "h:29500", 0),
            ("--master-port 7 --node-rank 0", "127.0.0.1:7", 0),
            ("--node-rank 1", "127.0.0.1:29500", 1),
            ("--rdzv-backend c10d", None, -1),
            ("--max-restarts 1", None, -1),
        ],
    )
    def test_where_they_meet(self, line: str, master: str | None, rank: int) -> None:
        config = read(f"--nnodes 2 {line} train.py")
        assert (config.master, config.node_rank, config.max_nodes) == (master, rank, 2)

    @pytest.mark.parametrize(
        ("line", "port"),
        [
            ("--master-port 7", 7),
            ("--rdzv-endpoint localhost:8", 8),
            ("--rdzv-backend static --rdzv-endpoint localhost:8", 8),
            ("--rdzv-backend c10d --rdzv-endpoint localhost:8", None),
            ("--rdzv-backend c10d --rdzv-endpoint localhost:0", None),
            ("--master-addr localhost", None),
            ("--node-rank 1", None),
        ],
    )
    def test_the_port_of_one_node(self, line: str, port: int | None) -> None:
        config = read(f"{line} train.py")
        assert (config.first_port, config.master, config.node_rank) == (port, None, -1)

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
    def test_a_node_that_begins_alone_at_a_free_port(self, host: str) -> None:
        config = read(f"--nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint {host}:0 train.py")
        assert (config.master, config.min_nodes, config.max_nodes) == (None, 1, 2)

    def test_certificates_of_an_etcd(self) -> None:
        conf = "protocol=https,cacert=ca.pem,cert=me.pem,key=me.key"
        line = f"--nnodes 2 --rdzv-backend etcd --rdzv-endpoint e --rdzv-conf {conf} train.py"
        fields = {
            "master": "etcds://e:2379",
            "etcd_ca": "ca.pem",
            "etcd_cert": "me.pem",
            "etcd_key": "me.key",
        }
        assert has(read(line), fields)

    def test_settings_without_a_counterpart(self) -> None:
        (note,) = read("--rdzv-conf is_host=1,join_timeout=3 train.py").notes
        assert note == "--rdzv_conf: is_host has no effect: the master is one of our own"

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("--nnodes 2 --rdzv-endpoint localhost:0", "give a port that is not 0"),
            ("--nnodes 1:2 --rdzv-endpoint a:0", "give a port that is not 0"),
            ("--nnodes 2 --master a:1 --rdzv-endpoint b:1", "--master and --rdzv_endpoint mean"),
            ("--nnodes 2 --rank 0 --node-rank 1", "--rank and --node_rank mean the same"),
            ("--nnodes 2 --node-rank 2", "--node_rank=2 is out of range for 2 nodes"),
            ("--rdzv-backend zeus", "use one of c10d, static, etcd, etcd-v2"),
            ("--rdzv-conf x", "'x' is no key=value"),
            ("--rdzv-conf join_timeout=soon", "a number of seconds"),
            ("--redirects 4", "such as 0:1,1:3"),
            ("--tee 0:1,2", "such as 0:1,1:3"),
            ("--signals-to-handle TERM", "'TERM' is no signal"),
            ("--start-method thread", "spawn, fork, forkserver"),
            ("--numa-binding all", "node, socket, exclusive, core-complex"),
            ("-m --no-python", "--module and --no_python exclude each other"),
        ],
    )
    def test_impossible(self, line: str, problem: str) -> None:
        assert problem in refused(f"{line} train.py")


class TestVariablesOfTorchruns:
    def test_words_of_both_kinds_are_taken_together(self) -> None:
        config = read("--nnodes 2 --rdzv-endpoint e:1 train.py", PET_RDZV_BACKEND="etcd")
        assert config.master == "etcd://e:1"

    def test_a_variable_of_ours_wins(self) -> None:
        config = read("train.py", PET_NPROC_PER_NODE="4", PADDLE_NPROC_PER_NODE="3")
        assert config.nproc_per_node == 3

    def test_they_do_not_make_a_line_torchruns(self) -> None:
        assert read("train.py", PET_MAX_RESTARTS="1").nproc_per_node is None
        assert read("train.py", PET_MAX_RESTARTS="1").streams is None
        assert read("train.py", PET_TEE="3").streams == Streams(tee=3)

    def test_a_module(self) -> None:
        assert read("package.train", PET_MODULE="1").is_module
        assert not read("package.train", PET_MODULE="0").is_module

    def test_in_a_worker_they_are_about_its_own_job(self) -> None:
        config = read("train.py", PET_NNODES="2", **{WORKER_VARIABLE: "cpu"})
        assert config.max_nodes == 1

    def test_what_was_taken_is_told(self) -> None:
        (note,) = read("train.py", PET_MAX_RESTARTS="2").notes
        assert note == "taken from the PET_* variables, which are torchrun's: --max_restart 2"

    def test_the_time_to_end(self) -> None:
        seconds = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}
        assert read("--standalone train.py", **seconds).grace_period == 7.0
        assert read("--shutdown-timeout 3 train.py", **seconds).grace_period == 3.0
        assert read("train.py", **seconds).grace_period == 10.0

    def test_the_prefix_of_lines(self) -> None:
        template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}>"}
        streams = read("--tee 3 train.py", **template).streams
        assert streams == Streams(tee=3, prefix="<${rank}>")
        # On another line it says nothing.
        assert read("train.py", PET_TEE="3", **template).streams == Streams(tee=3)

    def test_a_password_is_not_told(self) -> None:
        place = {"PET_RDZV_BACKEND": "etcd", "PET_RDZV_ENDPOINT": "me:secret@e:1"}
        config = read("train.py", PET_NNODES="2", **place)
        assert config.master == "etcd://me:secret@e:1"
        assert config.notes[0].endswith("--nnodes 2 --master etcd://e:1")


class TestBeginnings:
    """Both launchers take the beginning of a flag for it, as long as it is clear."""

    @pytest.mark.parametrize(
        ("line", "fields"),
        [
            ("--nnode 2", {"max_nodes": 2}),
            ("--nproc 3", {"nproc_per_node": 3}),
            ("--nproc-per-nod=3", {"nproc_per_node": 3}),
            ("--device 0,1", {"devices": ("0", "1")}),
            ("--standal", {"max_nodes": 1, "nproc_per_node": 1}),
            ("--max_r 2 --standalone", {"elastic_level": 1, "max_restart": 2}),
            ("--job x", {"job_id": "x"}),
            ("--grace 3", {"grace_period": 3.0}),
        ],
    )
    def test_clear(self, line: str, fields: dict[str, Any]) -> None:
        assert has(read(f"{line} train.py"), fields)

    @pytest.mark.parametrize("line", ["--e 1", "--log x", "--=1", "--m 2", "--rdzv x"])
    def test_unclear(self, line: str) -> None:
        assert "there is no flag" in refused(f"{line} train.py")

    def test_whose_it_is_depends_on_the_rest(self) -> None:
        assert read("--start spawn --standalone train.py").notes[0].startswith("--start_method")
        assert read("--start 7000 train.py").start_port == 7000
        assert read("--max_r 2 train.py").elastic_level == -1


class TestScriptsAndSwitches:
    def test_switches_of_torchruns_have_no_value(self) -> None:
        config = read("--no-python true x")
        assert config.command("python") == ("true", "x")

    def test_a_module_stands_where_the_script_would(self) -> None:
        for line in ("-m --nproc_per_node 2 package.train", "--module package.train"):
            assert read(line).command("python") == ("python", "-u", "-m", "package.train")
        assert read("-m package.train").streams is None, "this is no word of torchrun's alone"

    def test_a_program_that_looks_like_a_script(self) -> None:
        assert read("--no-python train.py").command("python") == ("train.py",)

    def test_run_path(self) -> None:
        assert read("--run-path /a/train.py x").command("python")[-2:] == ("/a/train.py", "x")


class TestPaddle:
    @pytest.mark.parametrize(
        ("line", "device_type"),
        [("--backend gloo", "cpu"), ("--backend nccl", "gpu"), ("--backend bkcl", "xpu")],
    )
    def test_backend(self, line: str, device_type: str) -> None:
        assert read(f"{line} train.py").device_type == device_type
        assert read("--backend auto train.py").device_type is None
        assert "gloo, nccl, bkcl or auto" in refused("--backend mpi train.py")

    def test_more_devices_than_workers(self) -> None:
        config = read("--devices 0,1,2,3 --nproc_per_node 2 train.py")
        assert config.devices == ("0", "1")
        assert config.notes == ("of --devices 0,1 is used, for --nproc_per_node 2",)
        assert read("--gpus 0,1 --nproc_per_node 2 train.py").notes == ()
        assert read("--gpus 0,1 --nproc_per_node gpu train.py").devices == ("0", "1")

    def test_nodes_of_a_cloud(self) -> None:
        cloud = {"PADDLE_TRAINERS": "10.0.0.1,10.0.0.2"}
        assert read("--use_paddlecloud train.py", **cloud).ips == ("10.0.0.1", "10.0.0.2")
        assert read("--use_paddlecloud train.py").ips == ()
        assert read("train.py", **cloud).ips == ()

    @pytest.mark.parametrize(
        "line",
        [
            "--legacy true",
            "--sort_ip True",
            "--enable_gpu_log False",
            "--auto_parallel_config x.json",
            "--auto_cluster_config 1",
            "--auto_tuner_json x.json",
        ],
    )
    def test_what_has_no_counterpart_is_told_in_one_line(self, line: str) -> None:
        config = read(f"{line} train.py")
        (note,) = config.notes
        name = line.split()[0]
        assert note == f"{name} has no effect: {ALL[name[2:]].instead}"
        assert config.script == "train.py"

    def test_rpc_is_a_collective_job(self) -> None:
        config = read("--run_mode rpc train.py")
        assert (config.run_mode, config.rpc) == ("collective", True)
        assert "has no meaning with --run_mode rpc" in refused(
            "--run_mode rpc --server_num 1 train.py"
        )

    def test_the_rank_of_a_node_in_a_clouds_variable(self) -> None:
        node = {"PADDLE_TRAINER_ID": "1"}
        assert read("--nnodes 2 train.py", **node).node_rank == 1
        assert read("--nnodes 2 --rank 0 train.py", **node).node_rank == 0
        assert read("--nnodes 2 train.py", PADDLE_RANK="0", **node).node_rank == 0
        # Beyond the nodes, on one node, and in a worker, it is something else.
        assert read("--nnodes 2 train.py", PADDLE_TRAINER_ID="5").node_rank == -1
        assert read("train.py", **node).node_rank == -1
        assert read("--nnodes 2 train.py", PADDLE_CURRENT_ENDPOINT="a:1", **node).node_rank == -1
        assert read("--nnodes 2 train.py", **{WORKER_VARIABLE: "cpu"}, **node).node_rank == -1

    def test_variables_that_give_way_are_told_once(self) -> None:
        variables = {"PADDLE_NPROC_PER_NODE": "2", "PADDLE_JOB_ID": "x", "PADDLE_LOG_DIR": "a"}
        line = "--nproc_per_node 1 --job_id y --log_dir a train.py"
        assert read(line, **variables).notes == (
            "PADDLE_NPROC_PER_NODE gives way to --nproc_per_node, PADDLE_JOB_ID gives way to "
            "--job_id: here the command line wins, in Paddle the variable",
        )
