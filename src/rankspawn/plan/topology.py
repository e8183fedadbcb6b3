"""Nodes, their order, and the endpoints of all ranks.

Pure: takes the environment as a mapping and the machine as a protocol.

On one node the ports are free ones, chosen by whoever holds them. Several nodes cannot
talk before they know each other's ports, so these count up from a number that all of
them know.
"""

from __future__ import annotations

from rankspawn.option_values import HIGHEST_PORT
from rankspawn.plan.environ import WORKER_VARIABLE
from rankspawn.values import dataclass

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankspawn.options import SpawnOptions
    from rankspawn.plan.devices import Machine

# Paddle's defaults: scripts and firewalls rely on them.
FIRST_PORT = 6070
FIRST_CLOUD_PORT = 6170

_CLOUD_VARIABLES = ("PADDLE_TRAINERS", "POD_IP", "PADDLE_TRAINER_ID", "TRAINER_PORTS_NUM")


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of a job.

    Attributes:
        address: How the others reach it.
        count: How many ranks it has; nodes may differ in that.
        ports: One for each of them; None for free ones, which are not known yet.
    """

    address: str
    count: int
    ports: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """All nodes in the order of their ranks, and which of them this one is.

    Attributes:
        nodes: All of them.
        node_rank: The index of this one.
        bind_host: This node's address as its own interfaces know it.
    """

    nodes: tuple[Host, ...]
    node_rank: int
    bind_host: str

    @property
    def own(self) -> Host:
        """This node."""
        return self.nodes[self.node_rank]

    @property
    def first_rank(self) -> int:
        """The rank of this node's first process: ranks go from node to node."""
        return sum(node.count for node in self.nodes[: self.node_rank])

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return sum(node.count for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Identity:
    """A rank's place in the job: what its variables are made from, in every dialect."""

    rank: int
    local_rank: int
    local_world_size: int
    node_rank: int
    nnodes: int
    endpoints: tuple[str, ...]
    # The same as one text: made once for all ranks, because it is as long as they are many.
    endpoint_list: str

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return len(self.endpoints)

    @property
    def endpoint(self) -> str:
        """This rank's own."""
        return self.endpoints[self.rank]


def identify(topology: Topology, ports: Sequence[int]) -> tuple[Identity, ...]:
    """Who the ranks of this node are.

    Args:
        topology: Where all ranks are.
        ports: This node's, one per rank.

    Raises:
        ValueError: There is not one port per rank.
    """
    count = topology.own.count
    if len(ports) != count:
        raise ValueError(f"{count} ranks need as many ports, not {len(ports)}")
    endpoints = endpoints_of(topology, ports)
    endpoint_list = ",".join(endpoints)
    first = topology.first_rank
    return tuple(
        Identity(
            rank=first + local_rank,
            local_rank=local_rank,
            local_world_size=count,
            node_rank=topology.node_rank,
            nnodes=len(topology.nodes),
            endpoints=endpoints,
            endpoint_list=endpoint_list,
        )
        for local_rank in range(count)
    )


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
    node_rank = _own_index(ips, options.node_ip, machine)
    first = options.started_port
    if len(ips) > 1:
        loopback = stray_loopback(ips)
        if loopback is not None:
            raise ValueError(
                f"ips={','.join(ips)!r}: {ips[loopback]} means a different machine on every node; "
                "use the address at which the other nodes reach it"
            )
        first = FIRST_PORT if first is None else first
    ports = None if first is None else _count_up(first, nprocs, "started_port")
    nodes = tuple(Host(address, nprocs, ports) for address in ips)
    return Topology(nodes, node_rank, bind_host_of(ips[node_rank], machine))


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


def _own_index(ips: tuple[str, ...], node_ip: str | None, machine: Machine) -> int:
    """Which of ``ips`` is this machine."""
    indices = find_here(ips, node_ip, machine)
    if len(indices) == 1:
        return indices[0]
    listed = ",".join(ips)
    if node_ip is not None:
        raise ValueError(f"node_ip={node_ip!r} is not among the nodes: ips={listed!r}")
    addresses = ", ".join(sorted(machine.addresses())) or "none"
    if indices:
        raise ValueError(
            f"ips={listed!r} names this machine {len(indices)} times "
            f"(its addresses: {addresses}): name each node once, or say with node_ip which one "
            "this process stands for"
        )
    raise ValueError(
        f"none of ips={listed!r} belongs to this machine, whose addresses are "
        f"{addresses}: correct ips, or name this node's entry with node_ip"
    )


def bind_host_of(address: str, machine: Machine) -> str:
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
    if WORKER_VARIABLE in environ or environ.get("PADDLE_TRAINERS_NUM") == "1":
        return False
    return all(environ.get(name) for name in _CLOUD_VARIABLES)


def ignored_ips(options: SpawnOptions, environ: Mapping[str, str]) -> str | None:
    """What to tell whoever gave ``ips``, if PaddleCloud's variables name other nodes."""
    if options.ips == type(options)().ips or not _in_paddlecloud(options, environ):
        return None
    listed = environ.get("PADDLE_TRAINERS", "")
    if tuple(address.strip() for address in listed.split(",")) == options.ips:
        return None
    return (
        f"ips={','.join(options.ips)!r} is not used: PaddleCloud's variables name the nodes, "
        f"PADDLE_TRAINERS={listed!r}. Unset them to have ips used, or leave ips out"
    )


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
) -> tuple[Host, ...]:
    listed = environ.get("DISTRIBUTED_TRAINER_ENDPOINTS")
    if not listed:
        name = "PADDLE_PORT"
        first = _number(environ, name) if environ.get(name) else FIRST_CLOUD_PORT
        ports = _count_up(first, nprocs, name)
        return tuple(Host(address, nprocs, ports) for address in addresses)
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
    return tuple(Host(address, nprocs, tuple(own[:nprocs])) for address, own in found.items())


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name].strip()
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{name}={environ[name]!r} is no number")
    return int(text)


