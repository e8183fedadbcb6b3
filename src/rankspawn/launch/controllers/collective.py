"""Collective jobs: every process is a trainer, and all of them are equal.

Each one finds all of Paddle's, torch's and JAX's variables, as under ``spawn``, and what
Paddle's launcher adds to them.
"""

from __future__ import annotations

import sys

from rankspawn.launch.flags import TOKEN_VARIABLES, UsageError
from rankspawn.launch.programs import TRAINER, ProgramSpec
from rankspawn.plan.environ import (
    Identity,
    Variables,
    device_env,
    inherited_env,
    jax_env,
    paddle_env,
    thread_env,
    torch_env,
)
from rankspawn.plan.topology import WORKER_MARK, join

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.programs import Node
    from rankspawn.plan.job import Job

__all__ = ["in_order", "node_env", "plan_collective"]

# What makes a process a part of a parameter server's job. A worker of such a job that launches
# a collective one must not pass it on; whoever else sets one of these has a reason.
_OF_PARAMETER_SERVERS = (
    "TRAINING_ROLE",
    "PADDLE_ROLE",
    "PADDLE_PORT",
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_GLOO_RENDEZVOUS",
    "PADDLE_GLOO_FS_PATH",
    "PADDLE_GLOO_HTTP_ENDPOINT",
    "PADDLE_WITH_GLOO",
    "PADDLE_STAGE_TRAINERS_NUM",
    "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST",
    "PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST",
    "PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST",
    "STAGE_ID",
    "STAGE_NUM",
    "HETER_DEVICE_TYPE",
)


def plan_collective(
    config: LaunchConfig,
    job: Job,
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
        job: The devices and CPUs of this node.
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
    if len(own.ports) != job.nprocs:
        raise ValueError(f"{job.nprocs} trainers need as many ports, not {len(own.ports)}")
    endpoints = _endpoints(ordered)
    endpoint_list = ",".join(endpoints)
    first = sum(len(node.ports) for node in ordered[:me])
    programs = []
    for local_rank in range(job.nprocs):
        who = Identity(
            rank=first + local_rank,
            local_rank=local_rank,
            local_world_size=job.nprocs,
            node_rank=me,
            nnodes=len(ordered),
            endpoints=endpoints,
            endpoint_list=endpoint_list,
        )
        env = {
            **_rank_env(config, job, who, run_id=run_id, restart_count=restart_count),
            **_launcher_env(who, master=master),
            **node_env(config, own),
        }
        programs.append(_trainer(config, who, env))
    return programs


def _trainer(config: LaunchConfig, who: Identity, env: Mapping[str, str | None]) -> ProgramSpec:
    return ProgramSpec(
        role=TRAINER,
        rank=who.rank,
        local_rank=who.local_rank,
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
    """What all programs of one node have in common: where they log, and its name.

    The job's token is the launcher's own: a program that prints its environment prints it to a log.
    """
    env: Variables = {"PADDLE_LOG_DIR": config.log_dir, **dict.fromkeys(TOKEN_VARIABLES)}
    if node.name:
        env["POD_NAME"] = node.name
    return env


def _endpoints(nodes: Sequence[Node]) -> tuple[str, ...]:
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
    return tuple(owners)


def _rank_env(
    config: LaunchConfig, job: Job, who: Identity, *, run_id: str, restart_count: int
) -> Variables:
    """What a rank of ``spawn`` would find as well."""
    device = job.devices[who.local_rank] if job.devices else None
    restarts = config.is_elastic or config.elastic_level >= 0
    return {
        **inherited_env(job.environ),
        **_no_servers(job.environ),
        **paddle_env(who, job.backend),
        **torch_env(
            who,
            restart_count=restart_count,
            max_restarts=config.max_restart if restarts else 0,
            run_id=run_id,
        ),
        **jax_env(who),
        **device_env(device, job.visible, own=False),
        **thread_env(None, job.environ, cpus=job.cpus, nprocs=job.nprocs),
    }


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


def _no_servers(environ: Mapping[str, str]) -> Variables:
    if WORKER_MARK not in environ:
        return {}
    return {name: None for name in _OF_PARAMETER_SERVERS if name in environ}
