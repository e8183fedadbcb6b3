"""Facts about this machine, and what ``spawn`` would do here. Nothing is started.

What is not ours to decide, such as the devices that a mask shows, is asked of ``plan`` and
``machine``, so that the doctor and ``spawn`` cannot disagree.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from multiprocessing import get_all_start_methods
from typing import Any

from rankspawn import __version__
from rankspawn.machine import Cgroups, read_file
from rankspawn.options import START_METHODS, SpawnOptions, read_options
from rankspawn.plan.devices import VENDORS, see_devices
from rankspawn.plan.job import Job, RankSpec, make_plan, resolve
from rankspawn.portable import has_proc, is_forced, missing_calls

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.plan.devices import Machine

Facts = dict[str, Any]
"""Plain data that ``json`` takes: what ``rankspawn doctor --json`` shows."""

# Distributions that a worker may well import, or that change how it is run.
_PACKAGES = (
    "torch",
    "paddlepaddle",
    "paddlepaddle-gpu",
    "paddlepaddle-xpu",
    "jax",
    "jaxlib",
    "tensorflow",
    "mindspore",
    "deepspeed",
    "accelerate",
    "lightning",
    "pytorch-lightning",
    "mpi4py",
    "numpy",
    "cloudpickle",
    "psutil",
    "rich",
    "pytest",
)
# What other launchers and libraries left in the environment, and workers would read.
_TELLING = (
    "CPU_NUM",
    "OMP_NUM_THREADS",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PADDLE_TRAINERS",
    "PADDLE_TRAINER_ID",
    "PADDLE_TRAINERS_NUM",
    "POD_IP",
    "SLURM_JOB_ID",
    "http_proxy",
    "https_proxy",
)


# Stands for a port that is chosen when workers are started. No machine has it, so that it
# cannot be mistaken for one; it is replaced by words.
_SOME_PORT = 0
_FREE = "<free port>"


def gather_facts(environ: Mapping[str, str], machine: Machine) -> Facts:
    """The facts about a machine and this process, in the order in which they are shown."""
    groups = Cgroups()
    return {
        "software": _software(),
        "devices": _devices(environ, machine),
        "cpus": _cpus(environ, machine, groups),
        "limits": _limits(groups),
        "start_methods": {
            "available": [name for name in START_METHODS if name in get_all_start_methods()],
            "default": SpawnOptions().start_method,
        },
        "system": _system(),
        "packages": _packages(),
        "variables": {
            name: _without_secrets(environ[name]) for name in _TELLING if environ.get(name)
        },
    }


def forecast_spawn(environ: Mapping[str, str], machine: Machine) -> Facts:
    """The workers, devices, backend and variables of ``spawn(func)``, or why it would fail."""
    try:
        job = resolve(-1, read_options({}), environ, machine)
        plan = make_plan(job, _ports(job), run_id="<unique name>")
    except (ValueError, RuntimeError, TypeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "error": None,
        "nprocs": plan.nprocs,
        "world_size": plan.world_size,
        "nnodes": plan.nnodes,
        "backend": plan.backend,
        "device_type": plan.device_type,
        "note": job.resources.warning,
        "ranks": [_rank(spec) for spec in plan.ranks],
    }


def _software() -> Facts:
    """Versions, and whether this process is itself a worker."""
    system = os.uname()
    return {
        "rankspawn": __version__,
        "python": f"{sys.implementation.name} {sys.version.partition(' ')[0]}",
        "system": f"{system.sysname} {system.release} {system.machine}",
        "in_worker": "RANKSPAWN_JOB" in os.environ,
    }


def _devices(environ: Mapping[str, str], machine: Machine) -> list[Facts]:
    """The types of devices that are there, or that a mask speaks of."""
    found = []
    for device_type, vendor in VENDORS.items():
        count = machine.device_count(device_type)
        # CUDA's mask is one of GPUs; that other cards obey it too does not reveal them.
        names = {
            "gpu": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
        }.get(device_type, tuple(n for n in vendor.masks if n != "CUDA_VISIBLE_DEVICES"))
        masks = {name: environ[name] for name in (*names, vendor.flag) if name in environ}
        if not count and not masks:
            continue
        visible = see_devices(device_type, environ, machine)
        found.append(
            {
                "type": device_type,
                "vendor": machine.gpu_vendor() if device_type == "gpu" else None,
                "found": count,
                "masks": masks,
                "visible": [device.id for device in visible.devices],
                "why": visible.source,
            }
        )
    return found


def _cpus(environ: Mapping[str, str], machine: Machine, groups: Cgroups) -> Facts:
    """How many CPUs there are, and how many of them a job may use."""
    return {
        "machine": os.cpu_count(),
        "affinity": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cgroup_quota": groups.cpu_quota(),
        "usable": machine.cpus(),
        "CPU_NUM": environ.get("CPU_NUM"),
    }


def _limits(groups: Cgroups) -> Facts:
    """Limits of this process and its control groups, and the room that is left."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)
    return {
        "open_files": {"soft": _number(files[0]), "hard": _number(files[1])},
        "processes": {"soft": _number(processes[0]), "hard": _number(processes[1])},
        "cgroup_processes": groups.processes(),
        "memory": _memory(),
        "cgroup_memory": groups.memory(),
        "shared_memory": _disk("/dev/shm"),
        "temporary": _disk(_temporary_folder()),
    }