def join(host: str, port: int) -> str:
    """``host:port``, with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port; the host without the brackets of an IPv6 address."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def plain(host: str) -> str:
    """``host`` in one spelling, where two are common for the same."""
    return "127.0.0.1" if host == "localhost" else host


def is_loopback(host: str) -> bool:
    """Whether ``host`` always means the machine that uses it."""
    return host in ("localhost", "::1") or host.startswith("127.")


def stray_loopback(hosts: Sequence[str]) -> int | None:
    """The index of a loopback address that stands next to others; None if there is none.

    On each of the other nodes it would mean that node itself.
    """
    loopback = [index for index, host in enumerate(hosts) if is_loopback(host)]
    return loopback[0] if 0 < len(loopback) < len(hosts) else None


def is_here(host: str, machine: Machine) -> bool:
    """Whether ``host`` is this machine, by an address or by a name of it."""
    return is_loopback(host) or _is_own(host, machine.addresses(), machine)


def find_here(hosts: Sequence[str], given: str | None, machine: Machine) -> list[int]:
    """The indices of those hosts of a job that are this node; one, if all is well.

    Args:
        hosts: The addresses or names of all nodes.
        given: The one that the user says is this node, if that was said.
        machine: This one.
    """
    if given is not None:
        return [index for index, host in enumerate(hosts) if plain(host) == plain(given)][:1]
    # The default of one node needs no look at the interfaces, and a look costs an import.
    if len(hosts) == 1 and is_loopback(hosts[0]):
        return [0]
    own = machine.addresses()
    return [
        index
        for index, host in enumerate(hosts)
        if is_loopback(host) or _is_own(host, own, machine)
    ]


def _is_own(host: str, own: frozenset[str], machine: Machine) -> bool:
    if host in own:
        return True
    # Debian has a machine's own name at 127.0.1.1, which no interface lists.
    return any(address in own or is_loopback(address) for address in machine.resolve(host))
