"""The collectives of others, as calls that take nothing: what ``collectives`` compares with."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

Call = Callable[[], Any]
NAMES = ("torch", "paddle", "jax")


class Torch:
    """torch.distributed over gloo."""

    def __init__(self) -> None:
        self._torch: Any = import_module("torch")
        self._dist: Any = import_module("torch.distributed")
        self._dist.init_process_group("gloo")

    def all_reduce(self, array: Any) -> Call:
        """The greatest of all ranks, in place."""
        tensor = self._torch.from_numpy(array)
        return lambda: self._dist.all_reduce(tensor, self._dist.ReduceOp.MAX)

    def broadcast(self, array: Any) -> Call:
        """What rank 0 has."""
        tensor = self._torch.from_numpy(array)
        return lambda: self._dist.broadcast(tensor, 0)

    def close(self) -> None:
        """End it."""
        self._dist.destroy_process_group()


class Paddle:
    """paddle.distributed over gloo."""

    def __init__(self) -> None:
        self._paddle: Any = import_module("paddle")
        self._paddle.device.set_device("cpu")
        self._dist: Any = import_module("paddle.distributed")
        self._dist.init_parallel_env()

    def all_reduce(self, array: Any) -> Call:
        """The greatest of all ranks, in place."""
        tensor = self._paddle.to_tensor(array)
        return lambda: self._dist.all_reduce(tensor, self._dist.ReduceOp.MAX)

    def broadcast(self, array: Any) -> Call:
        """What rank 0 has."""
        tensor = self._paddle.to_tensor(array)
        return lambda: self._dist.broadcast(tensor, 0)

    def close(self) -> None:
        """It ends with the process."""


class Jax:
    """psum of jax.distributed over gloo."""

    def __init__(self) -> None:
        self._jax: Any = import_module("jax")
        self._jax.config.update("jax_cpu_collectives_implementation", "gloo")
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        self._jax.distributed.initialize(address, size, rank)

    def all_reduce(self, array: Any) -> Call:
        """The greatest of all ranks."""
        sharding: Any = import_module("jax.sharding")
        mesh = sharding.Mesh(self._jax.devices(), ("ranks",))
        where = sharding.NamedSharding(mesh, sharding.PartitionSpec("ranks"))
        whole = self._jax.make_array_from_process_local_data(where, array[None])
        parts, all_of_it = sharding.PartitionSpec("ranks"), sharding.PartitionSpec()
        greatest = self._jax.jit(
            self._jax.shard_map(
                lambda part: self._jax.lax.pmax(part, "ranks"),
                mesh=mesh,
                in_specs=parts,
                out_specs=all_of_it,
            )
        )
        return lambda: greatest(whole).block_until_ready()

    def broadcast(self, array: Any) -> Call:
        """What rank 0 has."""
        utilities: Any = import_module("jax.experimental.multihost_utils")
        return lambda: utilities.broadcast_one_to_all(array)

    def close(self) -> None:
        """End it."""
        self._jax.distributed.shutdown()


class Mpi:
    """mpi4py, in a process that mpirun has started."""

    def __init__(self) -> None:
        self._mpi: Any = import_module("mpi4py.MPI")
        self._world = self._mpi.COMM_WORLD
        self.rank: int = self._world.Get_rank()

    def barrier(self) -> None:
        """Wait for all."""
        self._world.Barrier()

    def all_reduce(self, array: Any) -> Call:
        """The greatest of all ranks, in place."""
        return lambda: self._world.Allreduce(self._mpi.IN_PLACE, array, self._mpi.MAX)


def open_peer(name: str) -> Torch | Paddle | Jax | None:
    """The peer of this name, with all ranks of the job."""
    kinds = dict(zip(NAMES, (Torch, Paddle, Jax), strict=True))
    return kinds[name]() if name in kinds else None
