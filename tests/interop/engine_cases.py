"""What ranks run over each engine: all collectives against NumPy, and training."""

from __future__ import annotations

import os

import numpy as np
import pytest

import rankspawn
from tests.parallel import cases

# What this engine may reduce in another order than ours; whole numbers have the same bits.
CLOSE = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "complex64": 1e-5}
OPS = {
    "float32": ("sum", "prod", "min", "max", "avg"),
    "float64": ("sum", "avg"),
    "float16": ("sum", "avg"),
    "complex64": ("sum", "prod"),
    "int64": ("sum", "prod", "min", "max", "band", "bor", "bxor"),
    "int16": ("sum", "max", "bxor"),
    "uint8": ("sum", "max", "band"),
    "bool": ("max", "min", "bxor"),
}


def check(found, expected):
    """The same bits, or nearly for floats."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    limit = CLOSE.get(expected.dtype.name)
    if limit is None:
        assert found.tobytes() == expected.tobytes()
    else:
        np.testing.assert_allclose(found, expected, rtol=limit, atol=limit)


def talk(engine):
    """Each collective over an engine; what it says of itself."""
    comm = rankspawn.init_parallel_env(engine)
    assert rankspawn.init_parallel_env(engine) is comm
    collectives(comm)
    moves(comm)
    cases.messages(comm)
    parts(comm)
    name = comm.backend
    comm.close()
    return name


def collectives(comm):
    """Reductions of all types, at a size below and above that of a piece."""
    rank, size = comm.rank, comm.size
    for dtype, ops in OPS.items():
        for count in (0, 5, 3000):
            arrays = [cases.data_of(each, count, dtype) for each in range(size)]
            tables = [np.stack([array] * size) for array in arrays]
            for op in ops:
                expected = cases.reduced(arrays, op)
                mine = arrays[rank].copy()
                assert comm.all_reduce(mine, op) is mine
                check(mine, expected)
                same_on_all(comm, mine)
                found = comm.reduce(arrays[rank].copy(), dst=size - 1, op=op)
                check(found, expected if rank == size - 1 else arrays[rank])
                check(comm.reduce_scatter(tables[rank], op), expected)
    large = np.full(700_000, rank + 1, "int16")
    check(comm.all_reduce(large), np.full(700_000, size * (size + 1) // 2, "int16"))


def same_on_all(comm, array):
    assert len(set(comm.all_gather_object(array.tobytes()))) == 1


def moves(comm):
    """What only moves data has the same bits."""
    rank, size = comm.rank, comm.size
    for dtype in ("float32", "int16", "bool", "complex64"):
        for count in (0, 5, 3000):
            arrays = [cases.data_of(each, count, dtype) for each in range(size)]
            table = np.stack(arrays)
            for root in range(size):
                cases.same(comm.broadcast(arrays[rank].copy(), src=root), arrays[root])
                found = comm.gather(arrays[rank], dst=root)
                assert (found is None) == (rank != root)
                if rank == root:
                    cases.same(found, table)
                part = comm.scatter(table if rank == root else None, src=root)
                cases.same(part, arrays[rank])
            cases.same(comm.all_gather(arrays[rank]), table)
            cases.same(comm.all_to_all(np.stack([arrays[rank]] * size)), table)
    objects = [{"rank": each, "data": b"x" * (1000 * each)} for each in range(size)]
    assert comm.all_gather_object(objects[rank]) == objects
    assert comm.broadcast_object(objects[rank] if rank == 1 else None, src=1) == objects[1]
    assert comm.gather_object(objects[rank], dst=1) == (objects if rank == 1 else None)
    turned = np.full((3, 2), rank + 1.0).T
    comm.all_reduce(turned)
    assert (turned == size * (size + 1) / 2).all()


def parts(comm):
    """All ranks in another order, and each alone."""
    comm.barrier()
    turned = comm.split(0, key=-comm.rank)
    assert turned.rank == comm.size - 1 - comm.rank
    assert turned.backend == comm.backend
    assert turned.all_gather(np.array([comm.rank])).ravel().tolist() == [*range(comm.size)][::-1]
    assert turned.broadcast_object(comm.rank, src=0) == comm.size - 1
    single = comm.split(comm.rank)
    assert single.size == 1
    assert single.all_gather_object(comm.rank) == [comm.rank]
    assert comm.split(None) is None
    assert comm.statistics().calls["split"] == 3


def lose_a_rank(engine):
    """One rank dies while the others wait for it."""
    comm = rankspawn.init_parallel_env(engine)
    comm.barrier()
    if comm.rank == 1:
        os._exit(3)
    try:
        while True:
            comm.barrier()
    except rankspawn.RankLostError as error:
        return str(error)


def make_a_mistake(engine):
    """One rank has another shape; before, a message with a tag goes from the first to the last."""
    comm = rankspawn.init_parallel_env(engine)
    last = comm.size - 1
    if comm.rank == 0:
        comm.send(np.full(3, 7.0), last, tag=5)
    if comm.rank == last:
        assert comm.recv(np.zeros(3), 0, tag=5).tolist() == [7.0] * 3
    try:
        comm.all_reduce(np.ones(4 if comm.rank == 1 else 3))
    except rankspawn.CollectiveMismatchError as error:
        return error.calls[0]


def be_late(engine):
    """One rank does not come until the other has given up."""
    comm, memory = (rankspawn.init_parallel_env(name) for name in (engine, "shm"))
    comm.barrier()
    story = ""
    if comm.rank == 0:
        try:
            comm.all_reduce(np.ones(3), timeout=0.2)
        except rankspawn.CollectiveTimeoutError as error:
            story = str(error)
    memory.barrier()
    return memory.backend, story


def train(engine, name):
    """The gradients of a model over an engine, and those of one process with all samples."""
    from tests.interop import parallel_cases

    comm = rankspawn.init_parallel_env(engine)
    model = rankspawn.DataParallel(parallel_cases.make_model(name, comm.rank, "float32"), comm)
    inputs, wanted = parallel_cases.samples()
    alone = rankspawn.DataParallel(
        parallel_cases.make_model(name, 0, "float32"), rankspawn.init_parallel_env("alone")
    )

    def step(model, chosen):
        mine, target = (parallel_cases.tensor(name, each[chosen]) for each in (inputs, wanted))
        loss = ((model(mine, False) - target) ** 2).mean()
        model.scale_loss(loss, samples=len(mine)).backward()
        model.apply_collective_grads()
        parallel_cases.step(name, model)

    for _ in range(3):
        step(model, slice(0, 7) if comm.rank == 0 else slice(7, 30))
        step(alone, slice(0, 30))
    for key, each in model.state_dict().items():
        found = parallel_cases.numbers(each)
        np.testing.assert_allclose(
            found, parallel_cases.numbers(alone.state_dict()[key]), atol=1e-6, err_msg=key
        )
        same_on_all(comm, found)
    backend = comm.backend
    comm.close()
    return backend


def pretend_device():
    """Tensors of torch that are said to be on a device: they go over torch.distributed."""
    import torch

    from rankspawn.parallel import buffers, devices, torch_groups

    torch.distributed.init_process_group("gloo")
    for module in (buffers, devices, torch_groups):
        module.device_type = lambda tensor: "cuda" if tensor.dtype == torch.float32 else "cpu"
    comm = rankspawn.init_parallel_env()
    rank, size = comm.rank, comm.size
    with pytest.raises(RuntimeError, match="let all ranks call a collective"):
        comm.send(torch.ones(3), (rank + 1) % size)
    assert comm.all_reduce(torch.ones(3)).tolist() == [float(size)] * 3
    assert comm.broadcast(torch.full((2, 2), float(rank)), src=1).tolist() == [[1.0, 1.0]] * 2
    assert comm.all_gather(torch.full((2,), float(rank))).tolist() == [[0, 0], [1, 1]]
    table = torch.full((size, 3), float(rank + 1))
    assert comm.reduce_scatter(table).tolist() == [3.0] * 3
    assert comm.all_to_all(table).tolist() == [[1.0] * 3, [2.0] * 3]
    turned = torch.full((3, 2), float(rank)).t()
    comm.all_reduce(turned, "max")
    assert turned.tolist() == [[1.0] * 3] * 2
    if rank == 0:
        comm.send(torch.full((4,), 7.0), 1)
    else:
        assert comm.recv(torch.zeros(4), 0).tolist() == [7.0] * 4
    part = comm.split(0, key=-rank)
    assert part.all_gather(torch.full((1,), float(rank))).tolist() == [[1.0], [0.0]]
    # What is in memory stays there.
    assert comm.all_reduce(torch.ones(3, dtype=torch.float64)).tolist() == [2.0] * 3
    memory = comm.statistics().calls["all_reduce"]
    over = comm.by_framework("torch", True)
    calls = over.statistics().calls["all_reduce"]
    tree = {"device": torch.full((3,), rank + 1.0), "memory": np.full(2, rank + 1.0)}
    rankspawn.all_reduce_gradients(tree)
    assert tree["device"].tolist() == [1.5] * 3
    assert tree["memory"].tolist() == [1.5] * 2
    torch.manual_seed(rank)
    model = rankspawn.DataParallel(torch.nn.Linear(3, 1), comm)
    model(torch.full((2, 3), rank + 1.0)).mean().backward()
    assert model.weight.grad.tolist() == [[1.5] * 3]
    assert over.statistics().calls["all_reduce"] == calls + 2
    comm.close()
    torch.distributed.destroy_process_group()
    return over.backend, memory