def _system() -> Facts:
    """System calls and files that the supervision of workers relies on, and signals ignored."""
    missing = missing_calls()
    return {
        "platform": sys.platform,
        "pidfd": "pidfd_open" not in missing,
        "memfd": "memfd_create" not in missing,
        "missing_calls": missing,
        "portable_forced": is_forced(),
        "sh": os.access("/bin/sh", os.X_OK),
        "proc": has_proc(),
        "sigint_ignored": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "sigchld_ignored": signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN,
        "ptrace_scope": _read_number("/proc/sys/kernel/yama/ptrace_scope"),
    }


def _packages() -> dict[str, str]:
    """Versions of known distributions that are installed; none is imported."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _number(limit: int) -> int | None:
    """A limit as ``getrlimit`` has it, or None for no limit."""
    return None if limit == resource.RLIM_INFINITY else limit


def _memory() -> Facts:
    """This machine's memory in bytes, from ``/proc/meminfo``."""
    values: Facts = {"total": None, "available": None}
    for line in read_file("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            values[name[3:].lower()] = int(rest.split()[0]) * 1024
    return values


def _temporary_folder() -> str | None:
    """The folder for temporary files, if there is one that can be written to."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:  # no folder can be written to
        return None


def _disk(path: str | None) -> Facts | None:
    """Size and room, in bytes, of a folder's file system; None without such a folder."""
    if path is None:
        return None
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return {
        "path": path,
        "total": usage.total,
        "free": usage.free,
        "writable": os.access(path, os.W_OK | os.X_OK),
    }


def _read_number(path: str) -> int | None:
    """The number that a file holds; None if it is missing, or holds something else."""
    try:
        return int(read_file(path))
    except ValueError:
        return None


def _without_secrets(value: str) -> str:
    """A proxy's address without its name and password."""
    scheme, marker, rest = value.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if marker and "@" in rest else value


def _ports(job: Job) -> list[int]:
    """The ports of this node's ranks: agreed ones, else stand-ins."""
    own = job.topology.own
    return list(own.ports) if own.ports is not None else [_SOME_PORT] * own.count


def _rank(spec: RankSpec) -> Facts:
    """One rank of the forecast: its device and its variables, None for one that is removed."""
    return {
        "rank": spec.rank,
        "device": spec.device_type if spec.device is None else f"{spec.device_type}:{spec.device}",
        "environment": {
            name: None if value is None else _name_ports(name, value)
            for name, value in sorted(spec.env.items())
        },
    }


def _name_ports(name: str, value: str) -> str:
    """The value of a variable, with words for the stand-ins of ports in it."""
    if name == "MASTER_PORT" and value == str(_SOME_PORT):
        return _FREE
    parts = value.split(",")
    return ",".join(
        part.removesuffix(f":{_SOME_PORT}") + f":{_FREE}"
        if part.endswith(f":{_SOME_PORT}")
        else part
        for part in parts
    )
