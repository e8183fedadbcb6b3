"""Where and as whom this node meets the others, and what it tells them to type.

Pure but for the machine that it asks: values in, values out.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankspawn.launch.controllers.role_options import split_endpoint
from rankspawn.launch.controllers.roles import listed_nodes, own_place
from rankspawn.launch.flags import FLAGS, UsageError, read_variables, split_flags
from rankspawn.plan.topology import join

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.plan.facts import Machine

__all__ = ["Meeting", "command_for_others", "plan_meeting"]

# Flags that say something about one node only, or that the command for the others has anew.
_NOT_FOR_OTHERS = frozenset({"master", "rank", "host", "nnodes"})


@dataclass(frozen=True, slots=True)
class Meeting:
    """How the nodes of a job find each other.

    Attributes:
        master: As ``--master`` has it; None to serve one here and tell the others.
        node_rank: The rank of this node; -1 has it assigned.
        host: The address of this node; None for the one that the others see.
        hosts: The addresses of all nodes by rank, where they were listed.
        min_nodes: The fewest.
        max_nodes: The most.
    """

    master: str | None
    node_rank: int
    host: str | None
    hosts: tuple[str, ...]
    min_nodes: int
    max_nodes: int


def plan_meeting(config: LaunchConfig, machine: Machine) -> Meeting:
    """The meeting that the flags describe.

    Nodes whose addresses are listed know their ranks, and without ``--master`` they meet at the
    first one.

    Raises:
        UsageError: The flags contradict each other, or this machine.
    """
    if config.servers:
        nodes, me = listed_nodes(config, machine)
        hosts = [node.host for node in nodes]
        return _meeting_of_listed(config, hosts, me, len(hosts), len(hosts))
    if len(config.ips) > 1:
        me = own_place(list(config.ips), config.host, machine, flags="--ips")
        return _meeting_of_listed(config, config.ips, me, config.min_nodes, config.max_nodes)
    return Meeting(
        config.master, config.node_rank, config.host, (), config.min_nodes, config.max_nodes
    )


def _meeting_of_listed(
    config: LaunchConfig, hosts: Sequence[str], me: int, low: int, high: int
) -> Meeting:
    if config.node_rank not in (-1, me):
        raise UsageError(
            f"--rank {config.node_rank} contradicts the list of nodes ({', '.join(hosts)}), in "
            f"which this one, {hosts[me]}, has rank {me}: leave --rank out"
        )
    master = config.master or join(hosts[0], _free_port(config, hosts[0]))
    return Meeting(master, me, hosts[me], tuple(hosts), low, high)


def _free_port(config: LaunchConfig, host: str) -> int:
    """A port that all nodes find by themselves, and that no process of the job was given."""
    listed = [
        split_endpoint(one) for one in (*config.servers, *config.trainers, *config.heter_workers)
    ]
    taken = {config.gloo_port, *(port for where, port in listed if where == host)}
    below = range(config.start_port - 1, 0, -1)
    return next(port for port in below if port not in taken)


def command_for_others(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    program: str,
    master: str,
    config: LaunchConfig,
    token: str,
) -> str:
    """What to type on the other nodes: all that this one was told, but for what is its own.

    Args:
        argv: What was typed on this one.
        environ: Its environment, whose variables the others may not have.
        program: How this launcher was called.
        master: Where this node serves.
        config: What was asked for.
        token: The job's token to show, or empty if the other nodes have it.
    """
    from shlex import join as quote

    table = [flag for group in FLAGS.values() for flag in group]
    found, words = split_flags(argv, table)
    nodes = f"{config.min_nodes}:{config.max_nodes}" if config.is_elastic else config.max_nodes
    flags = ["--master", master, "--nnodes", str(nodes)]
    typed = {flag.field for flag, _ in found.values()}
    variables = read_variables(environ, table, ignored=frozenset())
    # Those that counted, which the command line may have overruled.
    told = [one for one in variables.values() if one[0].field in config.given - typed]
    for flag, text in (*found.values(), *told):
        if flag.name not in _NOT_FOR_OTHERS:
            flags += [flag.written, text]
    if words and words[0].startswith("-") and words[0] != "-m":
        words.insert(0, "--")
    secret = f"RANKSPAWN_JOB_TOKEN={token} " if token else ""
    return f"{secret}{program} {quote([*flags, *words])}"
