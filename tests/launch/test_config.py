"""From the command line and the variables to one value."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rankspawn.launch.command_line import all_flags
from rankspawn.launch.config import IpuConfig, LaunchConfig, read_config
from rankspawn.launch.flags import TORCHRUN, Flag, HelpRequest, UsageError
from rankspawn.option_values import DebugpyRequest, DebugRequest
from rankspawn.plan.environ import WORKER_VARIABLE

# Those of torchrun, and what has no field of its own, are in test_foreign_words.
ALL_FLAGS = [
    flag
    for flag in all_flags()
    if flag.of != (TORCHRUN,) and not flag.instead and not flag.is_bare and flag.name != "backend"
]

# For each flag a text, and what the field that it fills holds then.
EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "nproc_per_node": ("4", {"nproc_per_node": 4}),
    "devices": ("0,1", {"devices": ("0", "1"), "device_type": None}),
    "gpus": ("0,1", {"devices": ("0", "1"), "device_type": "gpu"}),
    "xpus": ("2", {"devices": ("2",), "device_type": "xpu"}),
    "npus": ("2,3", {"devices": ("2", "3"), "device_type": "npu"}),
    "device_type": ("mlu", {"device_type": "mlu"}),
    "share_devices": ("yes", {"share_devices": True}),
    "selected_gpus": ("1", {"devices": ("1",), "device_type": "gpu"}),
    "nnodes": ("2:4", {"min_nodes": 2, "max_nodes": 4}),
    "master": ("10.0.0.1:6379", {"master": "10.0.0.1:6379"}),
    "rank": ("0", {"node_rank": 0}),
    "host": ("10.0.0.2", {"host": "10.0.0.2"}),
    "hosts": ("a,b:2", {"hosts": "a,b:2", "max_nodes": 1}),
    "ssh": ("yes", {"ssh": True}),
    "start_port": ("7000", {"start_port": 7000}),
    "job_id": ("night", {"job_id": "night"}),
    "etcd_ca": ("ca.pem", {"etcd_ca": "ca.pem"}),
    "etcd_cert": ("me.pem", {"etcd_cert": "me.pem"}),
    "etcd_key": ("me.key", {"etcd_key": "me.key"}),
    "ips": ("10.0.0.1,10.0.0.2", {"ips": ("10.0.0.1", "10.0.0.2"), "max_nodes": 2}),
    "cluster_node_ips": ("10.0.0.1,10.0.0.2", {"ips": ("10.0.0.1", "10.0.0.2")}),
    "max_restart": ("5", {"max_restart": 5}),
    "elastic_level": ("1", {"elastic_level": 1}),
    "elastic_timeout": ("2.5", {"elastic_timeout": 2.5}),
    "join_timeout": ("60", {"join_timeout": 60.0}),
    "node_timeout": ("5", {"node_timeout": 5.0}),
    "grace_period": ("0", {"grace_period": 0.0}),
    "log_dir": ("out/logs", {"log_dir": "out/logs"}),
    "log_level": ("debug", {"log_level": "DEBUG"}),
    "log_overwrite": ("true", {"log_overwrite": True}),
    "run_mode": ("ps", {"run_mode": "ps"}),
    "agent_store": ("true", {"agent_store": True}),
    "server_num": ("2", {"server_num": 2, "run_mode": "ps"}),
    "trainer_num": ("2", {"trainer_num": 2, "run_mode": "ps"}),
    "servers": ("a:1,b:2", {"servers": ("a:1", "b:2"), "run_mode": "ps"}),
    "trainers": ("a:3", {"trainers": ("a:3",), "run_mode": "ps"}),
    "heter_worker_num": ("2;1", {"heter_worker_num": (2, 1), "run_mode": "ps-heter"}),
    "heter_workers": (
        "a:1,a:2;b:1",
        {
            "heter_workers": ("a:1", "a:2", "b:1"),
            "heter_worker_num": (2, 1),
            "run_mode": "ps-heter",
        },
    ),
    "heter_devices": ("gpu;cpu", {"heter_devices": ("gpu", "cpu")}),
    "gloo_port": ("7777", {"gloo_port": 7777}),
    "with_gloo": ("0", {"with_gloo": False}),
    "workers": ("a:3", {"trainers": ("a:3",)}),
    "worker_num": ("2", {"trainer_num": 2}),
    "http_port": ("7777", {"gloo_port": 7777}),
    "timeout": ("90", {"timeout": 90.0}),
    "stall_timeout": ("60", {"stall_timeout": 60.0}),
    "restart_exit_codes": ("1,75", {"restart_exit_codes": frozenset({1, 75})}),
    "no_restart_exit_codes": ("2", {"no_restart_exit_codes": frozenset({2})}),
    "tee_all": ("yes", {"tee_all": True}),
    "ranks_filter": ("0,3", {"ranks_filter": frozenset({0, 3})}),
    "prefix": ("<{rank}>", {"prefix": "<{rank}>"}),
    "progress": ("yes", {"progress": True}),
    "trace": ("run.html", {"trace": "run.html"}),
    "debug": ("1,hold", {"debug": DebugRequest(1, holds=True)}),
    "debugpy": ("all", {"debugpy": DebugpyRequest(None)}),
    "env": ("A=b=c", {"env": (("A", "b=c"),)}),
    "env_file": ("vars", {"env_file": "vars"}),
}


def read(line: str, **variables: str) -> LaunchConfig:
    return read_config(line.split(), variables)


def refused(line: str, **variables: str) -> str:
    with pytest.raises(UsageError) as raised:
        read(line, **variables)
    return str(raised.value)


def test_every_flag_has_an_example() -> None:
    assert set(EXAMPLES) == {flag.name for flag in ALL_FLAGS}


@pytest.mark.parametrize("flag", ALL_FLAGS, ids=lambda flag: str(flag.name))
class TestEveryFlag:
    def test_with_underscores(self, flag: Flag) -> None:
        text, fields = EXAMPLES[flag.name]
        assert has(read_config([f"--{flag.name}", text, "train.py"], {}), fields)

    def test_with_dashes_and_an_equals_sign(self, flag: Flag) -> None:
        text, fields = EXAMPLES[flag.name]
        word = f"--{flag.name.replace('_', '-')}={text}"
        assert has(read_config([word, "train.py"], {}), fields)

    def test_by_its_variable(self, flag: Flag) -> None:
        text, fields = EXAMPLES[flag.name]
        assert has(read_config(["train.py"], {flag.variable: text}), fields)

    def test_the_command_line_wins(self, flag: Flag) -> None:
        text, fields = EXAMPLES[flag.name]
        config = read_config([f"--{flag.name}", text, "train.py"], {flag.variable: "nonsense!"})
        assert has(config, fields)

    def test_an_empty_variable_is_none(self, flag: Flag) -> None:
        assert read_config(["train.py"], {flag.variable: " "}) == read("train.py")

    def test_it_is_known_to_be_given(self, flag: Flag) -> None:
        text, _ = EXAMPLES[flag.name]
        config = read_config([f"--{flag.name}", text, "train.py"], {})
        assert {"rank": "node_rank"}.get(flag.field, flag.field) in config.given

    def test_no_value(self, flag: Flag) -> None:
        if flag.is_switch:
            pytest.skip("alone, it means yes")
        assert f"--{flag.name} needs a value" in refused(f"--{flag.name}")
        assert "--master follows" in refused(f"--{flag.name} --master a:1 train.py")


def has(config: LaunchConfig, fields: dict[str, Any]) -> bool:
    return {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize("flag", ALL_FLAGS, ids=lambda flag: str(flag.name))
def test_help_shows_a_flag_unless_it_is_deprecated(flag: Flag) -> None:
    with pytest.raises(HelpRequest) as raised:
        read("--help")
    lines = raised.value.text.splitlines()
    assert (f"  --{flag.name}  ({flag.variable})" in lines) == (not flag.deprecated)


def test_version() -> None:
    with pytest.raises(HelpRequest, match=r"^rankspawn \d"):
        read("--version")


@pytest.mark.parametrize(
    ("flag", "variable"),
    [
        ("host", "POD_IP"),
        ("master", "PADDLE_MASTER"),
        ("nnodes", "PADDLE_NNODES"),
        ("devices", "PADDLE_DEVICES"),
        ("rank", "PADDLE_RANK"),
        ("servers", "PADDLE_SERVERS_ENDPOINTS"),
        ("trainers", "PADDLE_TRAINERS_ENDPOINTS"),
    ],
)
def test_variables_are_those_of_paddle(flag: str, variable: str) -> None:
    assert {known.name: known.variable for known in ALL_FLAGS}[flag] == variable


class TestDefaults:
    def test_all(self) -> None:
        config = read("train.py")
        assert config == LaunchConfig(script="train.py", given=frozenset({"script", "script_args"}))
        assert (config.master, config.node_rank, config.min_nodes, config.max_nodes) == (
            *(None, -1),
            *(1, 1),
        )
        assert (config.start_port, config.log_dir, config.log_level) == (6070, "log", "INFO")
        assert (config.job_id, config.run_mode, config.max_restart) == ("default", "collective", 3)
        assert (config.elastic_level, config.elastic_timeout, config.gloo_port) == (-1, 30, 6767)
        assert not config.is_elastic
        assert not config.log_overwrite

    def test_an_elastic_job(self) -> None:
        assert read("--nnodes 2:4 train.py").is_elastic
        assert not read("--nnodes 2:2 train.py").is_elastic


class TestScript:
    def test_nothing_after_it_is_parsed(self) -> None:
        config = read("--gpus 0 train.py --gpus 1 --nonsense -- -m x --help")
        assert config.devices == ("0",)
        assert config.script_args == ("--gpus", "1", "--nonsense", "--", "-m", "x", "--help")

    def test_python(self) -> None:
        config = read("train.py --lr 0.1")
        assert config.command("python") == ("python", "-u", "train.py", "--lr", "0.1")

    def test_a_program(self) -> None:
        assert read("./train --lr 0.1").command("python") == ("./train", "--lr", "0.1")
        assert read("bash -c true").command("python") == ("bash", "-c", "true")

    def test_a_module(self) -> None:
        config = read("--gpus 0 -m package.train --lr 0.1")
        assert config.command("python") == ("python", "-u", "-m", "package.train", "--lr", "0.1")

    def test_two_dashes_end_the_flags(self) -> None:
        assert read("--gpus 0 -- -strange-name -x").command("p") == ("-strange-name", "-x")

    @pytest.mark.parametrize("line", ["", "--gpus 0", "--"])
    def test_missing(self, line: str) -> None:
        assert "the script is missing" in refused(line)

    def test_missing_module(self) -> None:
        assert "-m needs the name of a module" in refused("-m")


class TestUnknownFlags:
    def test_the_nearest_name(self) -> None:
        assert "did you mean --nproc_per_node?" in refused("--nproc_per_nodes 2 train.py")
        assert "did you mean --log_dir?" in refused("--log-dirs x train.py")

    @pytest.mark.parametrize("flag", ["--gpu_ids", "--num_nodes", "--world-size", "--batch"])
    def test_a_wrong_name_is_worse_than_none(self, flag: str) -> None:
        assert f"there is no flag {flag}: see `rankrun --help`" in refused(f"{flag} 2 train.py")

    def test_what_may_be_several(self) -> None:
        assert "it may be --elastic_level or --elastic_timeout" in refused("--elastic 1 train.py")

    def test_nothing_near(self) -> None:
        message = refused("--zzzz 2 train.py")
        assert "there is no flag --zzzz" in message
        assert "rankrun --help" in message

    def test_a_single_dash(self) -> None:
        assert "there is no flag -gpus" in refused("-gpus 0 train.py")


class TestValues:
    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("--nproc_per_node 0", "--nproc_per_node=0 is out of range: it must be at least 1"),
            ("--nproc_per_node 1.5", "--nproc_per_node='1.5' is no whole number"),
            ("--nnodes 4:2", "upside down"),
            ("--nnodes two", "write 2, or 2:4"),
            ("--nnodes 0", "write 2, or 2:4"),
            ("--rank -2", "--rank=-2 is out of range"),
            ("--nnodes 2 --rank 2", "--rank 2 is out of range: with --nnodes 2 it is below 2"),
            ("--start_port 70000", "from 1 to 65535"),
            ("--elastic_level 2", "from -1 to 1"),
            ("--elastic_timeout soon", "no number of seconds"),
            ("--elastic_timeout nan", "no number of seconds"),
            ("--grace_period -1", "no number of seconds"),
            ("--log_level loud", "DEBUG, INFO, WARNING, ERROR, CRITICAL"),
            ("--log_overwrite=maybe", "write true or false"),
            ("--run_mode server", "collective, ps, ps-heter"),
            ("--devices ,", "is no device id"),
            ("--devices 0,0", "'0' twice"),
            ("--host 10.0.0.1:80", "names a port"),
            ("--servers a", "no host:port"),
            ("--servers a:0", "no host:port"),
            ("--servers a:1,a:1", "names a:1 twice"),
            ("--heter_worker_num 2;0", "at least 1"),
            ("--log_dir=", "must not be empty"),
            ("--device_type 4x", "no device type"),
        ],
    )
    def test_impossible(self, line: str, problem: str) -> None:
        assert problem in refused(f"{line} train.py")

    def test_of_a_variable(self) -> None:
        assert refused("train.py", PADDLE_START_PORT="x").startswith("PADDLE_START_PORT='x'")

    def test_negative_numbers_are_values(self) -> None:
        assert read("--rank -1 --elastic_level -1 train.py").node_rank == -1

    def test_ids_are_opaque(self) -> None:
        assert read("--gpus GPU-8932f937,MIG-1/2 train.py").devices == ("GPU-8932f937", "MIG-1/2")

    @pytest.mark.parametrize(("word", "meaning"), [("True", True), ("0", False), ("no", False)])
    def test_a_switch_takes_a_word(self, word: str, meaning: bool) -> None:
        config = read(f"--log_overwrite {word} train.py")
        assert config.log_overwrite is meaning
        assert config.script == "train.py"

    def test_a_switch_stands_alone(self) -> None:
        config = read("--log-overwrite train.py")
        assert config.log_overwrite
        assert config.script == "train.py"

    def test_the_last_one_counts(self) -> None:
        assert read("--nproc_per_node 2 --nproc-per-node 3 train.py").nproc_per_node == 3

    def test_one_worker_per_device_by_name(self) -> None:
        assert read("--nproc_per_node auto train.py").nproc_per_node is None
        config = read("--nproc_per_node gpu train.py")
        assert (config.nproc_per_node, config.device_type) == (None, "gpu")
        assert read("--nproc-per-node=cpu train.py").device_type == "cpu"
        assert "--nproc_per_node x: give a number" in refused("--nproc_per_node x train.py")


class TestDevices:
    @pytest.mark.parametrize("line", ["--gpus 0 --xpus 1", "--devices 0 --gpus 0"])
    def test_two_selections(self, line: str) -> None:
        assert "both select devices: give only one" in refused(f"{line} train.py")

    @pytest.mark.parametrize("line", ["--gpus 0 --device_type npu", "--device_type npu --gpus 0"])
    def test_two_types(self, line: str) -> None:
        assert "another flag or variable means" in refused(f"{line} train.py")

    def test_type_and_ids(self) -> None:
        config = read("--devices 0,1 --device_type npu train.py")
        assert (config.devices, config.device_type) == (("0", "1"), "npu")

    def test_one_kind_on_the_line_another_in_a_variable(self) -> None:
        config = read("--gpus 3 train.py", PADDLE_DEVICES="0,1", PADDLE_XPUS="7")
        assert (config.devices, config.device_type) == (("3",), "gpu")


class TestVariablesThatGiveWay:
    @pytest.mark.parametrize("variables", [{"PADDLE_SERVER_NUM": "1"}, {"PADDLE_TRAINER_NUM": "3"}])
    def test_to_a_mode(self, variables: dict[str, str]) -> None:
        config = read("--run_mode collective train.py", **variables)
        assert (config.run_mode, config.server_num, config.trainer_num) == (
            "collective",
            None,
            None,
        )

    def test_to_roles(self) -> None:
        config = read("--server_num 1 --trainer_num 1 train.py", PADDLE_RUN_MODE="collective")
        assert config.run_mode == "ps"

    def test_to_lists_of_the_same(self) -> None:
        line = "--servers 127.0.0.1:16170 --trainers 127.0.0.1:16171 train.py"
        config = read(line, PADDLE_SERVER_NUM="2", PADDLE_TRAINER_NUM="2")
        assert (config.server_num, config.trainer_num) == (None, None)
        assert config.servers == ("127.0.0.1:16170",)

    def test_to_the_cpu(self) -> None:
        config = read("--device_type cpu train.py", PADDLE_DEVICES="5,6")
        assert (config.devices, config.device_type) == (None, "cpu")


class TestNotes:
    def test_deprecated_flags(self) -> None:
        assert read("--selected_gpus 0 train.py").notes == (
            "--selected_gpus is deprecated: use --gpus",
        )
        assert "use --trainers" in read("--workers a:1 train.py").notes[0]
        assert "use --trainer_num" in read("--worker-num 2 train.py").notes[0]
        assert "use --nnodes and --master" in read("--ips 10.0.0.1 train.py").notes[0]

    def test_deprecated_and_new(self) -> None:
        assert "mean the same" in refused("--workers a:1 --trainers a:1 train.py")

    def test_restarts_that_will_not_happen(self) -> None:
        assert "--elastic_level 1" in read("--max_restart 5 train.py").notes[0]
        assert read("--max_restart 5 --elastic_level 1 train.py").notes == ()
        assert read("--max_restart 5 --nnodes 2:4 train.py").notes == ()

    def test_none_by_default(self) -> None:
        assert read("--gpus 0 --nnodes 2 train.py").notes == ()


class TestModes:
    def test_servers_are_never_chosen_unasked(self) -> None:
        assert read("train.py").run_mode == "collective"
        assert read("--nnodes 2 --devices 0 train.py", PADDLE_TRAINERS_NUM="2").run_mode == (
            "collective"
        )

    @pytest.mark.parametrize(
        "line",
        [
            "--run_mode collective --server_num 1",
            "--run_mode collective --heter_worker_num 1",
            "--run_mode ps --heter_worker_num 1",
        ],
    )
    def test_contradictions(self, line: str) -> None:
        assert "has no meaning with --run_mode" in refused(f"{line} train.py")

    def test_heter_counts_and_lists(self) -> None:
        assert "--heter_worker_num contradicts" in refused(
            "--heter_worker_num 1 --heter_workers a:1,a:2 train.py"
        )

    def test_spelled_with_an_underscore(self) -> None:
        assert read("--run_mode ps_heter --heter_worker_num 1 train.py").run_mode == "ps-heter"


class TestNodes:
    def test_ips_say_how_many(self) -> None:
        config = read("--ips 10.0.0.1,10.0.0.2 train.py")
        assert (config.min_nodes, config.max_nodes) == (2, 2)
        assert "--ips names 2 nodes, but --nnodes is 3" in refused(
            "--ips 10.0.0.1,10.0.0.2 --nnodes 3 train.py"
        )

    def test_a_single_ip_is_the_host(self) -> None:
        assert read("--ips 10.0.0.1 train.py").host == "10.0.0.1"
        assert read("--ips 10.0.0.1 --host 10.0.0.9 train.py").host == "10.0.0.9"

    def test_a_rank_may_wait_for_the_schedulers_number_of_nodes(self) -> None:
        assert read("--rank 3 train.py").node_rank == 3

    @pytest.mark.parametrize("master", ["10.0.0.1:6379", "http://a:1", "etcd://a:2379,b:2379"])
    def test_master_is_kept_as_it_is(self, master: str) -> None:
        assert read(f"--master {master} train.py").master == master


def test_a_launch_inside_a_worker_is_not_part_of_the_outer_job() -> None:
    outer = {
        WORKER_VARIABLE: "cpu",
        "PADDLE_MASTER": "10.0.0.1:1",
        "PADDLE_NNODES": "2",
        "PADDLE_LOG_DIR": "/outer",
        "POD_IP": "10.0.0.7",
        "PADDLE_NPROC_PER_NODE": "3",
    }
    config = read("train.py", **outer)
    assert (config.master, config.max_nodes, config.log_dir, config.host) == (None, 1, "log", None)
    assert config.nproc_per_node == 3, "this one no worker of ours has set"


class TestIpu:
    LINE = (
        "--devices 4 ipu --hosts a,b --nproc_per_host 2 --ipus-per-replica=1 "
        "--ipu_partition pod16 --vipu_server 10.1.1.1 train.py --lr 0.1"
    )

    def test_it_stands_where_the_script_would(self) -> None:
        config = read(self.LINE)
        assert config.run_mode == "ipu"
        assert (config.script, config.script_args) == ("train.py", ("--lr", "0.1"))
        assert config.ipu == IpuConfig(
            device_count=4,
            hosts=("a", "b"),
            nproc_per_host=2,
            ipus_per_replica=1,
            ipu_partition="pod16",
            vipu_server="10.1.1.1",
        )

    def test_what_is_missing(self) -> None:
        assert "--hosts, --nproc_per_host" in refused("--devices 4 ipu train.py")
        assert "the script is missing" in refused(self.LINE.partition(" train.py")[0])
        assert "needs the number of IPUs" in refused(self.LINE.removeprefix("--devices 4 "))
        assert "needs the number of IPUs" in refused(self.LINE.replace("4", "0,1", 1))

    def test_a_program_of_that_name(self) -> None:
        assert read("./ipu").script == "./ipu"


def test_no_field_shows_the_environment() -> None:
    config = read("train.py", SECRET="hunter2", PADDLE_JOB_ID="night")
    assert not re.search("hunter2|SECRET", repr(config))
