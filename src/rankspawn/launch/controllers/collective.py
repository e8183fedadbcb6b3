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
from rankspawn.values import replace

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.programs import Node
    from rankspawn.launch.torchrun import Streams
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
    name = (config.run_name or config.job_id).replace("/", "_")
    folder = f"{name}_{own.name or run_id}/attempt_{restart_count}"
    programs = []
    for who in identify(Topology(hosts, me, own.host), own.ports):
        env = {
            **rank_env(
                who,
                resources,
                run_id=config.run_name or run_id,
                restart_count=restart_count,
                max_restarts=config.max_restart if restarts else 0,
                agent_store=config.agent_store,
            ),
            **_launcher_env(who, config, master=master),
            **node_env(config, own),
        }
        programs.append(_trainer(config, who, env, folder))
    return programs


def _trainer(
    config: LaunchConfig, who: Identity, env: Mapping[str, str | None], folder: str
) -> ProgramSpec:
    spec = ProgramSpec(
        role=TRAINER,
        rank=who.rank,
        command=config.command(sys.executable),
        env=env,
        log_name=f"workerlog.{who.rank}",
        on_terminal=who.local_rank == 0,
    )
    return spec if config.streams is None else _as_torchrun(spec, config, who, folder)


def _as_torchrun(
    spec: ProgramSpec, config: LaunchConfig, who: Identity, folder: str
) -> ProgramSpec:
    """A program whose streams go where torchrun has them."""
    from rankspawn.launch.torchrun import OwnStreams

    streams = config.streams
    assert streams is not None, "the caller has looked"
    own = f"{folder}/{who.local_rank}"
    return replace(
        spec,
        env={**spec.env, "TORCHELASTIC_ERROR_FILE": f"{config.log_dir}/{own}/error.json"},
        log_name=f"{own}/stdout.log",
        streams=OwnStreams(
            error_log_name=f"{own}/stderr.log",
            shown=streams.shown(who.local_rank),
            prefixed=streams.prefixed(who.local_rank),
            prefix=_prefix(config, streams, who, spec.env["TORCHELASTIC_RESTART_COUNT"]),
            filters=(
                (streams.stdout_filters, f"{folder}/filtered_stdout.log"),
                (streams.stderr_filters, f"{folder}/filtered_stderr.log"),
            ),
        ),
    )


def _prefix(config: LaunchConfig, streams: Streams, who: Identity, restart: str | None) -> str:
    """What stands before the lines of a rank that are shown."""
    if config.prefix is None:
        from string import Template

        # What it does not know stays as it is, as under torchrun.
        return Template(streams.prefix).safe_substitute(
            role_name=config.role, rank=who.rank, local_rank=who.local_rank
        )
    import os

    from rankspawn.view.prefix import fill_prefix

    return fill_prefix(
        config.prefix,
        rank=who.rank,
        local_rank=who.local_rank,
        world_size=who.world_size,
        device="",
        node=who.node_rank,
        host=os.uname().nodename,
        restart=restart or "0",
    ).decode()


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


def _launcher_env(who: Identity, config: LaunchConfig, *, master: str) -> Variables:
    """What the launchers of Paddle and torch say in addition."""
    env: Variables = {
        "PADDLE_MASTER": master,
        "PADDLE_GLOBAL_SIZE": str(who.world_size),
        "PADDLE_LOCAL_SIZE": str(who.local_world_size),
        "PADDLE_GLOBAL_RANK": str(who.rank),
        "PADDLE_LOCAL_RANK": str(who.local_rank),
        "PADDLE_NNODES": str(who.nnodes),
        "PADDLE_RANK_IN_NODE": str(who.local_rank),
        "ROLE_NAME": config.role,
    }
    if config.rpc:
        env |= {"PADDLE_MASTER_ENDPOINT": master, "PADDLE_WORKER_ENDPOINT": who.endpoint}
    if config.own_devices:
        env["LOCAL_RANK"] = "0"
    return env
