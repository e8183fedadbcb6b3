"""What this machine has: devices, CPUs, addresses.

The effects behind ``plan``: everything is read when it is asked for, nothing at import.
Devices are counted without a framework and without a CUDA context, which would take
memory on a device and make ``fork`` unsafe.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cached_property

from rankspawn.plan.vendors import vendor_of

__all__ = ["RealMachine"]


class RealMachine:
    """The machine that this process runs on.

    Device counts are read once per object; CPUs can change at any time, so they are not.

    Args:
        proc: Where procfs is mounted.
        sys: Where sysfs is mounted.
        dev: The directory of device nodes.
        nvml: NVIDIA's management library, as the loader knows it.
    """

    def __init__(
        self,
        *,
        proc: str = "/proc",
        sys: str = "/sys",
        dev: str = "/dev",
        nvml: str = "libnvidia-ml.so.1",
    ) -> None:
        self._proc = proc
        self._sys = sys
        self._dev = dev
        self._nvml = nvml

    def device_count(self, device_type: str) -> int:
        """Number of devices of one type; 0 if none is found or the type is unknown."""
        if device_type == "gpu":
            return self._gpus[1]
        nodes = vendor_of(device_type).nodes
        return _count(nodes, self._device_nodes) if nodes else 0

    def gpu_vendor(self) -> str | None:
        """``nvidia`` or ``amd``, or None when no GPU is found."""
        return self._gpus[0]

    def cpus(self) -> int:
        """CPUs that this process may use: its affinity, cut by its cgroups' quotas.

        A quota of 2.5 CPUs counts as 2, so that as many ranks are not throttled, and
        one below 1 as 1.
        """
        if hasattr(os, "sched_getaffinity"):
            count = len(os.sched_getaffinity(0))
        else:
            count = os.cpu_count() or 1
        quotas = [quota for quota in self._quotas() if quota is not None]
        return max(1, int(min([float(count), *quotas])))

    def addresses(self) -> frozenset[str]:
        """IP addresses of this machine's interfaces, loopback included."""
        # Imported here: it costs about 20 ms, and one node does not need it.
        import socket

        import psutil

        families = (socket.AF_INET, socket.AF_INET6)
        return frozenset(
            # An IPv6 address of a link comes with its interface: fe80::1%eth0.
            entry.address.partition("%")[0]
            for entries in psutil.net_if_addrs().values()
            for entry in entries
            if entry.family in families
        )

    def resolve(self, host: str) -> frozenset[str]:
        """IP addresses that ``host`` stands for; none if it cannot be resolved.

        A name may block for as long as the resolver waits; an address never does. No
        address is turned back into a name, which differs from machine to machine.
        """
        import socket

        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return frozenset()
        return frozenset(str(entry[4][0]).partition("%")[0] for entry in found)

    @cached_property
    def _gpus(self) -> tuple[str | None, int]:
        """The vendor of the GPUs, and their number."""
        nvidia = (
            _count_by_nvml(self._nvml)
            or len(_names(f"{self._proc}/driver/nvidia/gpus"))
            or _count(r"nvidia[0-9]+", self._device_nodes)
        )
        if nvidia:
            return "nvidia", nvidia
        amd = self._amd_gpus()
        return ("amd", amd) if amd else (None, 0)

    @cached_property
    def _device_nodes(self) -> list[str]:
        return _names(self._dev)

    def _amd_gpus(self) -> int:
        """Nodes of the ROCm driver that can compute; CPUs are nodes too, without SIMDs."""
        nodes = f"{self._sys}/class/kfd/kfd/topology/nodes"
        texts = [_read(f"{nodes}/{name}/properties") for name in _names(nodes)]
        return sum(1 for text in texts if re.search(r"\bsimd_count [1-9]", text))

    def _quotas(self) -> list[float | None]:
        """Quotas in CPUs of every cgroup that this process is in, from both versions."""
        quotas = []
        for line in _read(f"{self._proc}/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                for root in (f"{self._sys}/fs/cgroup", f"{self._sys}/fs/cgroup/unified"):
                    quotas += [_quota_v2(group) for group in _with_parents(root, path)]
            elif "cpu" in controllers.split(","):
                root = f"{self._sys}/fs/cgroup/{controllers}"
                quotas += [_quota_v1(group) for group in _with_parents(root, path)]
        return quotas


def _with_parents(root: str, path: str) -> list[str]:
    """A cgroup and all groups above it: each of them can limit it.

    In a container the path may be the host's and missing below ``root``; then ``root``
    itself is the container's own group, which is why it is always included.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return ["/".join([root, *parts[:depth]]) for depth in range(len(parts), -1, -1)]


def _quota_v2(group: str) -> float | None:
    quota, _, period = _read(f"{group}/cpu.max").strip().partition(" ")
    return _ratio(quota, period)


def _quota_v1(group: str) -> float | None:
    return _ratio(_read(f"{group}/cpu.cfs_quota_us"), _read(f"{group}/cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    """CPUs per period; None without a limit, which is ``max`` or ``-1``."""
    try:
        used, every = int(quota), int(period)
    except ValueError:
        return None
    return used / every if used > 0 and every > 0 else None


def _count(pattern: str, names: Iterable[str]) -> int:
    """How many of the names match."""
    matches = re.compile(pattern).fullmatch
    return sum(1 for name in names if matches(name))


def _names(directory: str) -> list[str]:
    """The entries of a directory; none if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _read(path: str) -> str:
    """A small file's text; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _count_by_nvml(library: str) -> int:
    """Number of NVIDIA GPUs by their management library; 0 if it is absent or fails."""
    try:
        # A machine without the library is found out about in 0.5 ms; ctypes takes 6.
        import _ctypes

        _ctypes.dlopen(library, 0)
        import ctypes

        nvml = ctypes.CDLL(library)
        if nvml.nvmlInit_v2() != 0:
            return 0
        try:
            count = ctypes.c_uint(0)
            failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
            return 0 if failed else count.value
        finally:
            nvml.nvmlShutdown()
    except (OSError, AttributeError, ImportError):
        return 0
