"""From a checked request to one ``RankSpec`` per rank, for ``spawn``.

``resolve`` decides everything but ports, ``make_plan`` everything else. Both are pure, so
that a restart is a second ``make_plan`` with fresh ports.
"""

from __future__ import annotations

from rankspawn.option_values import read_variables
from rankspawn.plan.devices import DeviceRequest
from rankspawn.plan.environ import rank_env
from rankspawn.plan.resources import Resources, find_resources
from rankspawn.plan.topology import Identity, Topology, find_nodes, identify
from rankspawn.values import dataclass, field, replace

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankspawn.options import SpawnOptions
    from rankspawn.plan.devices import Machine


@dataclass(frozen=True, slots=True)
class Job:
    """A request with every question answered but which ports are free.

    Attributes:
        resources: What this node's ranks run on.
        topology: All nodes.
        options: What was asked for.
    """

    resources: Resources
    topology: Topology
    options: SpawnOptions = field(repr=False)


@dataclass(frozen=True, slots=True)
class RankSpec:
    """Everything that makes one worker different from the others.

    Attributes:
        rank: Its number among all ranks of all nodes.
        device_type: ``gpu``, ``xpu``, ``cpu`` or a custom type.
        device: The absolute id of its device; None on the CPU.
        endpoint: Its ``host:port``.
        env: Changes against the parent's environment; None removes a variable.
    """

    rank: int
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


def resolve(
    nprocs: int, options: SpawnOptions, environ: Mapping[str, str], machine: Machine
) -> Job:
    """Decide backend, devices and nodes.

    Args:
        nprocs: Ranks on this node; -1 for one per visible device, on the CPU for one per row of
            ``rank_args``, or else per CPU.
        options: What was asked for.
        environ: The parent's environment.
        machine: What the machine has.

    Raises:
        ValueError: The options contradict each other, the environment or the machine.
        RuntimeError: There are fewer visible devices than ranks.
    """
    resources = find_resources(device_request(nprocs, options), environ, machine)
    rows = options.rank_args or options.rank_kwargs
    if nprocs == -1 and rows and resources.device_type == "cpu":
        # Nobody said how many, and there is nothing on the CPU that would have to be shared.
        resources = replace(resources, nprocs=len(rows))
    return Job(resources, find_nodes(resources.nprocs, options, environ, machine), options)


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
    topology, resources = job.topology, job.resources
    specs = tuple(
        _spec(job, who, run_id=run_id, restart_count=restart_count)
        for who in identify(topology, ports)
    )
    return Plan(
        ranks=specs,
        nprocs=topology.own.count,
        world_size=topology.world_size,
        nnodes=len(topology.nodes),
        node_rank=topology.node_rank,
        backend=resources.backend,
        device_type=resources.device_type,
    )


def describe(plan: Plan) -> str:
    """The plan as a table of ranks, then the environment: shared, and per rank."""
    lines = [
        f"{plan.nprocs} of {plan.world_size} ranks on node {plan.node_rank} of {plan.nnodes}, "
        f"backend {plan.backend}",
        *_table(plan.ranks),
    ]
    shared = _shared(plan.ranks)
    lines.append("environment of every rank:")
    lines += [_assignment(name, shared[name]) for name in sorted(shared)]
    for spec in plan.ranks:
        own = {name: value for name, value in spec.env.items() if name not in shared}
        if own:
            lines.append(f"environment of rank {spec.rank}:")
            lines += [_assignment(name, own[name]) for name in sorted(own)]
    return "\n".join(lines)


def _table(ranks: tuple[RankSpec, ...]) -> list[str]:
    rows = [("rank", "device", "endpoint")]
    for spec in ranks:
        device = spec.device_type if spec.device is None else f"{spec.device_type}:{spec.device}"
        rows.append((str(spec.rank), device, spec.endpoint))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _shared(ranks: tuple[RankSpec, ...]) -> dict[str, str | None]:
    """Variables that all ranks have in common."""
    first, *others = (spec.env for spec in ranks)
    absent = object()
    return {
        name: value
        for name, value in first.items()
        if all(env.get(name, absent) == value for env in others)
    }


def _assignment(name: str, value: str | None) -> str:
    return f"  {name} is removed" if value is None else f"  {name}={value}"


def device_request(nprocs: int, options: SpawnOptions) -> DeviceRequest:
    """What the options say about devices, under the names of the options."""
    names = ("gpus", "xpus", "devices", "selected_devices")
    name = next((name for name in names if getattr(options, name) is not None), "devices")
    ids = getattr(options, name)
    return DeviceRequest(
        nprocs=nprocs,
        backend=options.backend,
        device_type={"gpus": "gpu", "xpus": "xpu"}.get(name, options.device_type),
        ids=ids,
        own=options.device_visibility == "own",
        shared=options.share_devices,
        ids_name=getattr(ids, "option", name),
    )


def _spec(job: Job, who: Identity, *, run_id: str, restart_count: int) -> RankSpec:
    resources, options = job.resources, job.options
    env = rank_env(
        who,
        resources,
        run_id=run_id,
        restart_count=restart_count,
        max_restarts=options.max_restarts,
        threads=options.threads_per_rank,
        agent_store=options.agent_store,
    )
    env |= _user_env(options, who.rank)
    return RankSpec(
        rank=who.rank,
        device_type=resources.device_type,
        device=resources.devices[who.local_rank].id if resources.devices else None,
        endpoint=who.endpoint,
        env=env,
    )


def _user_env(options: SpawnOptions, rank: int) -> Mapping[str, str | None]:
    if options.env is None:
        return {}
    if callable(options.env):
        return read_variables(f"env({rank})", options.env(rank))
    return options.env
