"""What this machine has: devices, CPUs, addresses; and what control groups leave of it.

The effects behind ``plan``: everything is read when it is asked for, nothing at import.
Devices are counted without a framework and without a CUDA context, which would take
memory on a device and make ``fork`` unsafe.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from rankspawn.cpython import may_have_library
from rankspawn.handlers import handlers_held
from rankspawn.plan.devices import vendor_of
from rankspawn.values import dataclass

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import Any

# NVIDIA's management library, as the loader knows it.
NVML = "libnvidia-ml.so.1"
# Without a limit, version 1 shows the largest multiple of a page.
_NO_LIMIT = 2**60
# The limit and the use of memory, in both versions of control groups; and what of the use is given
# up for others, which version 1 counts with that of the groups below.
_MEMORY_FILES = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
_CACHES = (
    *("active_file", "inactive_file", "slab_reclaimable"),
    *("total_active_file", "total_inactive_file"),
)


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
        nvml: str = NVML,
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
        with handlers_held():  # a TimeoutError of one would be taken for a file that is not there
            quota = Cgroups(proc=self._proc, root=f"{self._sys}/fs/cgroup").cpu_quota()
        return max(1, int(count if quota is None else min(count, quota)))

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
        texts = [read_file(f"{nodes}/{name}/properties") for name in _names(nodes)]
        words = [text.split() for text in texts]
        counts = [of[of.index("simd_count") + 1 :][:1] for of in words if "simd_count" in of]
        return sum(1 for count in counts if count and count[0] > "0")


def _count(pattern: str, names: Iterable[str]) -> int:
    """How many of the names match."""
    start = pattern.partition("[")[0]
    found = [name for name in names if name.startswith(start)]
    if not found:
        return 0
    import re  # it takes longer than all else here, and most machines have none

    return sum(1 for name in found if re.fullmatch(pattern, name))


def _names(directory: str) -> list[str]:
    """The entries of a directory; none if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _count_by_nvml(library: str) -> int:
    """Number of NVIDIA GPUs by their management library; 0 if it is absent or fails."""
    nvml = open_nvml(library)
    if nvml is None:
        return 0
    import ctypes

    try:
        count = ctypes.c_uint(0)
        failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    except AttributeError:  # another library than we thought
        return 0
    finally:
        nvml.nvmlShutdown()
    return 0 if failed else count.value


def open_nvml(library: str = NVML) -> Any:
    """NVIDIA's management library, ready for use; None if it is absent or fails.

    It is the caller's to call ``nvmlShutdown``.
    """
    if not may_have_library(library):
        return None
    try:
        import ctypes

        nvml = ctypes.CDLL(library)
        return None if nvml.nvmlInit_v2() else nvml
    except (OSError, AttributeError, ImportError):
        return None


