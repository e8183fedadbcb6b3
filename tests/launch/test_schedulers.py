from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest

from rankspawn.launch.config import LaunchConfig
from rankspawn.launch.flags import UsageError
from rankspawn.launch.node_lists import expand_nodes
from rankspawn.launch.schedulers import fill
from tests.launch.factories import config_of

# What `srun --ntasks-per-node=1` sets in a step on all three nodes of its job.
STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NNODES": "3",
    "SLURM_JOB_NODELIST": "node[01-03]",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "node[01-03]",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.250",
}
BATCH = {name: value for name, value in STEP.items() if "STEP" not in name} | {"SLURM_NODEID": "0"}
SALLOC = {name: value for name, value in BATCH.items() if name != "SLURM_NODEID"}


def filled(line: str, environ: dict[str, str]) -> LaunchConfig:
    return fill(config_of(line, environ), environ)


def asked(config: LaunchConfig) -> tuple[int, int, int, str | None]:
    return config.min_nodes, config.max_nodes, config.node_rank, config.master


class TestSlurm:
    def test_a_step(self) -> None:
        assert asked(filled("", STEP)) == (3, 3, 1, "node01:24711")

    def test_what_was_taken_is_told(self) -> None:
        (note,) = filled("", STEP).notes
        assert note == "taken from the Slurm job 4711: --nnodes 3 --rank 1 --master node01:24711"

    @pytest.mark.parametrize(
        ("line", "result"),
        [
            ("--nnodes 3", (3, 3, 1, "node01:24711")),
            ("--rank 2", (3, 3, 2, "node01:24711")),
            ("--rank -1", (3, 3, -1, "node01:24711")),
            ("--master head:1234", (3, 3, 1, "head:1234")),
            ("--master etcd://e1:2379,e2:2379", (3, 3, 1, "etcd://e1:2379,e2:2379")),
            ("--nnodes 3 --rank 0 --master head:1234", (3, 3, 0, "head:1234")),
            ("--nnodes 2:3", (2, 3, -1, "node01:24711")),
            ("--nnodes 3:9", (3, 9, -1, "node01:24711")),
        ],
    )
    def test_what_was_given_wins(self, line: str, result: tuple[int, int, int, str | None]) -> None:
        assert asked(filled(line, STEP)) == result

    @pytest.mark.parametrize("line", ["--nnodes 1", "--nnodes 2", "--nnodes 4:5"])
    def test_another_number_of_nodes_is_another_job(self, line: str) -> None:
        """One node of many, or a step for each node: then ranks are about something else."""
        config = config_of(line)
        assert fill(config, STEP) == config

    def test_a_variable_of_ours_wins_too(self) -> None:
        environ = STEP | {"PADDLE_MASTER": "head:1234", "PADDLE_RANK": "2"}
        assert asked(filled("", environ)) == (3, 3, 2, "head:1234")

    def test_the_master_that_a_batch_script_exported(self) -> None:
        environ = STEP | {"MASTER_ADDR": "node01-ib", "MASTER_PORT": "29500"}
        assert filled("", environ).master == "node01-ib:29500"
        assert filled("", STEP | {"MASTER_ADDR": "node01-ib"}).master == "node01-ib:24711"
        assert filled("", STEP | {"MASTER_PORT": "29500"}).master == "node01:29500"

    @pytest.mark.parametrize(
        "environ",
        [
            {},
            {"SLURM_NNODES": "3", "SLURM_NODEID": "1"},
            {"SLURM_JOB_ID": ""},
            {"SLURM_JOB_ID": "7"},
            {"SLURM_JOB_ID": "7", "SLURM_NNODES": "0", "SLURM_NODEID": "0"},
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0"},
            # One node of a larger allocation: `srun --nodes=1`.
            STEP | {"SLURM_STEP_NUM_NODES": "1", "SLURM_NNODES": "1", "SLURM_NODEID": "0"},
            STEP | {"RANKSPAWN_DEVICE_TYPE": "cpu"},
        ],
        ids=str,
    )
    def test_left_alone(self, environ: dict[str, str]) -> None:
        config = config_of("")
        assert fill(config, environ) is config

    def test_a_step_on_a_part_of_the_allocation(self) -> None:
        environ = STEP | {
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NODELIST": "node[02-03]",
        }
        assert asked(filled("", environ)) == (2, 2, 1, "node02:24711")

    def test_a_step_of_an_old_slurm_without_its_own_list(self) -> None:
        environ = {name: value for name, value in STEP.items() if name != "SLURM_STEP_NODELIST"}
        assert filled("", environ).master == "node01:24711"
        # The list of the allocation is about other nodes; the one that srun ran on is known.
        part = environ | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}
        assert filled("", part).master == "10.0.0.250:24711"

    def test_the_batch_script_itself_is_warned(self) -> None:
        config = filled("", BATCH)
        assert asked(config) == (3, 3, 0, "node01:24711")
        assert "runs on the first node only" in config.notes[0]
        assert "srun --ntasks-per-node=1 rankrun" in config.notes[0]

    def test_a_shell_of_salloc_is_no_node(self) -> None:
        with pytest.raises(
            UsageError, match=r"3 nodes, but SLURM_NODEID is missing.*srun.*--nnodes 1"
        ):
            filled("", SALLOC)
        assert filled("--nnodes 1", SALLOC).max_nodes == 1
        assert asked(filled("--rank 2", SALLOC)) == (3, 3, 2, "node01:24711")

    def test_several_tasks_on_a_node(self) -> None:
        environ = STEP | {"SLURM_STEP_NUM_TASKS": "12"}
        with pytest.raises(UsageError, match=r"12 tasks on 3 nodes.*--ntasks-per-node=1"):
            filled("", environ)
        # Nothing is taken from Slurm then, so nothing is wrong.
        assert filled("--nnodes 3 --rank 0 --master h:1", environ).node_rank == 0
        assert filled("--nnodes 1", environ).max_nodes == 1

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"SLURM_STEP_NUM_NODES": "three"}, "SLURM_STEP_NUM_NODES='three' is no number"),
            ({"SLURM_NODEID": "-1"}, "SLURM_NODEID='-1' is no number"),
            ({"SLURM_NODEID": "3"}, "SLURM_NODEID=3 is out of range for 3 nodes"),
            ({"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID='x' is no number"),
            ({"SLURM_STEP_NODELIST": "node[01-"}, r"SLURM_STEP_NODELIST='node\[01-' is no list"),
            ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000 is no port"),
            ({"MASTER_PORT": "0"}, "MASTER_PORT=0 is no port"),
            ({"SLURM_STEP_NUM_TASKS": "?"}, r"SLURM_STEP_NUM_TASKS='\?' is no number"),
        ],
    )
    def test_variables_without_sense(self, changes: dict[str, str], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            filled("", STEP | changes)

    def test_no_list_and_no_address(self) -> None:
        environ = {
            name: value
            for name, value in STEP.items()
            if "NODELIST" not in name and name != "SLURM_LAUNCH_NODE_IPADDR"
        }
        with pytest.raises(UsageError, match=r"SLURM_STEP_NODELIST.*--master host:port"):
            filled("", environ)
        assert filled("--master h:1", environ).master == "h:1"

    def test_a_rank_beyond_its_nodes(self) -> None:
        with pytest.raises(UsageError, match=r"--rank 3 is out of range for the 3 nodes"):
            filled("--rank 3", STEP)

    @pytest.mark.parametrize(
        "line",
        [
            "--ips 10.0.0.1,10.0.0.2",
            "--servers a:1 --trainers a:2",
            "--devices 4 ipu --hosts a --nproc_per_host 1 --ipus_per_replica 1 "
            "--ipu_partition p --vipu_server s",
        ],
    )
    def test_jobs_that_list_their_nodes(self, line: str) -> None:
        config = config_of(line)
        assert fill(config, STEP) is config

    def test_all_nodes_of_a_step_come_to_the_same_place(self) -> None:
        configs = [filled("", STEP | {"SLURM_NODEID": str(n)}) for n in range(3)]
        assert [config.node_rank for config in configs] == [0, 1, 2]
        assert len({config.master for config in configs}) == 1

    def test_ports_of_jobs_and_steps_that_run_at_the_same_time(self) -> None:
        ports = set()
        for job_id in range(9_990, 10_010):
            for step in range(5):
                environ = STEP | {"SLURM_JOB_ID": str(job_id), "SLURM_STEP_ID": str(step)}
                master = filled("", environ).master
                assert master is not None
                ports.add(int(master.rpartition(":")[2]))
        assert len(ports) == 20 * 5
        assert 20000 <= min(ports) <= max(ports) < 30000

    def test_steps_without_a_number(self) -> None:
        """An interactive step has a name in place of one."""
        assert filled("", STEP | {"SLURM_STEP_ID": "interactive"}).master == "node01:24711"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("a,b", ["a", "b"]),
        (" a , b ", ["a", "b"]),
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[8-11]", ["node8", "node9", "node10", "node11"]),
        ("node[08-11]", ["node08", "node09", "node10", "node11"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("n[1,3]-ib", ["n1-ib", "n3-ib"]),
        ("login,n[1-2],gpu-a[10]", ["login", "n1", "n2", "gpu-a10"]),
        ("rack1-n[1-2],rack2-n[5]", ["rack1-n1", "rack1-n2", "rack2-n5"]),
        ("[1-2]", ["1", "2"]),
        ("node[1-1]", ["node1"]),
    ],
)
def test_lists_of_nodes(text: str, hosts: list[str]) -> None:
    assert expand_nodes(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "a,", ",a", "a,,b", "a b"),
        *("n[", "n]", "n[]", "n[1", "n1]", "n[[1]]", "]["),
        *("n[1-]", "n[-1]", "n[3-1]", "n[a-b]", "n[1,]", "n[1--2]", "n[1-2-3]", "n[1 -2]", "n[٣]"),
    ],
)
def test_lists_of_nodes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="is no list of nodes, such as"):
        expand_nodes(text)


