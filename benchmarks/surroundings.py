"""What a measurement depends on besides the code: date, machine and versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path

PACKAGES = (
    *("torch", "paddlepaddle", "loky", "torchrunx"),
    *("numpy", "pandas", "pyarrow", "cloudpickle", "psutil"),
)


def describe() -> dict[str, str]:
    """Words for each column; nothing that names this machine or its owner."""
    return {
        "cpu": _cpu(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "memory_gib": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def moment() -> dict[str, str]:
    """What differs from one measurement to the next: the time, and how busy the machine is.

    The load is the mean number of processes that ran or wanted to, in the last minute.
    """
    return {"date": time.strftime("%Y-%m-%d %H:%M:%S"), "load": f"{os.getloadavg()[0]:.2f}"}


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
