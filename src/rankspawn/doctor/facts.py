"""Facts about this machine and this process, as plain data. Looks only: nothing is started.

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
from rankspawn.doctor.cgroups import Cgroups
from rankspawn.machine import RealMachine
from rankspawn.options import START_METHODS, SpawnOptions
from rankspawn.plan.devices import see_devices
from rankspawn.plan.vendors import VENDORS

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.plan.facts import Machine

__all__ = ["gather"]

Facts = dict[str, Any]

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


def gather(environ: Mapping[str, str], machine: Machine | None = None) -> Facts:
    """Everything, in the order in which it is shown."""
    machine = machine or RealMachine()
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


def _software() -> Facts:
    system = os.uname()
    return {
        "rankspawn": __version__,
        "python": f"{sys.implementation.name} {sys.version.partition(' ')[0]}",
        "system": f"{system.sysname} {system.release} {system.machine}",
        "in_worker": "RANKSPAWN_JOB" in os.environ,
    }


def _devices(environ: Mapping[str, str], machine: Machine) -> list[Facts]:
    """The types that are there, or that a mask speaks of."""
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
    return {
        "machine": os.cpu_count(),
        "affinity": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cgroup_quota": groups.cpu_quota(),
        "usable": machine.cpus(),
        "CPU_NUM": environ.get("CPU_NUM"),
    }


def _limits(groups: Cgroups) -> Facts:
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
    """What the supervision of workers relies on."""
    return {
        "pidfd": _works(lambda: os.close(os.pidfd_open(os.getpid()))),
        "memfd": _works(lambda: os.close(os.memfd_create("rankspawn-doctor"))),
        "sh": os.access("/bin/sh", os.X_OK),
        "proc": os.path.exists("/proc/self/stat"),
        "sigint_ignored": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "sigchld_ignored": signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN,
        "ptrace_scope": _read_number("/proc/sys/kernel/yama/ptrace_scope"),
    }


def _packages() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _number(limit: int) -> int | None:
    """A limit, None for none."""
    return None if limit == resource.RLIM_INFINITY else limit


def _memory() -> Facts:
    """Bytes of this machine, as ``/proc/meminfo`` has them."""
    values: Facts = {"total": None, "available": None}
    try:
        with open("/proc/meminfo", encoding="utf-8") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in ("MemTotal", "MemAvailable"):
                    values[name[3:].lower()] = int(rest.split()[0]) * 1024
    except (OSError, ValueError):
        pass
    return values


def _temporary_folder() -> str | None:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:  # no folder can be written to
        return None


def _disk(path: str | None) -> Facts | None:
    """Bytes of the file system of a folder; None if there is no such folder."""
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


def _works(attempt: Any) -> bool:
    try:
        attempt()
    except (OSError, AttributeError):
        return False
    return True


def _read_number(path: str) -> int | None:
    try:
        with open(path, encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _without_secrets(value: str) -> str:
    """A proxy's address without its name and password."""
    scheme, marker, rest = value.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if marker and "@" in rest else value
