"""Nodes, their order, and the endpoints of all ranks.

Pure: takes the environment as a mapping and the machine as a protocol.

On one node the ports are free ones, chosen by whoever holds them. Several nodes cannot
talk before they know each other's ports, so these count up from a number that all of
them know.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankspawn.option_values import HIGHEST_PORT

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankspawn.options import SpawnOptions
    from rankspawn.plan.facts import Machine

__all__ = ["FIRST_PORT", "Node", "Topology", "endpoints_of", "find_nodes", "is_loopback", "join"]

# Paddle's defaults: scripts and firewalls rely on them.
FIRST_PORT = 6070
FIRST_CLOUD_PORT = 6170

_CLOUD_VARIABLES = ("PADDLE_TRAINERS", "POD_IP", "PADDLE_TRAINER_ID", "TRAINER_PORTS_NUM")

# Set in every worker of ours; see environ.py.
WORKER_MARK = "RANKSPAWN_DEVICE_TYPE"


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a job: its address, and one port per rank; None for free ports."""

    address: str
    ports: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """All nodes in the order of their ranks, and which of them this one is.

    Attributes:
        nodes: All of them.
        node_rank: The place of this one.
        bind_host: This node's address as its own interfaces know it.
    """

    nodes: tuple[Node, ...]
    node_rank: int
    bind_host: str

    @property
    def own(self) -> Node:
        """This node."""
        return self.nodes[self.node_rank]


def find_nodes(
    nprocs: int, options: SpawnOptions, environ: Mapping[str, str], machine: Machine
) -> Topology:
    """The nodes of a job with ``nprocs`` ranks on each.

    Raises:
        ValueError: No node, or more than one, is this machine; a port is out of range;
            PaddleCloud's variables are incomplete or contradict each other.
    """
    if _in_paddlecloud(options, environ):
        return _cloud_nodes(nprocs, environ)
    ips = options.ips
    node_rank = _own_place(ips, options.node_ip, machine)
    first = options.started_port
    if len(ips) > 1:
        _check_reachable(ips)
        first = FIRST_PORT if first is None else first
    ports = None if first is None else _count_up(first, nprocs, "started_port")
    nodes = tuple(Node(address, ports) for address in ips)
    return Topology(nodes, node_rank, _bind_host(ips[node_rank], machine))


def endpoints_of(topology: Topology, ports: Sequence[int]) -> tuple[str, ...]:
    """``host:port`` of every rank of the job, by rank.

    Args:
        topology: Where the ranks are.
        ports: This node's ports, used where its own are not fixed.
    """
    return tuple(
        join(node.address, port)
        for node in topology.nodes
        for port in (node.ports if node.ports is not None else ports)
    )


def join(host: str, port: int) -> str:
    """``host:port``, with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Whether ``address`` always means the machine that uses it."""
    return address in ("localhost", "::1") or address.startswith("127.")


def _own_place(ips: tuple[str, ...], node_ip: str | None, machine: Machine) -> int:
    """Which of ``ips`` is this machine."""
    if node_ip is not None:
        if node_ip not in ips:
            raise ValueError(f"node_ip={node_ip!r} is not among the nodes: ips={','.join(ips)!r}")
        return ips.index(node_ip)
    # The default needs no look at the interfaces, and a look costs an import.
    if len(ips) == 1 and is_loopback(ips[0]):
        return 0
    own = machine.addresses()
    places = [place for place, ip in enumerate(ips) if _is_own(ip, own, machine)]
    if len(places) == 1:
        return places[0]
    addresses = ", ".join(sorted(own)) or "none"
    if places:
        raise ValueError(
            f"ips={','.join(ips)!r} names this machine {len(places)} times "
            f"(its addresses: {addresses}): name each node once, or say with node_ip which one "
            "this process stands for"
        )
    raise ValueError(
        f"none of ips={','.join(ips)!r} belongs to this machine, whose addresses are "
        f"{addresses}: correct ips, or name this node's entry with node_ip"
    )


