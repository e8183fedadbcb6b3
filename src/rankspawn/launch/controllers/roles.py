"""Where the processes of a parameter server's job are: servers, trainers, heter workers.

Pure: values in, values out.
"""

from __future__ import annotations

from rankspawn.launch.controllers.role_options import (
    RoleCounts,
    check_roles,
    counts_of,
)
from rankspawn.launch.flags import UsageError
from rankspawn.launch.programs import Node
from rankspawn.plan.topology import find_here, join, plain, split_endpoint
from rankspawn.values import dataclass

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.plan.devices import Machine

# What the user can do about a listed port that is in use.
LIST_ANOTHER = "list another one in its place on every node"


@dataclass(frozen=True, slots=True)
class RoleSlot:
    """The place of one process among those of its role.

    Attributes:
        rank: Its number among all of its role.
        local_rank: Its number among those of its role on its node.
        node: The rank of its node.
        endpoint: Its ``host:port``.
    """

    rank: int
    local_rank: int
    node: int
    endpoint: str

    @property
    def port(self) -> str:
        """The port of its endpoint, as text."""
        return self.endpoint.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class Layout:
    """All processes of a job.

    Attributes:
        servers: By rank.
        trainers: By rank.
        stages: The heter workers of each stage; their ranks go on from stage to stage.
        gloo: Where gloo's meeting is, ``host:port`` on the first server's node, who serves it.
    """

    servers: tuple[RoleSlot, ...]
    trainers: tuple[RoleSlot, ...]
    stages: tuple[tuple[RoleSlot, ...], ...]
    gloo: str

    def at(self, node: int) -> RoleCounts:
        """How many processes of each role one node has."""
        parts = (self.servers, self.trainers, *self.stages)
        servers, trainers, *stages = (sum(slot.node == node for slot in part) for part in parts)
        return RoleCounts(servers, trainers, tuple(stages))


def lay_out(config: LaunchConfig, nodes: Sequence[Node]) -> Layout:
    """Where all processes of the job are.

    Args:
        config: What was asked for.
        nodes: All nodes by rank. By counts, each with ports for its servers, its trainers, its
            heter workers stage by stage, and gloo, in this order; by lists, their ports do not
            matter.

    Raises:
        UsageError: The options contradict each other or the nodes.
    """
    check_roles(config)
    return _listed(config, nodes) if config.servers else _counted(config, nodes)


def listed_nodes(config: LaunchConfig, machine: Machine) -> tuple[list[Node], int]:
    """The nodes that listed endpoints tell of, and which one this is.

    Their ranks follow the first mention of their hosts: servers, trainers, heter workers.
    Nodes that know each other from lists need no master to meet.

    Args:
        config: What was asked for, with ``--servers`` and ``--trainers``.
        machine: Whose addresses tell which of the hosts this is, if ``--host`` does not.

    Raises:
        UsageError: The options contradict each other, or no host or several are this machine.
    """
    check_roles(config)
    ports: dict[str, list[int]] = {}
    for endpoint in (*config.servers, *config.trainers, *config.heter_workers):
        host, port = split_endpoint(endpoint)
        ports.setdefault(plain(host), []).append(port)
    if "nnodes" in config.given and config.max_nodes != len(ports):
        raise UsageError(
            f"--nnodes {config.max_nodes} and --servers/--trainers contradict each other: these "
            f"name {len(ports)} hosts ({', '.join(ports)}); leave --nnodes out"
        )
    me = own_place(list(ports), config.host, machine)
    return [Node(n, host, tuple(own)) for n, (host, own) in enumerate(ports.items())], me


