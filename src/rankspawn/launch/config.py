"""What was asked for: the command line and the variables, as one frozen value.

Pure. For each flag the command line wins over its ``PADDLE_*`` variable, that over torchrun's
``PET_*``, and that over the default. Nothing after the script's name is looked at.
"""

from __future__ import annotations

from rankspawn.launch.command_line import (
    all_flags,
    read_torchruns_variables,
    read_variables,
    split_flags,
)
from rankspawn.launch.flags import IPU_FLAGS, UsageError
from rankspawn.launch.merging import COLLECTIVE, first_devices, merge, worker_count
from rankspawn.plan.environ import WORKER_VARIABLE
from rankspawn.plan.topology import FIRST_PORT, plain
from rankspawn.values import dataclass, field, replace

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from rankspawn.launch.torchrun import Streams
    from rankspawn.option_values import DebugpyRequest, DebugRequest

PS, HETER, IPU = "ps", "ps-heter", "ipu"
_RPC = "rpc"  # a collective job whose workers are told more
# Seconds without a sign of life after which a node is given up. Where that ends the job, it has to
# outlast a switch that reboots; where the others go on, what is lost is a restart.
_FIXED_TIMEOUT, _ELASTIC_TIMEOUT = 30.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IpuConfig:
    """What stands after ``ipu``: the arguments of ``poprun``."""

    device_count: int
    hosts: tuple[str, ...]
    nproc_per_host: int
    ipus_per_replica: int
    ipu_partition: str
    vipu_server: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """One call of ``rankrun``; see docs/launch.md for what each flag means.

    Attributes:
        script: The program, or the module with ``is_module``.
        script_args: Its arguments, untouched.
        is_module: It was given with ``-m``.
        min_nodes: The fewest nodes; the same as ``max_nodes`` if the job is not elastic.
        nproc_per_node: Workers on this node; None for one per device, or per CPU.
        devices: Selected ids; None for whatever there is.
        devices_name: The flag or variable that selected them.
        device_type: ``gpu``, ``xpu``, ``npu``, ``cpu`` …; None for whatever there is.
        runner: How the script is run: ``program`` or ``run_path``; else by what it is.
        streams: Where each stream goes, and that each has a file of its own; None for one log.
        role: The workers' name in prefixes.
        run_name: What the workers are told as the name of the run; None for one of our own.
        own_devices: Each worker sees its own device only, and is local rank 0.
        share_devices: Several workers may have the same device.
        first_port: The port of the first worker of a job on one node; None for a free one.
        numa_binding: How workers are bound to CPUs.
        rpc: The workers are told what Paddle's RPC reads.
        agent_store: torch's store is hosted beside the workers, not by the first of them.
        heter_workers: Endpoints of all stages one after the other; ``heter_worker_num`` has how
            many there are in each.
        timeout: Seconds for the whole job from its first start on; None for no limit.
        stall_timeout: Seconds without a sign of any worker of this node; None for no limit.
        restart_exit_codes: The exit codes after which a failed worker is worth a restart; None
            for all but ``no_restart_exit_codes``.
        tee_all: What all ranks of this node print is shown.
        ranks_filter: The ranks whose output is shown; None for no choice.
        prefix: What stands before each shown line, as a template.
        progress: There is a view of all ranks of this node.
        trace: The file that shows in the end what happened.
        debug: The rank that has the terminal; None for the first one of the node.
        debugpy: The ranks that listen for the debugger of an editor; None for none.
        hosts: The machines on which launchers are to be started from here, as a list or a file.
        ssh: They are started over ssh.
        env: Variables of the workers, which win over all others.
        env_file: A file with more of them.
        given: Fields that a flag or a variable filled, so that a scheduler fills others only.
        notes: What the user should be told, such as a deprecated flag.
    """

    script: str
    script_args: tuple[str, ...] = ()
    is_module: bool = False
    runner: str = ""
    # It may hold the password of an etcd.
    master: str | None = field(default=None, repr=False)
    etcd_ca: str | None = None
    etcd_cert: str | None = None
    etcd_key: str | None = None
    node_rank: int = -1
    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: int | None = None
    devices: tuple[str, ...] | None = None
    devices_name: str = "--devices"
    device_type: str | None = None
    host: str | None = None
    ips: tuple[str, ...] = ()
    start_port: int = FIRST_PORT
    log_dir: str = "log"
    log_level: str = "INFO"
    log_overwrite: bool = False
    job_id: str = "default"
    run_mode: str = COLLECTIVE
    max_restart: int = 3
    elastic_level: int = -1
    elastic_timeout: float = 30.0
    join_timeout: float = 600.0
    node_timeout: float = _FIXED_TIMEOUT
    grace_period: float = 10.0
    servers: tuple[str, ...] = ()
    trainers: tuple[str, ...] = ()
    heter_workers: tuple[str, ...] = ()
    server_num: int | None = None
    trainer_num: int | None = None
    heter_worker_num: tuple[int, ...] | None = None
    heter_devices: tuple[str, ...] = ()
    gloo_port: int = 6767
    with_gloo: bool = True
    ipu: IpuConfig | None = None
    streams: Streams | None = None
    role: str = "default"
    run_name: str | None = None
    own_devices: bool = False
    share_devices: bool = False
    first_port: int | None = None
    numa_binding: str | None = None
    rpc: bool = False
    agent_store: bool = False
    timeout: float | None = None
    stall_timeout: float | None = None
    restart_exit_codes: frozenset[int] | None = None
    no_restart_exit_codes: frozenset[int] = frozenset()
    tee_all: bool = False
    ranks_filter: frozenset[int] | None = None
    prefix: str | None = None
    progress: bool = False
    trace: str | None = None
    debug: DebugRequest | None = None
    debugpy: DebugpyRequest | None = None
    hosts: str | None = None
    ssh: bool = False
    # It may hold secrets.
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    env_file: str | None = None
    given: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes may change while the job runs."""
        return self.min_nodes < self.max_nodes

    @property
    def may_go_on(self) -> bool:
        """Whether workers may be started again after one failed."""
        return self.is_elastic or self.elastic_level >= 0

    @property
    def shows_ranks(self) -> bool:
        """Whether more is shown than the terminal's rank as it is."""
        chosen = self.tee_all or self.ranks_filter is not None or self.progress
        return chosen or (self.prefix is not None and self.streams is None)

    @property
    def spans_machines(self) -> bool:
        """Whether it has, or may have, more than one node."""
        listed = (*self.servers, *self.trainers, *self.heter_workers)
        hosts = {plain(endpoint.rpartition(":")[0]) for endpoint in listed}
        return self.max_nodes > 1 or len(hosts) > 1

    def command(self, python: str) -> tuple[str, ...]:
        """What each worker executes; Python unbuffered, so that logs are complete."""
        if self.is_module:
            return (python, "-u", "-m", self.script, *self.script_args)
        if self.runner == "run_path":
            return (python, "-u", "-c", _RUN_PATH, self.script, *self.script_args)
        if self.runs_python:
            return (python, "-u", self.script, *self.script_args)
        return (self.script, *self.script_args)

    @property
    def is_python(self) -> bool:
        """Whether workers are Python, whichever way it finds what it runs."""
        return self.is_module or self.runs_python or self.runner == "run_path"

    @property
    def runs_python(self) -> bool:
        """Whether the script is run by Python, and no program by itself."""
        return self.runner == "python" or (not self.runner and self.script.endswith(".py"))


