"""Worker functions for the Paddle interop tests."""

from __future__ import annotations

import os
from typing import Any


def all_reduce_ranks() -> tuple[int, int, float]:
    """Sum rank + 1 over the group that the environment describes."""
    import paddle
    import paddle.distributed as dist

    dist.init_parallel_env()
    total = paddle.to_tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), float(total.item())


def train_one_step(learning_rate: float) -> tuple[float, list[list[float]]]:
    """One step of DataParallel on rows of this rank; the loss and the parameters after it."""
    import paddle
    import paddle.distributed as dist

    dist.init_parallel_env()
    paddle.seed(dist.get_rank() + 1)
    model = paddle.DataParallel(paddle.nn.Linear(3, 1))
    optimizer = paddle.optimizer.SGD(learning_rate, parameters=model.parameters())
    rows = paddle.ones([4, 3]) * (dist.get_rank() + 1)
    loss = ((model(rows) - 1.0) ** 2).mean()
    loss.backward()
    optimizer.step()
    return float(loss), [parameter.numpy().ravel().tolist() for parameter in model.parameters()]


def both_envs() -> tuple[dict[str, Any], dict[str, Any]]:
    """What rankspawn and Paddle say of this rank, under the names that they share."""
    import paddle.distributed as dist

    import rankspawn

    names = ("rank", "world_size", "nranks", "current_endpoint", "trainer_endpoints")
    ours, theirs = rankspawn.ParallelEnv(), dist.ParallelEnv()
    return (
        {name: getattr(ours, name) for name in names},
        {name: getattr(theirs, name) for name in names},
    )


def selected_gpu() -> str | None:
    """The device of this rank, as Paddle would find it."""
    return os.environ.get("FLAGS_selected_gpus")  # noqa: SIM112  # Paddle's own spelling


def describe(tensor: Any, layer: Any) -> tuple[Any, ...]:
    """What arrived of a tensor and of a layer's parameters."""
    kinds = [(type(one).__name__, one.trainable) for one in layer.parameters()]
    sums = [float(one.sum()) for one in layer.parameters()]
    return str(tensor.dtype), float(tensor.sum()), tensor.stop_gradient, kinds, sums


def weight_and_layer(layer: Any) -> tuple[Any, Any]:
    return layer.weight, layer
