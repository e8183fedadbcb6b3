"""Which CPUs each rank of this node may run on, so that it is near its device and its memory.

A function of the kernel's description of the machine, ``/sys/devices/system``, which it is told
where to find. What that does not say is taken for one: one node, one socket, one cache.

- ``node``: all CPUs of the NUMA node of its device;
- ``socket``: all CPUs of the socket that this node is in;
- ``exclusive``: a share of the node's cores for each, that no other rank of this job has;
- ``core-complex``: the CPUs of the node that share one last cache, in turn.

A rank without a device, or whose device is near no node, belongs to a node as well: they are
shared out among the nodes, in order.
"""

from __future__ import annotations

import os

from rankspawn.plan.environ import CPUS_VARIABLE
from rankspawn.values import replace

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rankspawn.plan.job import Plan
    from rankspawn.plan.resources import Resources

SYSTEM, PCI = "/sys/devices/system", "/sys/bus/pci/devices"
_GPUS_OF_NVIDIA = "/proc/driver/nvidia/gpus"

Cpus = frozenset[int]


def cpus_of_ranks(how: str, resources: Resources) -> list[Cpus]:
    """The CPUs of each rank on this very machine; see :func:`bind`.

    Raises:
        ValueError: There are not enough of them, or the system cannot do it.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError("this system cannot bind processes to CPUs: leave numa out")
    ids = [device.id for device in resources.devices]
    places = device_places(ids, resources.device_type) if ids else [None] * resources.nprocs
    return bind(how, places, os.sched_getaffinity(0))


def bound(plan: Plan, how: str, resources: Resources) -> Plan:
    """A plan for ``spawn``, whose ranks are told their CPUs.

    Raises:
        ValueError: There are not enough of them.
    """
    cpus = cpus_of_ranks(how, resources)
    ranks = [
        replace(spec, env={CPUS_VARIABLE: ",".join(map(str, sorted(own))), **spec.env})
        for spec, own in zip(plan.ranks, cpus, strict=True)
    ]
    return replace(plan, ranks=tuple(ranks))


def bind(
    how: str, places: Sequence[int | None], allowed: Iterable[int], root: str = SYSTEM
) -> list[Cpus]:
    """The CPUs of each rank of this node.

    Args:
        how: ``node``, ``socket``, ``exclusive`` or ``core-complex``.
        places: For each rank the NUMA node of its device; None if it has none.
        allowed: The CPUs that this process may use: no others are given out.
        root: Where the kernel describes the machine.

    Raises:
        ValueError: A node has fewer cores than ranks that want some for themselves.
    """
    nodes = _nodes(root, frozenset(allowed))
    numbers = sorted(nodes)
    spread = [numbers[rank * len(numbers) // len(places)] for rank in range(len(places))]
    homes = [
        place if place in nodes else spread[rank] for rank, place in enumerate(places)
    ]  # in the order of ranks
    if how == "node":
        return [nodes[home] for home in homes]
    if how == "socket":
        return [_socket(nodes, home, root) for home in homes]
    shares: dict[int, list[Cpus]] = {}
    for home in set(homes):
        groups = _share_cores if how == "exclusive" else _complexes
        shares[home] = groups(nodes[home], homes.count(home), root)
    return [shares[home].pop(0) for home in homes]


def _nodes(root: str, allowed: Cpus) -> dict[int, Cpus]:
    """The CPUs of each node that has some for us; one node where the kernel knows of none."""
    nodes: dict[int, Cpus] = {}
    folder = os.path.join(root, "node")
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    for name in names:
        if name.startswith("node") and name[4:].isdecimal():
            cpus = parse_cpus(_read(folder, name, "cpulist")) & allowed
            if cpus:
                nodes[int(name[4:])] = cpus
    return nodes or {0: allowed}


def _socket(nodes: dict[int, Cpus], home: int, root: str) -> Cpus:
    """All CPUs of the socket that a node is in; of both, if it is one of those that span two."""
    wanted = {_package(cpu, root) for cpu in nodes[home]}
    everybody = frozenset().union(*nodes.values())
    return frozenset(cpu for cpu in everybody if _package(cpu, root) in wanted)


def _package(cpu: int, root: str) -> str:
    return _read(root, "cpu", f"cpu{cpu}", "topology", "physical_package_id").strip()


def _share_cores(cpus: Cpus, count: int, root: str) -> list[Cpus]:
    """The cores in ``count`` parts that differ by one core at most, the first ones larger."""
    cores = _groups(cpus, root, "topology", "thread_siblings_list")
    each, more = divmod(len(cores), count)
    if not each:
        raise ValueError(
            f"numa 'exclusive' is not possible: {count} ranks share a NUMA node with "
            f"{len(cores)} cores for them; use 'node', or fewer ranks"
        )
    ends = [rank * each + min(rank, more) for rank in range(count + 1)]
    return [frozenset().union(*cores[ends[rank] : ends[rank + 1]]) for rank in range(count)]


def _complexes(cpus: Cpus, count: int, root: str) -> list[Cpus]:
    """The groups that share a last cache, from the first again where they are few."""
    groups = _groups(cpus, root, "cache", "index3", "shared_cpu_list", or_all=True)
    return [groups[rank % len(groups)] for rank in range(count)]


def _groups(cpus: Cpus, root: str, *path: str, or_all: bool = False) -> list[Cpus]:
    """CPUs by what each says that it shares with others, in order.

    One that says nothing is by itself; with ``or_all``, with all others that say nothing.
    """
    found: list[Cpus] = []
    seen: set[int] = set()
    for cpu in sorted(cpus):
        if cpu not in seen:
            told = parse_cpus(_read(root, "cpu", f"cpu{cpu}", *path))
            others = told & cpus if told else frozenset(cpus - seen if or_all else ())
            found.append(others | {cpu})
            seen |= found[-1]
    return found


def device_places(ids: Sequence[str], device_type: str) -> list[int | None]:
    """The NUMA node of each device, as far as the kernel tells: of GPUs by their bus address."""
    if device_type != "gpu":
        return [None] * len(ids)
    addresses = _gpu_addresses()
    return [_node_of(addresses.get(id_)) for id_ in ids]


def _gpu_addresses(root: str = _GPUS_OF_NVIDIA) -> dict[str, str]:
    """Bus addresses by number, as the driver counts, and by UUID."""
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return {}
    found: dict[str, str] = {}
    for number, name in enumerate(names):
        found[str(number)] = name
        for line in _read(root, name, "information").splitlines():
            if line.startswith("GPU UUID:"):
                found[line.partition(":")[2].strip()] = name
    return found


def _node_of(address: str | None, root: str = PCI) -> int | None:
    text = "" if address is None else _read(root, address.lower(), "numa_node").strip()
    # -1 on a machine with one node.
    return int(text) if text.isdecimal() else None


def parse_cpus(text: str) -> Cpus:
    """The CPUs of a list such as ``0-3,8``."""
    found: set[int] = set()
    for entry in text.strip().split(","):
        first, _, last = entry.partition("-")
        if first.isdecimal():
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _read(*path: str) -> str:
    try:
        with open(os.path.join(*path), encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""