# Without the script's folder among those of modules, as runpy has it.
_RUN_PATH = (
    "import sys, runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], None, '__main__')"
)


_COLLECTIVE_ONLY = {
    "streams": "how torchrun shows streams and lays logs",
    "numa_binding": "--numa_binding",
    "own_devices": "--virtual_local_rank",
    "share_devices": "--share_devices",
    "agent_store": "--agent_store",
    "tee_all": "--tee",
    "ranks_filter": "--ranks_filter",
    "progress": "--progress",
    "prefix": "--prefix",
    "debug": "--debug",
    "debugpy": "--debugpy",
}
# In a worker of ours these describe the job that it belongs to; a launch inside of it is a
# matter of this machine alone.
_OF_OUTER_JOB = frozenset(
    {"PADDLE_MASTER", "PADDLE_NNODES", "PADDLE_LOG_DIR", "POD_IP", "PADDLE_HOSTS", "PADDLE_SSH"}
)


def read_config(argv: Sequence[str], environ: Mapping[str, str]) -> LaunchConfig:
    """The checked configuration.

    Args:
        argv: The command line without the program's own name.
        environ: The environment.

    Raises:
        UsageError: A flag is unknown, a value is impossible, two of them contradict each other,
            or the script is missing.
    """
    table = all_flags()
    from_line, words = split_flags(argv, table)
    in_worker = WORKER_VARIABLE in environ
    from_environ = read_variables(
        environ, table, ignored=_OF_OUTER_JOB if in_worker else frozenset()
    )
    # A look at the names first: most starts have none of them.
    has_pet = not in_worker and any(name.startswith("PET_") for name in environ)
    from_pet = read_torchruns_variables(environ, table) if has_pet else {}
    try:
        values, notes = merge(from_line, from_environ, from_pet, environ)
        values |= _read_script(words, values)
        values = _settle(values, notes)
    except UsageError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    return LaunchConfig(**values, notes=tuple(notes))


