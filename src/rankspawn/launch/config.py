"""What was asked for: the command line and the variables, as one frozen value.

Pure. For each flag the command line wins over its ``PADDLE_*`` variable, and that over the
default. Nothing after the script's name is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rankspawn.launch.flags import (
    FLAGS,
    IPU_FLAGS,
    Flag,
    UsageError,
    read_variables,
    split_flags,
)
from rankspawn.plan.devices import VENDORS
from rankspawn.plan.environ import WORKER_VARIABLE
from rankspawn.plan.topology import FIRST_PORT, plain

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

COLLECTIVE, PS, HETER, IPU = "collective", "ps", "ps-heter", "ipu"
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
        heter_workers: Endpoints of all stages one after the other; ``heter_worker_num`` has how
            many there are in each.
        given: Fields that a flag or a variable filled, so that a scheduler fills others only.
        notes: What the user should be told, such as a deprecated flag.
    """

    script: str
    script_args: tuple[str, ...] = ()
    is_module: bool = False
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
    given: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes may change while the job runs."""
        return self.min_nodes < self.max_nodes

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
        if self.script.endswith(".py"):
            return (python, "-u", self.script, *self.script_args)
        return (self.script, *self.script_args)


# In a worker of ours these describe the job that it belongs to; a launch inside of it is a
# matter of this machine alone.
_OF_OUTER_JOB = frozenset({"PADDLE_MASTER", "PADDLE_NNODES", "PADDLE_LOG_DIR", "POD_IP"})
# Of each pair one is enough, and with --run_mode collective none has a meaning. What a variable
# says of one gives way to the other on the command line.
_RIVALS = {
    "servers": "server_num",
    "server_num": "servers",
    "trainers": "trainer_num",
    "trainer_num": "trainers",
    "heter_workers": "heter_worker_num",
    "heter_worker_num": "heter_workers",
}
_TYPE_OF_FLAG = {"gpus": "gpu", "selected_gpus": "gpu", "xpus": "xpu", "npus": "npu"}


def read_config(argv: Sequence[str], environ: Mapping[str, str]) -> LaunchConfig:
    """The checked configuration.

    Args:
        argv: The command line without the program's own name.
        environ: The environment.

    Raises:
        UsageError: A flag is unknown, a value is impossible, two of them contradict each other,
            or the script is missing.
    """
    table = [flag for group in FLAGS.values() for flag in group]
    from_line, words = split_flags(argv, table)
    ignored = _OF_OUTER_JOB if WORKER_VARIABLE in environ else frozenset()
    from_environ = read_variables(environ, table, ignored=ignored)
    try:
        values, notes = _merge(from_line, from_environ)
        values |= _read_script(words, values)
        values = _settle(values, notes)
    except UsageError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    return LaunchConfig(**values, notes=tuple(notes))


def _merge(
    from_line: Mapping[str, tuple[Flag, str]], from_environ: Mapping[str, tuple[Flag, str]]
) -> tuple[dict[str, Any], list[str]]:
    """Field to value, the command line's before a variable's."""
    values: dict[str, Any] = {}
    notes: list[str] = []
    for found, is_line in ((from_line, True), (from_environ, False)):
        of_line = dict(values)
        origins: dict[str, str] = {}
        for flag, text in found.values():
            if flag.field in of_line or _is_overruled(flag.field, text, of_line):
                continue
            origin = flag.written if is_line else flag.variable
            if flag.field in origins:
                other = origins[flag.field]
                both = "both select devices" if flag.field == "devices" else "mean the same"
                raise UsageError(f"{other} and {origin} {both}: give only one of them")
            origins[flag.field] = origin
            value = flag.read(origin, text)
            if flag.field == "device_type":
                _set_device_type(values, str(value), origin)
            values[flag.field] = value
            if flag.field == "devices":
                values["devices_name"] = origin
            if flag.name in _TYPE_OF_FLAG:
                _set_device_type(values, _TYPE_OF_FLAG[flag.name], origin)
            if flag.deprecated:
                notes.append(f"{origin} is deprecated: use {flag.deprecated}")
    return values, notes


def _is_overruled(field: str, text: str, of_line: Mapping[str, Any]) -> bool:
    """Whether the command line says something that leaves this variable without a meaning."""
    if field in _RIVALS:
        return _RIVALS[field] in of_line or of_line.get("run_mode") == COLLECTIVE
    if field == "run_mode":
        return text.strip() == COLLECTIVE and not _RIVALS.keys().isdisjoint(of_line)
    return field == "devices" and of_line.get("device_type") == "cpu"


def _set_device_type(values: dict[str, Any], device_type: str, origin: str) -> None:
    other = values.setdefault("device_type", device_type)
    if other != device_type:
        raise UsageError(
            f"{origin} means devices of type {device_type}, but another flag or variable means "
            f"{other}"
        )


def _read_script(words: list[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The program and its arguments; with ``ipu`` in its place, what that means."""
    if not words:
        raise UsageError(
            "the script is missing: rankrun [flags] script.py [arguments of the script]"
        )
    if words[0] == "-m":
        if len(words) < 2:
            raise UsageError("-m needs the name of a module: rankrun [flags] -m package.module")
        return {"script": words[1], "script_args": tuple(words[2:]), "is_module": True}
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
    settled |= _worker_count(settled)
    settled |= _nodes(settled, counts)
    settled |= _stages(settled)
    settled["run_mode"] = _run_mode(settled)
    is_elastic = settled["min_nodes"] < settled["max_nodes"]
    if is_elastic or values.get("elastic_level", -1) >= 0:
        settled.setdefault("node_timeout", _ELASTIC_TIMEOUT)
    if "max_restart" in given and not is_elastic and values.get("elastic_level", -1) != 1:
        notes.append(
            "--max_restart has no effect: without --elastic_level 1 nothing is restarted after a "
            "failure"
        )
    return settled | {"given": given}


def _worker_count(values: dict[str, Any]) -> dict[str, Any]:
    """``--nproc_per_node auto`` and ``cpu``, ``gpu`` … mean one worker for each there is."""
    count = values.get("nproc_per_node")
    if not isinstance(count, str):
        return {}
    if count != "auto":
        known = ("cpu", *VENDORS)
        if count not in known:
            raise UsageError(
                f"--nproc_per_node {count}: give a number, auto, or a type of device, one of "
                + ", ".join(known)
            )
        _set_device_type(values, count, f"--nproc_per_node {count}")
    return {"nproc_per_node": None}


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
    useless = {COLLECTIVE: [*heter, *servers], IPU: [*heter, *servers], PS: heter}.get(mode, [])
    if useless:
        raise UsageError(f"--{useless[0]} has no meaning with --run_mode {mode}")
    return mode
