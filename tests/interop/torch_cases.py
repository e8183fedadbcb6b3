"""Worker functions for the torch interop tests, and the table of parity cases.

The functions run in the workers of torch's own spawn and of ``rankspawn.compat.torch`` alike:
each takes the rank first. Those for ``rankspawn.spawn``, which passes no rank, come last.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def wait_until_stopped() -> None:
    """Block until a signal ends this process."""
    while True:
        time.sleep(0.2)  # not pause(), which a signal that comes just before it does not end


def succeed(rank: int, *args: Any) -> tuple[Any, ...]:
    return (rank, *args)


def put_arguments(rank: int, queue: Any, *args: Any) -> None:
    queue.put((rank, args))


def wait_for(_rank: int, gate: Any) -> None:
    gate.wait()


def raise_in_rank_1(rank: int) -> None:
    if rank == 1:
        raise ValueError("legitimate exception from rank 1")
    wait_until_stopped()


def raise_everywhere(rank: int) -> None:
    raise ValueError(f"from rank {rank}")


class TwoArguments(Exception):
    """Its instances pickle, but do not unpickle."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def raise_two_arguments(_rank: int) -> None:
    raise TwoArguments("this", "that")


def raise_multiline(_rank: int) -> None:
    raise RuntimeError("first line\nsecond line")


def raise_chained(_rank: int) -> None:
    try:
        {}["inner"]
    except KeyError as error:
        raise RuntimeError("outer") from error


def raise_base_exception(_rank: int) -> None:
    raise KeyboardInterrupt


def kill_rank_1(rank: int, signum: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signum)
    wait_until_stopped()


def sys_exit_rank_1(rank: int, code: Any) -> None:
    if rank == 1:
        sys.exit(code)
    wait_until_stopped()


def os_exit_rank_1(rank: int, code: int) -> None:
    if rank == 1:
        os._exit(code)
    wait_until_stopped()


def sys_exit_everywhere(_rank: int, code: Any) -> None:
    sys.exit(code)


def os_exit_everywhere(_rank: int, code: int) -> None:
    os._exit(code)


def succeed_then_fail(rank: int, first_is_done: Any) -> None:
    """Rank 0 succeeds; rank 1 fails when the test says that rank 0 has ended."""
    if rank == 1:
        first_is_done.wait()
        raise RuntimeError("late failure of rank 1")


def ignore_sigterm(rank: int, ready: Any) -> None:
    """Rank 0 ignores SIGTERM; rank 1 fails once it does."""
    if rank == 1:
        ready.wait()
        raise ValueError("rank 0 will not stop for this")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.set()
    wait_until_stopped()


def end_after_rank_1(rank: int, first: Any, second: Any, wait_for_a_signal: bool) -> None:
    """Rank 1 fails; rank 0, which watches it, ends by itself once it is gone."""
    if rank == 1:
        second.send(os.getpid())
        second.recv()
        raise ValueError("rank 0 goes on")
    other = select.poll()
    other.register(os.pidfd_open(first.recv()), select.POLLIN)
    first.send("watched")
    if wait_for_a_signal:
        wait_until_stopped()
    other.poll()


def expect(rank: int, argument: Any) -> None:
    assert (rank, argument) == (0, "a")


def nest(_rank: int, module: str, start_method: str, function: str, *args: Any) -> None:
    """Start two more workers with the same library, from inside this one."""
    api = importlib.import_module(module)
    api.start_processes(globals()[function], args=args, nprocs=2, start_method=start_method)


def put_pid_and_wait(_rank: int, pids: Any) -> None:
    pids.put(os.getpid())
    wait_until_stopped()