@pytest.mark.parametrize(
    "text", ["n[0-999999999999]", "a[0-999]b[0-999]c[0-999]", ",".join(["n[0-50000]"] * 3)]
)
def test_a_list_of_nodes_without_end(text: str) -> None:
    with pytest.raises(UsageError, match="more than 100000 nodes"):
        expand_nodes(text)


def notation(hosts: list[int], width: int, choose: random.Random) -> Iterator[str]:
    """The same numbers, some as ranges."""
    start = 0
    while start < len(hosts):
        end = start
        while end + 1 < len(hosts) and hosts[end + 1] == hosts[end] + 1 and choose.random() < 0.8:
            end += 1
        first, last = (str(hosts[place]).zfill(width) for place in (start, end))
        yield first if start == end else f"{first}-{last}"
        start = end + 1


def test_any_list_comes_back() -> None:
    choose = random.Random(7)
    for _ in range(300):
        width = choose.randint(1, 4)
        numbers = sorted(choose.sample(range(10**width), choose.randint(1, min(9, 10**width))))
        text = f"node[{','.join(notation(numbers, width, choose))}]"
        assert expand_nodes(text) == [f"node{str(n).zfill(width)}" for n in numbers]


# What Kubernetes sets in pod 1 of an indexed job called "train".
POD = {
    "JOB_COMPLETION_INDEX": "1",
    "HOSTNAME": "train-1",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
}
MEETING = {"MASTER_ADDR": "train-0.workers", "MASTER_PORT": "29500"}


