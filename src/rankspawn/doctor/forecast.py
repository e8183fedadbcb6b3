"""What ``spawn(func)`` would do here, without doing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankspawn.options import read_options
from rankspawn.plan.job import Job, RankSpec, make_plan, resolve

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.plan.facts import Machine

__all__ = ["foresee"]

# Stands for a port that is chosen when workers are started. No machine has it, so that it
# cannot be mistaken for one; it is replaced by words.
_SOME_PORT = 0
_FREE = "<free port>"


def foresee(environ: Mapping[str, str], machine: Machine) -> dict[str, Any]:
    """Workers, devices, backend and environment of ``nprocs=-1``; or the error of the attempt."""
    try:
        job = resolve(-1, read_options({}), environ, machine)
        plan = make_plan(job, _ports(job), run_id="<unique name>")
    except (ValueError, RuntimeError, TypeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "error": None,
        "nprocs": plan.nprocs,
        "world_size": plan.world_size,
        "nnodes": plan.nnodes,
        "backend": plan.backend,
        "device_type": plan.device_type,
        "note": job.warning,
        "ranks": [_rank(spec) for spec in plan.ranks],
    }


def _ports(job: Job) -> list[int]:
    fixed = job.topology.own.ports
    return list(fixed) if fixed is not None else [_SOME_PORT] * job.nprocs


def _rank(spec: RankSpec) -> dict[str, Any]:
    return {
        "rank": spec.rank,
        "device": spec.device_type if spec.device is None else f"{spec.device_type}:{spec.device}",
        "environment": {
            name: None if value is None else _name_ports(name, value)
            for name, value in sorted(spec.env.items())
        },
    }


def _name_ports(name: str, value: str) -> str:
    if name == "MASTER_PORT" and value == str(_SOME_PORT):
        return _FREE
    parts = value.split(",")
    return ",".join(
        part.removesuffix(f":{_SOME_PORT}") + f":{_FREE}"
        if part.endswith(f":{_SOME_PORT}")
        else part
        for part in parts
    )
