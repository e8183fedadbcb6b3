"""Collective jobs: every process is a trainer, and all of them are equal.

Each one finds all of Paddle's, torch's and JAX's variables, as under ``spawn``, and what
Paddle's launcher adds to them.
"""

from __future__ import annotations

import sys

from rankspawn.launch.flags import UsageError
from rankspawn.launch.programs import TRAINER, ProgramSpec
from rankspawn.plan.environ import Variables, rank_env
from rankspawn.plan.topology import Host, Topology, identify, join

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.programs import Node
    from rankspawn.plan.resources import Resources
    from rankspawn.plan.topology import Identity


def plan_collective(
    config: LaunchConfig,
    resources: Resources,
    nodes: Sequence[Node],
    me: int,
    *,
    master: str,
    run_id: str,
    restart_count: int,
) -> list[ProgramSpec]:
    """The trainers of this node.

    Nodes may have different numbers of them: each brings one port for each of its own.

    Args:
        config: What was asked for.
        resources: The devices and CPUs of this node.
        nodes: All nodes of the job.
        me: The rank of this node.
        master: ``host:port`` on node 0 for Paddle's store.
        run_id: A name for the job that no other one has.
        restart_count: How often the job was started before.

    Raises:
        UsageError: Two nodes offer the same endpoint.
        ValueError: The nodes are not numbered from 0, or this one has not a port per trainer.
    """
    ordered = in_order(nodes)
    own = ordered[me]
    if len(own.ports) != resources.nprocs:
        raise ValueError(f"{resources.nprocs} trainers need as many ports, not {len(own.ports)}")
    _check_endpoints(ordered)
    hosts = tuple(Host(node.host, len(node.ports), node.ports) for node in ordered)
    restarts = config.is_elastic or config.elastic_level >= 0
    programs = []
    for who in identify(Topology(hosts, me, own.host), own.ports):
        env = {
            **rank_env(
                who,
                resources,
                run_id=run_id,
                restart_count=restart_count,
                max_restarts=config.max_restart if restarts else 0,
            ),
            **_launcher_env(who, master=master),
            **node_env(config, own),
        }
        programs.append(_trainer(config, who, env))
    return programs


def _trainer(config: LaunchConfig, who: Identity, env: Mapping[str, str | None]) -> ProgramSpec:
    return ProgramSpec(
        role=TRAINER,
        rank=who.rank,
        command=config.command(sys.executable),
        env=env,
        log_name=f"workerlog.{who.rank}",
        on_terminal=who.local_rank == 0,
    )


def in_order(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes by rank.

    Raises:
        ValueError: They are not numbered from 0.
    """
    ordered = tuple(sorted(nodes, key=lambda node: node.rank))
    ranks = [node.rank for node in ordered]
    if ranks != list(range(len(ordered))) or not ordered:
        raise ValueError(f"the nodes of a job are numbered from 0, not {ranks}")
    return ordered


def node_env(config: LaunchConfig, node: Node) -> Variables:
    """What all programs of one node have in common: where they log, and its name."""
    env: Variables = {"PADDLE_LOG_DIR": config.log_dir}
    if node.name:
        env["POD_NAME"] = node.name
    return env


def _check_endpoints(nodes: Sequence[Node]) -> None:
    owners: dict[str, Node] = {}
    for node in nodes:
        for port in node.ports:
            endpoint = join(node.host, port)
            if endpoint in owners:
                raise UsageError(
                    f"nodes {owners[endpoint].rank} and {node.rank} would both use {endpoint}: "
                    "nodes on one machine need different ports, so give each a --start_port of "
                    "its own"
                )
            owners[endpoint] = node


def _launcher_env(who: Identity, *, master: str) -> Variables:
    """What the launchers of Paddle and torch say in addition."""
    return {
        "PADDLE_MASTER": master,
        "PADDLE_GLOBAL_SIZE": str(who.world_size),
        "PADDLE_LOCAL_SIZE": str(who.local_world_size),
        "PADDLE_GLOBAL_RANK": str(who.rank),
        "PADDLE_LOCAL_RANK": str(who.local_rank),
        "PADDLE_NNODES": str(who.nnodes),
        "PADDLE_RANK_IN_NODE": str(who.local_rank),
        "ROLE_NAME": "default",
    }