@dataclass(frozen=True)
class Case:
    """One call of ``start_processes``: a function, its arguments, and the number of ranks.

    Attributes:
        any_rank: Which rank fails first is a race, so the two libraries may name different ones.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    nprocs: int = 2
    any_rank: bool = False

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("success", succeed),
    Case("success_with_args", succeed, ("a", {"b": [1, 2]})),
    Case("success_of_one", succeed, nprocs=1),
    Case("success_of_four", succeed, nprocs=4),
    Case("exception_in_one", raise_in_rank_1),
    Case("exception_in_one_of_four", raise_in_rank_1, nprocs=4),
    Case("exception_in_all", raise_everywhere, nprocs=3, any_rank=True),
    Case("exception_that_cannot_be_unpickled", raise_two_arguments, nprocs=1),
    Case("exception_of_two_lines", raise_multiline, nprocs=1),
    Case("exception_with_a_cause", raise_chained, nprocs=1),
    Case("exception_for_wrong_arguments", raise_in_rank_1, ("too", "many"), nprocs=1),
    Case("sigkill", kill_rank_1, (signal.SIGKILL,)),
    Case("sigabrt", kill_rank_1, (signal.SIGABRT,)),
    Case("sigsegv", kill_rank_1, (signal.SIGSEGV,)),
    Case("sigterm", kill_rank_1, (signal.SIGTERM,)),
    Case("sigusr1", kill_rank_1, (signal.SIGUSR1,)),
    Case("sys_exit_7", sys_exit_rank_1, (7,)),
    Case("sys_exit_0", sys_exit_everywhere, (0,)),
    Case("sys_exit_none", sys_exit_everywhere, (None,)),
    Case("os_exit_7", os_exit_rank_1, (7,)),
    Case("os_exit_139", os_exit_rank_1, (139,)),
    Case("os_exit_in_all", os_exit_everywhere, (3,), nprocs=3, any_rank=True),
]


# For rankspawn.spawn: no rank argument.


def all_reduce_ranks() -> tuple[int, int, float]:
    """Find the group with nothing but the environment, and sum rank + 1 over it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        total = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(total)
        return dist.get_rank(), dist.get_world_size(), total.item()
    finally:
        dist.destroy_process_group()


def all_reduce_while_others_do(barrier: Any, value: float) -> float:
    """Sum ``value`` over this group, while every party of ``barrier`` holds its own group."""
    import torch
    import torch.distributed as dist

    barrier.wait()
    dist.init_process_group("gloo")
    try:
        barrier.wait()
        total = torch.tensor([value])
        dist.all_reduce(total)
        barrier.wait()
        return total.item()
    finally:
        dist.destroy_process_group()


def linear_model_and_data() -> tuple[Any, Any, Any]:
    """The same small model and batch of eight rows in every process."""
    import torch

    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(8, 3, generator=generator)
    targets = torch.randn(8, 1, generator=generator)
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model, inputs, targets


def one_step(model: Any, inputs: Any, targets: Any) -> float:
    """One step of gradient descent on these rows; the loss before it."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return float(loss.item())


def train_alone() -> tuple[float, list[Any]]:
    """One step on the whole batch in one process: what the ranks together must reach."""
    model, inputs, targets = linear_model_and_data()
    loss = one_step(model, inputs, targets)
    return loss, [parameter.detach() for parameter in model.parameters()]


def train_with_ddp() -> tuple[float, list[Any]]:
    """One step of DistributedDataParallel, each rank on its share of the batch."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    try:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        model, inputs, targets = linear_model_and_data()
        if rank:
            # DDP begins with rank 0's parameters, whatever the other ranks hold.
            for parameter in model.parameters():
                parameter.data.zero_()
        wrapped = DistributedDataParallel(model)
        loss = one_step(wrapped, inputs[rank::world_size], targets[rank::world_size])
        return loss, [parameter.detach() for parameter in model.parameters()]
    finally:
        dist.destroy_process_group()


def write_rank_into(tensor: Any) -> None:
    """Change the parent's tensor in place, each rank in its own row."""
    rank = int(os.environ["RANK"])
    tensor[rank] = rank + 1


def write_rank_into_with_rank(rank: int, tensor: Any) -> None:
    tensor[rank] = rank + 1


def return_tensors(size: int) -> dict[str, Any]:
    """Tensors of several kinds, one of them large, as a result."""
    import torch

    rank = int(os.environ["RANK"])
    return {
        "small": torch.tensor([rank]),
        "large": torch.full((size,), float(rank)),
        "strided": torch.arange(6).reshape(2, 3).t(),
        "parameter": torch.nn.Parameter(torch.ones(2) * rank),
        "shared": torch.full((3,), rank).share_memory_(),
    }


def echo(value: Any) -> Any:
    return value


def sum_of(tensor: Any) -> float:
    return float(tensor.sum().item())


def write_and_echo(value: dict[str, Any]) -> dict[str, Any]:
    """Change the one called whole, and give all of them back."""
    value["whole"][1] = -1
    return value
