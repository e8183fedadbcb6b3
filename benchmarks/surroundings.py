"""What a measurement depends on besides the code: date, machine and versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path

# Where the distribution is called something else than what is imported.
_DISTRIBUTIONS = {"paddle": "paddlepaddle"}


def machine() -> str:
    """In words; nothing that names this machine or its owner."""
    cpus = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = ".".join(platform.release().split(".")[:2])
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{cpus} CPUs ({_cpu()}), {memory:.0f} GiB, {platform.system()} {kernel}, {python}"


def versions(modules: Iterable[str]) -> str:
    """Of these modules, in words."""
    found = []
    for module in sorted(modules):
        name = _DISTRIBUTIONS.get(module, module)
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def now() -> str:
    """The date and the time."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def load() -> float:
    """The mean number of processes that ran or wanted to, in the last minute."""
    return round(os.getloadavg()[0], 2)


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
