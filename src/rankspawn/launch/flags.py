"""The flags of ``rankrun`` as a table: name, whose word it is, variable, reader, one line of help.

Pure. :mod:`~rankspawn.launch.command_line` reads a command line by it, and makes ``--help`` of it.
"""

from __future__ import annotations

from rankspawn.launch import flag_values as read
from rankspawn.launch.flag import BOTH as _BOTH
from rankspawn.launch.flag import OURS as _OURS
from rankspawn.launch.flag import PADDLE as PADDLE
from rankspawn.launch.flag import TORCHRUN as TORCHRUN
from rankspawn.launch.flag import Flag as Flag
from rankspawn.launch.flag import torchruns as _torchruns
from rankspawn.option_values import HIGHEST_PORT

# Exit codes, as shells have them.
WRONG_USAGE = 2
CANNOT_EXECUTE = 126
_NOT_FOUND = 127


class UsageError(ValueError):
    """A command line or a variable that cannot be used, told to people."""


def exit_code_of_error(error: Exception) -> int:
    """The launcher's exit code for a job that could not be started."""
    if isinstance(error, UsageError):
        return WRONG_USAGE
    return _NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE


class HelpRequest(Exception):
    """``--help`` or ``--version`` was given; ``text`` is the answer."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


# Grouped as `rankrun --help` shows them.
FLAGS: dict[str, tuple[Flag, ...]] = {
    "which workers": (
        Flag(
            "nproc_per_node",
            read.workers,
            "workers on this node: a number, or `cpu`, `gpu` … for one each; "
            "without it one per device, or per CPU",
            of=_BOTH,
        ),
        Flag("devices", read.ids, "ids of the devices to use, such as 0,1; as the mask has them"),
        Flag("gpus", read.ids, "the same, and they are GPUs", "devices"),
        Flag("xpus", read.ids, "the same for Kunlun XPUs", "devices"),
        Flag("npus", read.ids, "the same for Ascend NPUs", "devices"),
        Flag(
            "device_type",
            read.identifier,
            "type of the devices: gpu, xpu, npu, mlu, … or cpu",
            of=_OURS,
        ),
        Flag(
            "share_devices",
            read.switch,
            "with more workers than devices, they take turns: several have the same one",
            is_switch=True,
            of=_OURS,
        ),
        Flag("selected_gpus", read.ids, "", "devices", deprecated="--gpus"),
    ),
    "many machines": (
        Flag(
            "nnodes",
            read.node_counts,
            "number of nodes (1), or the fewest and the most, such as 2:4, for an elastic job",
            of=_BOTH,
        ),
        Flag(
            "master",
            read.text,
            "where they meet: host:port, http://host:port or etcd://host:port[,host:port…]; "
            "etcds:// is etcd over TLS",
        ),
        Flag(
            "hosts",
            read.text,
            "start this on each of these machines: a,b:2 (2 workers on b), or a file of such lines",
            of=_OURS,
        ),
        Flag("ssh", read.switch, "by the program ssh; goes with --hosts", is_switch=True, of=_OURS),
        Flag("etcd_ca", read.text, "file with the authority of the etcd's certificates", of=_OURS),
        Flag("etcd_cert", read.text, "file with this client's certificate for the etcd", of=_OURS),
        Flag("etcd_key", read.text, "file with the key of that certificate", of=_OURS),
        Flag("rank", read.number(-1), "rank of this node; -1, the default, has it assigned"),
        Flag(
            "host",
            read.address,
            "address at which the other nodes reach this one",
            other_variable="POD_IP",
        ),
        Flag(
            "start_port",
            read.port,
            "first port of the workers on several nodes; without it, free ones, or 6070 with --ips",
        ),
        Flag("job_id", read.text, "name of the job (default)"),
        Flag("ips", read.addresses, "", deprecated="--nnodes and --master"),
        Flag("cluster_node_ips", read.addresses, "", "ips", deprecated="--nnodes and --master"),
    ),
    "failures": (
        Flag(
            "max_restart",
            read.number(0),
            "restarts after failed workers and lost nodes, in all (3)",
            begins="max_restarts",
        ),
        Flag(
            "elastic_level",
            read.number(-1, 1),
            "-1, the default: a failed worker ends the job; 0: its node leaves, the others hold; "
            "1: its node starts its workers again",
        ),
        Flag(
            "elastic_timeout", read.seconds, "seconds to wait for more nodes than the fewest (30)"
        ),
        Flag(
            "join_timeout",
            read.seconds,
            "seconds to wait for the fewest nodes at the start (600)",
            of=_OURS,
        ),
        Flag(
            "node_timeout",
            read.node_timeout,
            "seconds without a sign of life after which a node counts as dead (30; 10 in a job "
            "that goes on without it)",
            of=_OURS,
        ),
        Flag("grace_period", read.seconds, "seconds between SIGTERM and SIGKILL (10)", of=_OURS),
        Flag(
            "timeout",
            read.time_limit,
            "seconds for the whole job, restarts included, from its first start on",
            of=_OURS,
        ),
        Flag(
            "stall_timeout",
            read.time_limit,
            "seconds without a report or output of any worker of this node before the job is ended",
            of=_OURS,
        ),
        Flag(
            "restart_exit_codes",
            read.exit_codes,
            "start again only after these exit codes of a failed worker, such as 1,75",
            of=_OURS,
        ),
        Flag(
            "no_restart_exit_codes",
            read.exit_codes,
            "do not start again after these",
            of=_OURS,
        ),
    ),
    "output": (
        Flag("log_dir", read.text, "folder of the workers' logs (log)", of=_BOTH),
        Flag("log_level", read.level, "DEBUG, INFO (the default), WARNING, ERROR or CRITICAL"),
        Flag(
            "log_overwrite",
            read.switch,
            "empty the logs of the last run first; without it they go on",
            is_switch=True,
        ),
        Flag(
            "tee_all",
            read.switch,
            "show what all ranks print, each line with a prefix; --tee without a value is the same",
            is_switch=True,
            of=_OURS,
        ),
        Flag("ranks_filter", read.ranks, "show what these ranks print, as 0,1", of=_OURS),
        Flag(
            "prefix",
            read.template,
            "what stands before each shown line: [rank {rank}], {local_rank}, {node}, {host} …",
            of=_OURS,
        ),
        Flag(
            "progress",
            read.switch,
            "show what all ranks of this node do, as spawn does",
            is_switch=True,
            of=_OURS,
        ),
        Flag(
            "trace",
            read.trace,
            "what happened, as a file in the end: run.html, a page, or run.json, for Perfetto",
            of=_OURS,
        ),
    ),
    "debuggers": (
        Flag(
            "debug",
            read.debug,
            "this rank has the terminal for its breakpoint(); 1,hold: the others wait at theirs",
            other_variable="PADDLE_LAUNCH_DEBUG",
            of=_OURS,
        ),
        Flag(
            "debugpy",
            read.debugpy,
            "this rank, or all, listens for an editor's debugger; 1,wait: and waits for it",
            other_variable="PADDLE_LAUNCH_DEBUGPY",
            of=_OURS,
        ),
    ),
    "parameter servers": (
        Flag("run_mode", read.run_mode, "collective (the default), ps, ps-heter or rpc"),
        Flag("server_num", read.number(1), "servers on this node"),
        Flag("trainer_num", read.number(1), "trainers on this node"),
        Flag(
            "servers",
            read.endpoints,
            "all servers of the job, as host:port,host:port",
            other_variable="PADDLE_SERVERS_ENDPOINTS",
        ),
        Flag(
            "trainers",
            read.endpoints,
            "all trainers of the job",
            other_variable="PADDLE_TRAINERS_ENDPOINTS",
        ),
        Flag("heter_worker_num", read.stage_counts, "heter workers for each stage, such as 2;2"),
        Flag(
            "heter_workers",
            read.stages,
            "all heter workers, stage by stage: host:port,host:port;host:port",
            other_variable="PADDLE_HETER_WORKERS_ENDPOINTS",
        ),
        Flag("heter_devices", read.stage_devices, "device type of each heter stage, as gpu;cpu"),
        Flag("gloo_port", read.port, "port for the meeting of gloo (6767)"),
        Flag("with_gloo", read.switch, "use gloo between them (yes)", is_switch=True),
        Flag("workers", read.endpoints, "", "trainers", deprecated="--trainers"),
        Flag("worker_num", read.number(1), "", "trainer_num", deprecated="--trainer_num"),
        Flag("http_port", read.port, "", "gloo_port", deprecated="--gloo_port"),
    ),
    "how the script is run": (
        Flag(
            "module",
            read.switch,
            "the script is the name of a module, as with python -m",
            "is_module",
            other_variable="PET_MODULE",
            is_bare=True,
            of=_BOTH,
            letter="m",
        ),
        Flag(
            "agent_store",
            read.switch,
            "torch's store is hosted beside the workers, as torchrun does, not by rank 0",
            is_switch=True,
            of=_OURS,
        ),
        Flag(
            "env",
            read.assignments,
            "a variable of the workers, NAME=VALUE; it can be given again, for others",
            other_variable="PADDLE_LAUNCH_ENV",
            of=_OURS,
            repeats=True,
        ),
        Flag("env_file", read.text, "a file with such lines", of=_OURS),
        _torchruns("no_python", read.switch, "the script is a program, also if it ends in .py"),
        _torchruns("run_path", read.switch, "the script is run by runpy.run_path"),
    ),
    "torchrun's words for the above": (
        _torchruns("standalone", read.switch, "one node, whatever else is said of nodes"),
        _torchruns("rdzv_backend", read.backend, "c10d and static: --master; etcd, etcd-v2: etcd"),
        _torchruns("rdzv_endpoint", read.text, "where nodes meet, as --master"),
        _torchruns("rdzv_id", read.text, "name of the job, as --job_id"),
        _torchruns("rdzv_conf", read.settings, "timeouts of the meeting, as key=value,key=value"),
        _torchruns("node_rank", read.number(0), "rank of this node, as --rank"),
        _torchruns("master_addr", read.address, "host of --master"),
        _torchruns("master_port", read.number(0, HIGHEST_PORT), "port of --master"),
        _torchruns("local_addr", read.address, "address of this node, as --host", sets="host"),
        _torchruns("max_restarts", read.number(0), "--elastic_level 1 and --max_restart"),
        _torchruns(
            "shutdown_timeout", read.seconds, "the same as --grace_period", sets="grace_period"
        ),
        _torchruns("role", read.text, "name of the workers in prefixes, and ROLE_NAME (default)"),
        _torchruns(
            "virtual_local_rank", read.switch, "each sees its device alone, as local rank 0"
        ),
        _torchruns(
            "redirects",
            read.streams,
            "what goes to files alone: 1 stdout, 2 stderr, 3; 0:1,1:3",
            "r",
        ),
        _torchruns("tee", read.streams, "what is shown with prefixes, in the same words", "t"),
        _torchruns("local_ranks_filter", read.ranks, "whose output is shown, as 0,1; others' not"),
        _torchruns("duplicate_stdout_filters", read.patterns, "lines that go to a file as well"),
        _torchruns("duplicate_stderr_filters", read.patterns, "the same for the standard error"),
        _torchruns("numa_binding", read.numa, "CPUs of each worker: node, socket, exclusive, …"),
        _torchruns("monitor_interval", read.seconds, "", instead="ends are noticed at once"),
        _torchruns("start_method", read.start_method, "", instead="each worker is executed"),
        _torchruns("event_log_handler", read.text, "", instead="events are told on stderr"),
        _torchruns("logs_specs", read.text, "", instead="the logs are as --log_dir says"),
        _torchruns(
            "signals_to_handle",
            read.signals,
            "",
            instead="SIGINT, SIGTERM and SIGHUP end the job, SIGUSR1 and SIGUSR2 are passed on",
        ),
    ),
    "Paddle's words for the above": (
        Flag("backend", read.text, "gloo is --device_type cpu, nccl gpu, bkcl xpu"),
        Flag("use_paddlecloud", read.switch, "nodes are those of PADDLE_TRAINERS", is_bare=True),
        Flag("legacy", read.switch, "", is_switch=True, instead="there is one launcher only"),
        Flag(
            "sort_ip",
            read.switch,
            "",
            is_switch=True,
            instead="nodes are ranked as they come, or by --rank",
        ),
        Flag("enable_gpu_log", read.switch, "", is_switch=True, instead="no log of GPUs is kept"),
        Flag("auto_parallel_config", read.text, "", instead="the script has to read it"),
        Flag("auto_cluster_config", read.text, "", instead="no cluster is described to workers"),
        Flag("auto_tuner_json", read.text, "", instead="the script is run once, as it is"),
    ),
}

# After `ipu`, which stands where the script would.
IPU_FLAGS: tuple[Flag, ...] = (
    Flag("hosts", read.addresses, "machines, as a comma list"),
    Flag("nproc_per_host", read.number(1), "processes on each of them"),
    Flag("ipus_per_replica", read.number(1), "IPUs of each replica"),
    Flag("ipu_partition", read.text, "name of the partition"),
    Flag("vipu_server", read.text, "address of the V-IPU server"),
)
