"""A plan as text, for ``print_config``."""

from __future__ import annotations

from rankspawn.plan.job import Plan, RankSpec

__all__ = ["describe"]


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
