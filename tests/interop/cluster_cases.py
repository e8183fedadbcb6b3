"""What ranks on several agents do with torch."""

import rankspawn


def gradients(kind):
    """Of a small model, on inputs that differ by rank."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    backend = "torch:gloo"
    if kind == "ddp":
        dist.init_process_group("gloo")
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    else:
        backend = rankspawn.init_parallel_env().backend
        wrapped = rankspawn.DataParallel(model)
    inputs = torch.full((2, 4), float(rankspawn.get_rank() + 1))
    wrapped(inputs).sum().backward()
    found = model.weight.grad.tolist()
    if dist.is_initialized():
        dist.destroy_process_group()
    return backend, found
