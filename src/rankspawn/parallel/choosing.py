"""Which engine connects the ranks: one rule, from what a process knows about itself.

Pure but for :func:`look_around`, which reads what there is.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from rankspawn.parallel_env import MPI_SIZES, ParallelEnv
from rankspawn.workers.meeting import MEETING_VARIABLE

BACKENDS = (
    "auto", "shm", "torch", "torch:gloo", "torch:nccl", "paddle", "paddle:gloo", "paddle:nccl",
    "mpi", "alone",
)  # fmt: skip
FRAMEWORKS = ("torch", "paddle")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a process knows about its job.

    Attributes:
        rank: Its number.
        size: How many ranks there are.
        nodes: On how many machines.
        has_place: rankspawn has started it, beside the others of this machine.
        mpi_size: How many processes MPI has started with it; 0 if it has not.
        has_mpi4py: That can be imported.
        frameworks: Those that can connect the ranks, the best one first.
        role: What it is in a job with parameter servers.
    """

    rank: int = 0
    size: int = 1
    nodes: int = 1
    has_place: bool = True
    mpi_size: int = 0
    has_mpi4py: bool = False
    frameworks: tuple[str, ...] = ()
    role: str = "TRAINER"


def choose(wanted: str, here: Surroundings) -> str:
    """The engine: ``alone``, ``shm``, ``torch``, ``paddle`` or ``mpi``, as wanted or by the rule.

    Raises:
        ValueError: There is no such engine.
        RuntimeError: None can connect these ranks.
    """
    if wanted not in BACKENDS:
        raise ValueError(f"backend={wanted!r} is unknown: there are {', '.join(BACKENDS)}")
    if wanted != "auto":
        return _check_wanted(wanted, here)
    # A rank that rankspawn has started may have the variables of an MPI that started rankspawn.
    if here.mpi_size and not here.has_place and here.has_mpi4py:
        return "mpi" if here.mpi_size > 1 else "alone"
    if here.size == 1:
        return "alone"
    _check_role(here)
    if here.nodes == 1 and here.has_place:
        return "shm"
    if here.frameworks:
        return here.frameworks[0]
    raise RuntimeError(_why_not_shared(here))


def _check_wanted(wanted: str, here: Surroundings) -> str:
    if wanted == "alone" or (here.size == 1 and wanted == "shm"):
        return "alone"
    if wanted != "mpi":
        _check_role(here)
    if wanted == "shm" and not (here.nodes == 1 and here.has_place):
        raise RuntimeError(_why_not_shared(here))
    return wanted


def _check_role(here: Surroundings) -> None:
    if here.role != "TRAINER":
        raise RuntimeError(
            f"a process of the role {here.role} is no rank that could talk to others"
        )


def _why_not_shared(here: Surroundings) -> str:
    who = f"this is rank {here.rank} of {here.size}"
    if here.nodes > 1:
        return (
            f"{who} on {here.nodes} machines, and memory is shared within one: use torch or "
            "paddlepaddle, whose collectives are taken if one is installed, or have mpirun start "
            "the ranks and install mpi4py"
        )
    return (
        f"{who}, which rankspawn has not started, so there is no memory that the ranks share: "
        "start them with rankspawn.spawn or rankrun, or with mpirun and mpi4py, or install torch "
        "or paddlepaddle and set MASTER_ADDR and MASTER_PORT, or PADDLE_TRAINER_ENDPOINTS"
    )


def look_around() -> Surroundings:
    """What this process was told, and what is installed here."""
    told = ParallelEnv()
    has_place = MEETING_VARIABLE in os.environ
    mpi_size = next((int(os.environ[name]) for name in MPI_SIZES if os.environ.get(name)), 0)
    # Looked for only where they are needed: that costs time.
    needs_engine = told.nnodes > 1 or not has_place
    return Surroundings(
        rank=told.rank,
        size=told.world_size,
        nodes=told.nnodes,
        has_place=has_place,
        mpi_size=mpi_size,
        has_mpi4py=bool(mpi_size) and not has_place and is_installed("mpi4py"),
        frameworks=_usable_frameworks() if needs_engine and told.world_size > 1 else (),
        role=os.environ.get("TRAINING_ROLE", "TRAINER"),
    )


def _usable_frameworks() -> tuple[str, ...]:
    """Those that know the others, or can: connected ones first, then loaded ones, then any."""
    addresses = {
        "torch": os.environ.get("MASTER_ADDR") and os.environ.get("MASTER_PORT"),
        "paddle": os.environ.get("PADDLE_TRAINER_ENDPOINTS"),
    }
    usable = [
        name
        for name in FRAMEWORKS
        if is_connected(name) or (addresses[name] and is_installed(name))
    ]
    return tuple(sorted(usable, key=lambda name: (not is_connected(name), name not in sys.modules)))


def is_connected(framework: str) -> bool:
    """Whether a framework has a process group already, found out without loading it."""
    module = sys.modules.get(f"{framework}.distributed")
    has_group = getattr(module, "is_initialized", None)
    return has_group is not None and bool(has_group())


def is_installed(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    from importlib.util import find_spec

    if sys.modules.get(module) is not None:
        return True
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a stand-in without a spec, or None, which forbids it
        return False