def _is_own(ip: str, own: frozenset[str], machine: Machine) -> bool:
    if is_loopback(ip) or ip in own:
        return True
    # Some systems map their own host name to 127.0.1.1, which no interface lists.
    return any(address in own or is_loopback(address) for address in machine.resolve(ip))


def _check_reachable(ips: tuple[str, ...]) -> None:
    """Refuse loopback next to real addresses: the other nodes would talk to themselves."""
    loopback = [ip for ip in ips if is_loopback(ip)]
    if loopback and len(loopback) < len(ips):
        raise ValueError(
            f"ips={','.join(ips)!r}: {loopback[0]} means a different machine on every node; "
            "use the address at which the other nodes reach it"
        )


def _bind_host(address: str, machine: Machine) -> str:
    """``address`` as an interface of this machine has it, for binding ports."""
    if is_loopback(address):
        return "127.0.0.1" if address == "localhost" else address
    found = machine.resolve(address)
    own = machine.addresses()
    return min(found & own, default="") or min(found, default=address)


def _count_up(first: int, nprocs: int, name: str) -> tuple[int, ...]:
    if first + nprocs - 1 > HIGHEST_PORT:
        raise ValueError(
            f"{name}={first} leaves no room for {nprocs} ports: the highest is {HIGHEST_PORT}"
        )
    return tuple(range(first, first + nprocs))


def _in_paddlecloud(options: SpawnOptions, environ: Mapping[str, str]) -> bool:
    if options.use_paddlecloud:
        return True
    # In a worker these variables describe the group that it belongs to, and a spawn
    # inside of it is a matter of this machine alone.
    if WORKER_MARK in environ or environ.get("PADDLE_TRAINERS_NUM") == "1":
        return False
    return all(environ.get(name) for name in _CLOUD_VARIABLES)


def _cloud_nodes(nprocs: int, environ: Mapping[str, str]) -> Topology:
    missing = [name for name in _CLOUD_VARIABLES[:3] if not environ.get(name)]
    if missing:
        raise ValueError(f"use_paddlecloud=True, but {', '.join(missing)} is not set")
    addresses = tuple(ip.strip() for ip in environ["PADDLE_TRAINERS"].split(","))
    node_rank = _number(environ, "PADDLE_TRAINER_ID")
    pod_ip = environ["POD_IP"].strip()
    if node_rank >= len(addresses) or (
        pod_ip in addresses and addresses.index(pod_ip) != node_rank
    ):
        raise ValueError(
            f"PaddleCloud's variables contradict each other: POD_IP={pod_ip!r} is not entry "
            f"{node_rank} (PADDLE_TRAINER_ID) of PADDLE_TRAINERS={environ['PADDLE_TRAINERS']!r}"
        )
    return Topology(_cloud_ports(addresses, nprocs, environ), node_rank, pod_ip)


def _cloud_ports(
    addresses: tuple[str, ...], nprocs: int, environ: Mapping[str, str]
) -> tuple[Node, ...]:
    listed = environ.get("DISTRIBUTED_TRAINER_ENDPOINTS")
    if not listed:
        name = "PADDLE_PORT"
        first = _number(environ, name) if environ.get(name) else FIRST_CLOUD_PORT
        ports = _count_up(first, nprocs, name)
        return tuple(Node(address, ports) for address in addresses)
    found: dict[str, list[int]] = {address: [] for address in addresses}
    for endpoint in listed.split(","):
        host, _, port = endpoint.strip().rpartition(":")
        host = host.strip("[]")
        if host in found and port.isdecimal():
            found[host].append(int(port))
    for address, own in found.items():
        if len(own) < nprocs:
            raise ValueError(
                f"DISTRIBUTED_TRAINER_ENDPOINTS={listed!r} has {len(own)} endpoints for the node "
                f"{address}, but nprocs is {nprocs}"
            )
    return tuple(Node(address, tuple(own[:nprocs])) for address, own in found.items())


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name].strip()
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{name}={environ[name]!r} is no number")
    return int(text)