class Cgroups:
    """The control groups of this process and all above them, of both versions; read when asked.

    A group is limited by all groups above it too; and in a container the path that the kernel
    names may be the host's, while the container's own group is what is mounted at the root. So
    every question goes from the own group up to the root that can be seen.

    Args:
        proc: Where procfs is mounted.
        root: Where the file systems of control groups are mounted.
    """

    def __init__(self, *, proc: str = "/proc", root: str = "/sys/fs/cgroup") -> None:
        self._root = root
        self._proc = proc
        self._listing = read_file(f"{proc}/self/cgroup").splitlines()

    def cpu_quota(self) -> float | None:
        """CPUs' worth of time that the tightest group allows; None without a limit."""
        quotas = []
        for folder in self._folders("cpu"):
            used, _, period = read_file(f"{folder}/cpu.max").strip().partition(" ")
            if not period:
                used = read_file(f"{folder}/cpu.cfs_quota_us")
                period = read_file(f"{folder}/cpu.cfs_period_us")
            share, whole = _limit(used), _limit(period)
            if share and whole:
                quotas.append(share / whole)
        return min(quotas, default=None)

    def memory(self) -> dict[str, int | None]:
        """Bytes allowed and used, of the tightest group."""
        return self._tightest("memory", *_MEMORY_FILES)

    def memory_left(self) -> int | None:
        """Bytes that the tightest group has left, once it has given up caches; None if no limit.

        At least: what it could move to swap space is counted as if nobody else did.
        """
        left = []
        for folder in self._folders("memory"):
            for limit, use in _MEMORY_FILES:
                allowed, used = (_limit(read_file(f"{folder}/{name}")) for name in (limit, use))
                if allowed is not None and allowed < _NO_LIMIT and used is not None:
                    left.append(allowed - used + _sum_of(f"{folder}/memory.stat", _CACHES))
        swap = 1024 * _sum_of(f"{self._proc}/meminfo", ("SwapFree",))
        return max(0, min(left) + swap) if left else None

    def processes(self) -> dict[str, int | None]:
        """Processes and threads allowed and running, of the tightest group."""
        return self._tightest("pids", ("pids.max", "pids.current"))

    def oom_kills(self) -> int | None:
        """Processes killed so far for want of memory, as the nearest group that counts knows.

        The kernel counts a kill in the group of whom it kills, whichever group's limit it was.
        """
        for folder in self._folders("memory"):
            for name in ("memory.events", "memory.oom_control"):
                count = _oom_kills(f"{folder}/{name}")
                if count is not None:
                    return count
        return None

    def _tightest(self, controller: str, *files: tuple[str, str]) -> dict[str, int | None]:
        found: list[tuple[int, int | None]] = []
        for folder in self._folders(controller):
            for limit, use in files:
                allowed = _limit(read_file(f"{folder}/{limit}"))
                if allowed is not None and allowed < _NO_LIMIT:
                    found.append((allowed, _limit(read_file(f"{folder}/{use}"))))
        allowed, used = min(found, key=lambda pair: pair[0] - (pair[1] or 0), default=(None, None))
        return {"limit": allowed, "used": used}

    def _folders(self, controller: str) -> Iterator[str]:
        """Folders that may tell about a controller: from the own group up to each root."""
        for line in self._listing:
            _, controllers, path = line.split(":", 2)
            if not controllers:  # version 2, alone or beside the other
                roots = [self._root, f"{self._root}/unified"]
            elif controller in (names := controllers.split(",")):
                # Mounted under all names of a hierarchy, not always in this order; then a link
                # has the single name.
                roots = [f"{self._root}/{controllers}"]
                roots += [f"{self._root}/{controller}"] if len(names) > 1 else []
            else:
                continue
            # A group outside of the namespace of this process is shown as /../…
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for root in roots:
                for depth in range(len(parts), -1, -1):
                    yield "/".join([root, *parts[:depth]])


@dataclass(frozen=True, slots=True)
class OomCounts:
    """How often memory ran out so far: in this control group, or else on the whole machine."""

    group: int | None
    machine: int | None


def read_oom_counts(proc: str = "/proc", root: str = "/sys/fs/cgroup") -> OomCounts:
    """The kernel's counters; None where it has none that can be read."""
    group = Cgroups(proc=proc, root=root).oom_kills()
    return OomCounts(group, _oom_kills(f"{proc}/vmstat") if group is None else None)


def describe_oom_kills(before: OomCounts, after: OomCounts) -> str | None:
    """What the counters say about the time in between; None if they say nothing."""
    for first, last, where in (
        (before.group, after.group, "of this control group"),
        (before.machine, after.machine, "on this machine"),
    ):
        if first is not None and last is not None and last > first:
            killed = f"the kernel killed {last - first} process(es)"
            return f"memory ran out: {killed} {where} meanwhile"
    return None


def _oom_kills(path: str) -> int | None:
    """The counter of that name in a file of the kernel's."""
    for line in read_file(path).splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdecimal():
            return int(value)
    return None


def _sum_of(path: str, names: Sequence[str]) -> int:
    """Of the numbers with these names in a file of the kernel's; of twins, the larger one."""
    found: dict[str, int] = {}
    for line in read_file(path).splitlines():
        name, value, *_ = (*line.replace(":", " ").split(), "")
        if name in names and value.isdecimal():
            key = name.removeprefix("total_")
            found[key] = max(found.get(key, 0), int(value))
    return sum(found.values())


def _limit(text: str) -> int | None:
    """A number above 0; None for ``max``, ``-1`` and what is not there."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if number > 0 else None


def read_file(path: str) -> str:
    """A small file's text; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