def _counted(config: LaunchConfig, nodes: Sequence[Node]) -> Layout:
    counts = counts_of(config)
    for node in nodes:
        if len(node.ports) != counts.total + 1:
            raise UsageError(
                f"node {node.rank} ({node.host}) has {len(node.ports)} ports, but "
                f"{counts.total + 1} are needed for {counts.servers} servers, {counts.trainers} "
                f"trainers, {sum(counts.stages)} heter workers and gloo: give every node the same "
                "--server_num, --trainer_num and --heter_worker_num"
            )
    starts = [0, counts.servers, counts.servers + counts.trainers]
    for stage in counts.stages:
        starts.append(starts[-1] + stage)
    stages: list[tuple[RoleSlot, ...]] = []
    for n, count in enumerate(counts.stages):
        rank = sum(map(len, stages))
        stages.append(tuple(_seats_of(nodes, starts[2 + n], count, rank, sum(counts.stages[:n]))))
    # A port that is free suits everybody but those who asked for another.
    asked = "gloo_port" in config.given
    return Layout(
        servers=tuple(_seats_of(nodes, starts[0], counts.servers)),
        trainers=tuple(_seats_of(nodes, starts[1], counts.trainers)),
        stages=tuple(stages),
        gloo=join(nodes[0].host, config.gloo_port if asked else nodes[0].ports[-1]),
    )


def _seats_of(
    nodes: Sequence[Node], start: int, count: int, rank: int = 0, local_rank: int = 0
) -> Iterator[RoleSlot]:
    """One role on all nodes: ``count`` ports of each, from position ``start`` on."""
    for node in nodes:
        for local in range(count):
            endpoint = join(node.host, node.ports[start + local])
            yield RoleSlot(rank, local_rank + local, node.rank, endpoint)
            rank += 1


def _listed(config: LaunchConfig, nodes: Sequence[Node]) -> Layout:
    hosts: dict[str, Node] = {}
    for node in nodes:
        other = hosts.setdefault(plain(node.host), node)
        if other is not node:
            raise UsageError(
                f"nodes {other.rank} and {node.rank} are both {node.host}, so --servers and "
                "--trainers do not say which one runs what: to try several nodes on one machine, "
                "use --server_num and --trainer_num"
            )
    found = [
        _find_nodes(name, listed, hosts)
        for name, listed in (
            ("--servers", config.servers),
            ("--trainers", config.trainers),
            ("--heter_workers", config.heter_workers),
        )
    ]
    stages = []
    start = 0
    for count in (config.heter_worker_num or ()) if config.heter_workers else ():
        stages.append(found[2][start : start + count])
        start += count
    first_host = split_endpoint(config.servers[0])[0]
    gloo = join(first_host, config.gloo_port)
    return Layout(found[0], found[1], tuple(stages), gloo)


def _find_nodes(name: str, listed: Sequence[str], hosts: dict[str, Node]) -> tuple[RoleSlot, ...]:
    """The endpoints of one list, each with the node that has its host."""
    slots: list[RoleSlot] = []
    taken: dict[int, int] = {}
    for rank, endpoint in enumerate(listed):
        node = hosts.get(plain(split_endpoint(endpoint)[0]))
        if node is None:
            addresses = ", ".join(other.host for other in hosts.values())
            raise UsageError(
                f"{name} names {endpoint}, but no node of the job has this address (they have "
                f"{addresses}): correct the entry, or start a node there, with --host if it is "
                "known by several addresses"
            )
        local_rank = taken.get(node.rank, 0)
        taken[node.rank] = local_rank + 1
        slots.append(RoleSlot(rank, local_rank, node.rank, endpoint))
    return tuple(slots)


def own_place(
    hosts: list[str],
    given: str | None,
    machine: Machine,
    *,
    flags: str = "--servers and --trainers",
) -> int:
    """Which of the hosts is this machine.

    Args:
        hosts: What was listed.
        given: This machine's address, if the user gave it.
        machine: This one.
        flags: Where the hosts come from, for messages.

    Raises:
        UsageError: None of them, or several.
    """
    places = find_here(hosts, given, machine)
    if len(places) == 1:
        return places[0]
    listed = ", ".join(hosts)
    if given is not None:
        raise UsageError(f"--host {given} is not among the hosts of {flags}: {listed}")
    addresses = ", ".join(sorted(machine.addresses())) or "none"
    problem = "several" if places else "none"
    raise UsageError(
        f"{problem} of the hosts of {flags} ({listed}) belong to this machine, "
        f"whose addresses are {addresses}: say with --host which one this node is"
    )
