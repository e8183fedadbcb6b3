"""DistributedDataParallel on two CPU ranks: no address, port or rank is set up by hand."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rankspawn


def train(steps):
    """Runs in every worker; returns its loss and the parameters it ended with."""
    dist.init_process_group("gloo")  # rank, world size and address are in the environment
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    torch.manual_seed(rank)
    rows = torch.randn(64, 10)
    targets = rows.sum(dim=1, keepdim=True)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), targets)
        loss.backward()  # gradients are averaged over the ranks here
        optimizer.step()

    dist.destroy_process_group()
    return loss.item(), [parameter.detach() for parameter in model.parameters()]


if __name__ == "__main__":
    context = rankspawn.spawn(train, args=(50,), nprocs=2, backend="gloo")
    (first_loss, first), (second_loss, second) = context.results()
    print(f"losses: {first_loss:.4f} and {second_loss:.4f}")
    same = all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    print(f"same parameters on both ranks: {same}")