def _read_script(words: list[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The program and its arguments; with ``ipu`` in its place, what that means."""
    if not words and values.get("is_module"):
        raise UsageError("-m needs the name of a module: rankrun [flags] -m package.module")
    if not words:
        raise UsageError(
            "the script is missing: rankrun [flags] script.py [arguments of the script]"
        )
    if words[0] == IPU:
        return _read_ipu(words[1:], values)
    return {"script": words[0], "script_args": tuple(words[1:])}


def _read_ipu(argv: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    found, words = split_flags(argv, IPU_FLAGS)
    missing = [flag.written for flag in IPU_FLAGS if flag.name not in found]
    if missing or not words:
        wanted = ", ".join(missing) or "the script"
        raise UsageError(
            f"{wanted} is missing after `ipu`: rankrun --devices 4 ipu --hosts … "
            "--nproc_per_host … --ipus_per_replica … --ipu_partition … --vipu_server … script.py"
        )
    devices = values.get("devices", ())
    if len(devices) != 1 or not devices[0].isdecimal() or devices[0] == "0":
        raise UsageError("`ipu` needs the number of IPUs before it, such as --devices 4 ipu …")
    arguments: dict[str, Any] = {
        flag.name: flag.read(flag.written, text) for flag, text in found.values()
    }
    return {
        "script": words[0],
        "script_args": tuple(words[1:]),
        "ipu": IpuConfig(device_count=int(devices[0]), **arguments),
        "run_mode": IPU,
    }


def _settle(values: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """What follows from several flags together, under the names of the fields."""
    fields = values.keys() - {"devices_name"}
    given = frozenset({"rank": "node_rank"}.get(name, name) for name in fields)
    settled = dict(values)
    settled["node_rank"] = settled.pop("rank", -1)
    counts = settled.pop("nnodes", None)
    settled |= worker_count(settled)
    settled |= first_devices(settled, notes)
    settled |= _nodes(settled, counts)
    settled |= _stages(settled)
    settled["run_mode"] = _run_mode(settled)
    if settled["run_mode"] == _RPC:
        settled |= {"run_mode": COLLECTIVE, "rpc": True}
    for name, words in _COLLECTIVE_ONLY.items():
        if name in values and settled["run_mode"] != COLLECTIVE:
            settled.pop(name)
            notes.append(f"{words} has no effect with --run_mode {settled['run_mode']}")
    settled |= _shown(settled)
    is_elastic = settled["min_nodes"] < settled["max_nodes"]
    if is_elastic or values.get("elastic_level", -1) >= 0:
        settled.setdefault("node_timeout", _ELASTIC_TIMEOUT)
    if not is_elastic and values.get("elastic_level", -1) < 0:
        notes += [
            f"--{name} has no effect: without --elastic_level 1 nothing is started again"
            for name in ("restart_exit_codes", "no_restart_exit_codes")
            if name in given
        ]
    if "max_restart" in given and not is_elastic and values.get("elastic_level", -1) != 1:
        notes.append(
            "--max_restart has no effect: without --elastic_level 1 nothing is restarted after a "
            "failure"
        )
    return settled | {"given": given}


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Our own words for what is shown, among torchrun's."""
    streams = values.get("streams")
    if streams is None:
        return {}
    if values.get("progress"):
        raise UsageError("--progress and torchrun's words both want the terminal: leave one out")
    if values.get("ranks_filter") is not None:
        raise UsageError("--ranks_filter is none of torchrun's words: give --local_ranks_filter")
    return {"streams": replace(streams, tee=3), "tee_all": False} if values.get("tee_all") else {}


def _nodes(values: Mapping[str, Any], counts: tuple[int, int] | None) -> dict[str, Any]:
    """The fewest and the most nodes, and the address of the only one."""
    ips = values.get("ips", ())
    low, high = counts or (max(1, len(ips)),) * 2
    if ips and not low <= len(ips) <= high:
        raise UsageError(f"--ips names {len(ips)} nodes, but --nnodes is {low}")
    rank = values["node_rank"]
    # Without a number, a scheduler may still have one.
    if (counts or ips) and rank >= high:
        raise UsageError(f"--rank {rank} is out of range: with --nnodes {high} it is below {high}")
    nodes = {"min_nodes": low, "max_nodes": high}
    return nodes | {"host": ips[0]} if len(ips) == 1 and "host" not in values else nodes


def _stages(values: Mapping[str, Any]) -> dict[str, Any]:
    """Heter workers without their grouping, which goes into the counts."""
    stages = values.get("heter_workers")
    if stages is None:
        return {}
    counts = tuple(len(stage) for stage in stages)
    if values.get("heter_worker_num", counts) != counts:
        raise UsageError("--heter_worker_num contradicts the entries of --heter_workers")
    return {
        "heter_workers": tuple(endpoint for stage in stages for endpoint in stage),
        "heter_worker_num": counts,
    }


def _run_mode(values: Mapping[str, Any]) -> str:
    """What was asked for, or what its flags are for; never a parameter server unasked."""
    heter = [name for name in ("heter_workers", "heter_worker_num") if name in values]
    servers = [
        name for name in ("servers", "server_num", "trainers", "trainer_num") if name in values
    ]
    mode = str(values.get("run_mode") or (HETER if heter else PS if servers else COLLECTIVE))
    useless = {COLLECTIVE: [*heter, *servers], IPU: [*heter, *servers], PS: heter}
    useless[_RPC] = useless[COLLECTIVE]
    if useless.get(mode):
        raise UsageError(f"--{useless[mode][0]} has no meaning with --run_mode {mode}")
    return mode
