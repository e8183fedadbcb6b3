"""Two ranks train one Paddle layer through shared memory, as Paddle's documentation has it.

``dist`` is rankspawn's. The loop is the classic one, which scales the loss and applies the
gradients of all ranks; without these two lines it is the modern one, and gives the same.
"""

import paddle
from paddle import nn

import rankspawn.compat.paddle as dist  # in place of: import paddle.distributed as dist


class LinearNet(nn.Layer):
    """Two linear layers."""

    def __init__(self):
        super().__init__()
        self._linear1 = nn.Linear(10, 10)
        self._linear2 = nn.Linear(10, 1)

    def forward(self, x):
        """Predict one value per row."""
        return self._linear2(self._linear1(x))


def train():
    """Runs in every rank, each on its own rows."""
    dist.init_parallel_env()
    paddle.seed(dist.get_rank())
    dp_layer = dist.DataParallel(LinearNet())  # all begin with the parameters of rank 0
    loss_fn = nn.MSELoss()
    adam = paddle.optimizer.Adam(learning_rate=0.01, parameters=dp_layer.parameters())

    inputs = paddle.randn([32, 10], "float32")
    labels = inputs.sum(axis=1, keepdim=True)
    for _ in range(20):
        loss = loss_fn(dp_layer(inputs), labels)
        loss = dp_layer.scale_loss(loss)
        loss.backward()
        dp_layer.apply_collective_grads()
        adam.step()
        adam.clear_grad()
    return float(loss), [parameter.numpy() for parameter in dp_layer.parameters()]


if __name__ == "__main__":
    (first_loss, first), (second_loss, second) = dist.spawn(
        train, nprocs=2, backend="gloo"
    ).results()
    print(f"parts of the loss: {first_loss:.4f} and {second_loss:.4f}")
    same = all((one == other).all() for one, other in zip(first, second, strict=True))
    print(f"same parameters on both ranks: {same}")
