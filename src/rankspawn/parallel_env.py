"""The rank of this process and its place in the job, read from its environment.

Runs in the worker, and anywhere else: a process that nobody told a rank is rank 0 of 1.
Workers of torchrun and of Paddle's launcher find their ranks here too.
"""

from __future__ import annotations

import os

# What a process is told by the MPI that started it: Open MPI; MPICH, Intel MPI and Slurm's PMI;
# MVAPICH. A rank that rankspawn has started is told better, and none of these.
_MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_MPI_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK")
MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")


def get_rank() -> int:
    """The number of this process among all ranks of all nodes."""
    return _number("RANK", "PADDLE_TRAINER_ID", *_MPI_RANKS, default=0)


def get_local_rank() -> int:
    """The number of this process among the ranks of its node."""
    ours = ("LOCAL_RANK", "PADDLE_LOCAL_RANK", "PADDLE_RANK_IN_NODE")
    return _number(*ours, *_MPI_LOCAL_RANKS, default=0)


def get_world_size() -> int:
    """The number of ranks on all nodes."""
    return _number("WORLD_SIZE", "PADDLE_TRAINERS_NUM", *MPI_SIZES, default=1)


class ParallelEnv:
    """The place of this process in its job, as it was told when this object was made.

    Attributes:
        rank: Its number among all ranks.
        local_rank: Its number among the ranks of its node.
        world_size: How many ranks there are; also as ``nranks``.
        nnodes: How many nodes there are.
        device_type: ``gpu``, ``xpu``, ``cpu`` or a custom type.
        device_id: The index of its device as frameworks count, such as the ``n`` of
            ``cuda:n``; also as ``dev_id``. 0 on the CPU.
        current_endpoint: Its ``host:port``; empty if it has none.
        trainer_endpoints: Those of all ranks, by rank.
    """

    __slots__ = (
        "current_endpoint",
        "device_id",
        "device_type",
        "local_rank",
        "nnodes",
        "rank",
        "trainer_endpoints",
        "world_size",
    )

    def __init__(self) -> None:
        self.rank: int = get_rank()
        self.local_rank: int = get_local_rank()
        self.world_size: int = get_world_size()
        self.nnodes: int = _number("GROUP_WORLD_SIZE", "PADDLE_NNODES", default=1)
        self.device_type: str = _device_type()
        self.device_id: int = _number(f"FLAGS_selected_{self.device_type}s", default=0)
        self.current_endpoint: str = os.environ.get("PADDLE_CURRENT_ENDPOINT", "")
        endpoints = os.environ.get("PADDLE_TRAINER_ENDPOINTS", "")
        self.trainer_endpoints: list[str] = endpoints.split(",") if endpoints else []

    @property
    def nranks(self) -> int:
        """``world_size``, under the name that Paddle uses."""
        return self.world_size

    @property
    def dev_id(self) -> int:
        """``device_id``, under the name that Paddle uses."""
        return self.device_id

    def __repr__(self) -> str:
        device = f"{self.device_type}:{self.device_id}"
        return f"ParallelEnv(rank={self.rank}, world_size={self.world_size}, device={device!r})"


def _device_type() -> str:
    """The kind of device that this process was given, ``cpu`` if nobody says."""
    told = os.environ.get("RANKSPAWN_DEVICE_TYPE")
    if told:
        return told
    # Another launcher's worker, maybe: it says so with one of these.
    for device_type in ("gpu", "xpu"):
        if os.environ.get(f"FLAGS_selected_{device_type}s"):
            return device_type
    return "cpu"


def _number(*names: str, default: int) -> int:
    """The number in the first of these variables that has a value, else the default."""
    for name in names:
        text = os.environ.get(name)
        if text:
            try:
                # Paddle's launcher may list several devices; the first one is meant.
                return int(text.split(",")[0])
            except ValueError:
                raise ValueError(f"the variable {name}={text!r} should hold a number") from None
    return default
