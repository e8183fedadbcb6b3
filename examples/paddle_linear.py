"""A Paddle script as its users write it; only ``spawn`` comes from rankspawn."""

import paddle
import paddle.distributed as dist
from paddle import nn

from rankspawn import spawn  # in place of: from paddle.distributed import spawn


class LinearNet(nn.Layer):
    """Two linear layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 10)
        self.second = nn.Linear(10, 1)

    def forward(self, rows):
        """Predict one value per row."""
        return self.second(self.first(rows))


def train(print_result=False):
    """Train on this rank's rows, averaging gradients over the ranks."""
    dist.init_parallel_env()
    model = paddle.DataParallel(LinearNet())
    optimizer = paddle.optimizer.Adam(learning_rate=0.01, parameters=model.parameters())

    paddle.seed(dist.get_rank())
    rows = paddle.randn([64, 10])
    targets = rows.sum(axis=1, keepdim=True)
    for _ in range(20):
        loss = nn.functional.mse_loss(model(rows), targets)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()

    if print_result:
        print(f"[rank {dist.get_rank()}] loss {float(loss):.4f}", flush=True)
    return float(loss)


if __name__ == "__main__":
    context = spawn(train, args=(True,), nprocs=2, backend="gloo")
    for rank, queue in enumerate(context.return_queues):
        print(f"rank {rank} returned {queue.get():.4f}")
