"""A user's Paddle script: each rank trains on its rows, the parent prints what came back.

The tests run it as it stands, and with ``dist.spawn`` replaced and nothing else.
``argv[1]`` is the usage of ``spawn`` to show.
"""

import json
import sys

import paddle
import paddle.distributed as dist
from paddle import nn


class LinearNet(nn.Layer):
    """Two small linear layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 1)

    def forward(self, rows):
        """Predict one value per row."""
        return self.second(paddle.tanh(self.first(rows)))


def train(with_parameters=False):
    """Train for three steps; return the rank's last loss, and its parameters if asked."""
    dist.init_parallel_env()
    rank, world_size = dist.get_rank(), dist.get_world_size()

    # Different on each rank: DataParallel must begin with those of rank 0.
    paddle.seed(rank + 1)
    model = paddle.DataParallel(LinearNet())
    optimizer = paddle.optimizer.SGD(learning_rate=0.1, parameters=model.parameters())

    rows = paddle.linspace(-1, 1, 4 * 8).reshape([8, 4])[rank::world_size]
    targets = rows.sum(axis=1, keepdim=True)
    for _ in range(3):
        loss = nn.functional.mse_loss(model(rows), targets)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()

    result = {"rank": rank, "world_size": world_size, "loss": float(loss)}
    if with_parameters:
        result["parameters"] = [p.numpy().ravel().tolist() for p in model.parameters()]
    return result


if __name__ == "__main__":
    usage = sys.argv[1]
    if usage == "function":
        context = dist.spawn(train)
    elif usage == "args":
        context = dist.spawn(train, args=(True,))
    elif usage == "nprocs":
        context = dist.spawn(train, args=(True,), nprocs=2)
    elif usage == "backend":
        context = dist.spawn(train, args=(True,), nprocs=2, backend="gloo")
    elif usage == "four":
        context = dist.spawn(train, args=(True,), nprocs=4, backend="gloo")
    elif usage == "no_join":
        context = dist.spawn(train, args=(True,), nprocs=2, join=False, backend="gloo")
        while not context.join():
            pass
    else:
        raise SystemExit(f"unknown usage {usage!r}")
    for queue in context.return_queues:
        print("RESULT", json.dumps(queue.get()))  # the script's output