class TestKubernetes:
    def test_the_index_is_the_rank(self) -> None:
        config = filled("--nnodes 2 --master train-0.workers:6379", POD)
        assert asked(config) == (2, 2, 1, "train-0.workers:6379")
        assert config.notes == ("taken from the Kubernetes job: --rank 1",)

    def test_variables_of_the_template(self) -> None:
        environ = POD | MEETING | {"PADDLE_NNODES": "4"}
        assert asked(filled("", environ)) == (4, 4, 1, "train-0.workers:29500")

    def test_what_was_given_wins(self) -> None:
        environ = POD | MEETING
        assert asked(filled("--nnodes 2 --rank 0 --master h:1", environ)) == (2, 2, 0, "h:1")

    def test_nobody_knows_how_many_there_are(self) -> None:
        with pytest.raises(
            UsageError, match=r"JOB_COMPLETION_INDEX=1 .*--nnodes, or PADDLE_NNODES.*--nnodes 1 if"
        ):
            filled("", POD | MEETING)
        with pytest.raises(UsageError, match="--nnodes"):
            filled("--master h:1", POD)

    def test_a_pod_on_its_own(self) -> None:
        config = config_of("--nnodes 1")
        assert fill(config, POD) is config

    @pytest.mark.parametrize(
        ("environ", "missing"),
        [
            ({}, "MASTER_ADDR and MASTER_PORT"),
            ({"MASTER_ADDR": "h"}, "MASTER_PORT"),
            ({"MASTER_PORT": "1"}, "MASTER_ADDR"),
        ],
    )
    def test_nobody_knows_where_they_meet(self, environ: dict[str, str], missing: str) -> None:
        with pytest.raises(UsageError) as caught:
            filled("--nnodes 2", POD | environ)
        message = str(caught.value)
        assert f"not where they meet: {missing} is not set, nor --master" in message
        assert "--master train-0.<service>:29500" in message
        assert "headless service" in message

    def test_a_host_with_another_name(self) -> None:
        with pytest.raises(UsageError, match=r"--master <job>-0\.<service>:29500"):
            filled("--nnodes 2", POD | {"HOSTNAME": "box"})

    @pytest.mark.parametrize("index", ["2", "17"])
    def test_more_pods_than_nodes(self, index: str) -> None:
        environ = POD | MEETING | {"JOB_COMPLETION_INDEX": index}
        with pytest.raises(UsageError, match=f"INDEX={index} is out of range for --nnodes 2"):
            filled("--nnodes 2", environ)

    @pytest.mark.parametrize("index", ["x", "-1", "1.0", "٣"])
    def test_an_index_that_is_none(self, index: str) -> None:
        with pytest.raises(UsageError, match="is no number"):
            filled("--nnodes 2", POD | MEETING | {"JOB_COMPLETION_INDEX": index})

    def test_ranks_of_an_elastic_job_are_assigned(self) -> None:
        assert asked(filled("--nnodes 2:4", POD | MEETING)) == (2, 4, -1, "train-0.workers:29500")

    def test_an_address_of_ipv6(self) -> None:
        environ = POD | MEETING | {"MASTER_ADDR": "fd00::1"}
        assert filled("--nnodes 2", environ).master == "[fd00::1]:29500"

    def test_a_worker_of_ours_is_in_a_job_already(self) -> None:
        config = config_of("")
        assert fill(config, POD | {"RANKSPAWN_DEVICE_TYPE": "cpu"}) is config


def test_nothing_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names stay names: whether they can be found is for those who connect."""
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert filled("", STEP).master == "node01:24711"
