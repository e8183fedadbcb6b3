"""From a checked request to one ``RankSpec`` per rank.

``resolve`` decides everything but ports, ``make_plan`` everything else. Both are pure, so
that a restart is a second ``make_plan`` with fresh ports.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rankspawn.option_values import read_variables
from rankspawn.plan.backend import choose_backend, selection_of
from rankspawn.plan.devices import Device, Visible, assign, see_devices
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
from rankspawn.plan.topology import Topology, endpoints_of, find_nodes

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankspawn.options import SpawnOptions
    from rankspawn.plan.facts import Machine

__all__ = ["Job", "Plan", "RankSpec", "make_plan", "resolve"]


@dataclass(frozen=True, slots=True)
class Job:
    """A request with every question answered but which ports are free.

    Attributes:
        nprocs: Ranks on this node, at least 1.
        backend: ``nccl``, ``bkcl``, ``xccl`` or ``gloo``.
        device_type: ``gpu``, ``xpu``, ``cpu`` or a custom type.
        devices: One per rank; empty on the CPU.
        topology: All nodes.
        warning: What the caller should be told once, if anything.
    """

    nprocs: int
    backend: str
    device_type: str
    devices: tuple[Device, ...]
    topology: Topology
    warning: str | None
    options: SpawnOptions = field(repr=False)
    # It holds the user's secrets, which have no place in a log or a traceback.
    environ: Mapping[str, str] = field(repr=False)
    visible: Visible | None = field(repr=False)
    cpus: int = field(repr=False)


@dataclass(frozen=True, slots=True)
class RankSpec:
    """Everything that makes one worker different from the others.

    Attributes:
        rank: Its number among all ranks of all nodes.
        local_rank: Its number on this node.
        world_size: Ranks on all nodes.
        device_type: ``gpu``, ``xpu``, ``cpu`` or a custom type.
        device: The absolute id of its device; None on the CPU.
        endpoint: Its ``host:port``.
        env: Changes against the parent's environment; None removes a variable.
    """

    rank: int
    local_rank: int
    world_size: int
    device_type: str
    device: str | None
    endpoint: str
    env: Mapping[str, str | None] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """One start of a job: this node's ranks, and where they stand among all."""

    ranks: tuple[RankSpec, ...]
    nprocs: int
    world_size: int
    nnodes: int
    node_rank: int
    backend: str
    device_type: str
    endpoints: tuple[str, ...]


def resolve(
    nprocs: int, options: SpawnOptions, environ: Mapping[str, str], machine: Machine
) -> Job:
    """Decide backend, devices and nodes.

    Args:
        nprocs: Ranks on this node; -1 for one per visible device, or per CPU.
        options: What was asked for.
        environ: The parent's environment.
        machine: What the machine has.

    Raises:
        ValueError: The options contradict each other, the environment or the machine.
        RuntimeError: There are fewer visible devices than ranks.
    """
    choice = choose_backend(options, environ, machine)
    option, selection = selection_of(options)
    visible: Visible | None = None
    devices: tuple[Device, ...] = ()
    cpus = machine.cpus()
    if choice.device_type == "cpu":
        count = _cpu_ranks(environ, cpus) if nprocs == -1 else nprocs
    else:
        visible = see_devices(choice.device_type, environ, machine)
        own = options.device_visibility == "own"
        devices = assign(visible, nprocs, selection, option=option, own=own)
        count = len(devices)
    return Job(
        nprocs=count,
        backend=choice.backend,
        device_type=choice.device_type,
        devices=devices,
        topology=find_nodes(count, options, environ, machine),
        warning=choice.warning,
        options=options,
        environ=dict(environ),
        visible=visible,
        cpus=cpus,
    )


def make_plan(job: Job, ports: Sequence[int], *, run_id: str, restart_count: int = 0) -> Plan:
    """The ranks of this node.

    Args:
        job: What was decided.
        ports: This node's ports, one per rank, as held by ``hold_ports``.
        run_id: A name for the job that no other one has.
        restart_count: How often it was started before.

    Raises:
        TypeError: The caller's ``env`` returned something that is no environment.
        ValueError: There is not one port per rank.
    """
    if len(ports) != job.nprocs:
        raise ValueError(f"{job.nprocs} ranks need as many ports, not {len(ports)}")
    topology = job.topology
    endpoints = endpoints_of(topology, ports)
    endpoint_list = ",".join(endpoints)
    specs = []
    for local_rank in range(job.nprocs):
        who = Identity(
            rank=topology.node_rank * job.nprocs + local_rank,
            local_rank=local_rank,
            local_world_size=job.nprocs,
            node_rank=topology.node_rank,
            nnodes=len(topology.nodes),
            endpoints=endpoints,
            endpoint_list=endpoint_list,
        )
        specs.append(_spec(job, who, run_id=run_id, restart_count=restart_count))
    return Plan(
        ranks=tuple(specs),
        nprocs=job.nprocs,
        world_size=len(endpoints),
        nnodes=len(topology.nodes),
        node_rank=topology.node_rank,
        backend=job.backend,
        device_type=job.device_type,
        endpoints=endpoints,
    )


def _spec(job: Job, who: Identity, *, run_id: str, restart_count: int) -> RankSpec:
    device = job.devices[who.local_rank] if job.devices else None
    options = job.options
    env: Variables = {
        **inherited_env(job.environ),
        **paddle_env(who, job.backend),
        **torch_env(
            who,
            restart_count=restart_count,
            max_restarts=options.max_restarts,
            run_id=run_id,
        ),
        **jax_env(who),
        **device_env(device, job.visible, own=options.device_visibility == "own"),
        **thread_env(options.threads_per_rank, job.environ, cpus=job.cpus, nprocs=job.nprocs),
        **_user_env(options, who.rank),
    }
    return RankSpec(
        rank=who.rank,
        local_rank=who.local_rank,
        world_size=who.world_size,
        device_type=job.device_type,
        device=None if device is None else device.id,
        endpoint=who.endpoint,
        env=env,
    )


def _user_env(options: SpawnOptions, rank: int) -> Mapping[str, str | None]:
    if options.env is None:
        return {}
    if callable(options.env):
        return read_variables(f"env({rank})", options.env(rank))
    return options.env


def _cpu_ranks(environ: Mapping[str, str], cpus: int) -> int:
    """Ranks for ``nprocs=-1`` on the CPU."""
    text = environ.get("CPU_NUM", "").strip()
    if not text:
        return cpus
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise ValueError(f"CPU_NUM={text!r} must be a positive number")
    return int(text)
