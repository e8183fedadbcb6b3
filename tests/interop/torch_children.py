"""Worker functions that start processes, in a rank in which torch has threads."""

from __future__ import annotations

import concurrent.futures
import multiprocessing

import torch

SIZE = 500


def large_sum(_: object = None) -> float:
    """Large enough for OpenMP's threads, whose copy in a fork waits for ever."""
    return float((torch.ones(SIZE, SIZE) @ torch.ones(SIZE, SIZE)).sum().item())


def use_pool() -> float:
    large_sum()
    with multiprocessing.Pool(1) as pool:
        return pool.map(large_sum, [0])[0]


def use_executor() -> float:
    large_sum()
    with concurrent.futures.ProcessPoolExecutor(1) as executor:
        return executor.submit(large_sum).result()


class Sums:
    """A data set of one item."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> float:
        torch.set_num_threads(2)  # a DataLoader sets one
        return large_sum()


def use_data_loader() -> float:
    large_sum()
    loader = torch.utils.data.DataLoader(Sums(), batch_size=None, num_workers=1)
    return next(iter(loader))
