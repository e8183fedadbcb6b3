"""Two ranks train one torch module through shared memory: no process group, no port.

Each rank sees its own rows, one of them more than the other. Both hold the same parameters all the
time, and those are the ones of a single process that saw all rows.
"""

import torch
from torch import nn

import rankspawn


def make_rows():
    """Rows, and a target for each."""
    source = torch.Generator().manual_seed(7)
    rows = torch.randn(96, 10, generator=source)
    return rows, rows.sum(dim=1, keepdim=True)


def train(steps):
    """Runs in every rank, and in a process of its own just as well."""
    rank, world_size = rankspawn.get_rank(), rankspawn.get_world_size()
    torch.manual_seed(rank)
    # All begin with the parameters of rank 0.
    model = rankspawn.DataParallel(nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    rows, targets = make_rows()
    if world_size > 1:
        mine = slice(0, 64) if rank == 0 else slice(64, 96)
        rows, targets = rows[mine], targets[mine]
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), targets)
        # Weighed by samples, as the ranks have different numbers of them. With the same number
        # on each, loss.backward() is enough.
        model.scale_loss(loss, samples=len(rows)).backward()  # gradients are exchanged here
        optimizer.step()
    return loss.item(), [parameter.detach() for parameter in model.parameters()]


if __name__ == "__main__":
    context = rankspawn.spawn(train, args=(50,), nprocs=2, backend="gloo")
    (first_loss, first), (second_loss, second) = context.results()
    print(f"losses: {first_loss:.4f} and {second_loss:.4f}")
    same = all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    print(f"same parameters on both ranks: {same}")
    _, alone = train(50)
    near = all(
        torch.allclose(one, other, atol=1e-6) for one, other in zip(first, alone, strict=True)
    )
    print(f"same as in one process: {near}")
