"""A script for ``torch.multiprocessing.spawn`` of which only the import was changed."""

import os
import socket

import torch
import torch.distributed as dist

import rankspawn.compat.torch as mp  # was: import torch.multiprocessing as mp


def run(rank, world_size, port):
    """Sum the ranks' numbers; as with torch, the rank comes first."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    number = torch.tensor([float(rank + 1)])
    dist.all_reduce(number)
    print(f"[rank {rank}] sum {number.item():.0f}", flush=True)
    dist.destroy_process_group()


def find_free_port():
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    world_size = 2
    mp.spawn(run, args=(world_size, find_free_port()), nprocs=world_size, join=True)
    print("done")
