"""What ranks run that exchange tensors; both frameworks under the same names."""

from __future__ import annotations

import importlib
import os
import pickle
import signal

import numpy as np
import pytest

import rankspawn


def framework(name):
    return importlib.import_module(name)


def tensor(name, array, dtype=None):
    module = framework(name)
    made = module.tensor(array) if name == "torch" else module.to_tensor(array)
    if dtype is None:
        return made
    return made.to(getattr(module, dtype)) if name == "torch" else made.astype(dtype)


def numbers(made):
    """As floats of NumPy's, whatever they are."""
    return made.float().numpy() if hasattr(made, "float") else made.astype("float32").numpy()


def exchange_tensors(name):
    """Each collective once, in place, at small and large sizes and with all kinds of floats."""
    comm = rankspawn.init_parallel_env()
    rank, size = comm.rank, comm.size
    for dtype in ("float32", "float64", "float16", "bfloat16", "int64", "bool"):
        for count in (0, 5, 100_000):
            mine = tensor(name, np.full(count, rank + 1.0, "float32"), dtype)
            assert comm.all_reduce(mine, "max") is mine
            top = 1.0 if dtype == "bool" else float(size)
            assert np.array_equal(numbers(mine), np.full(count, top, "float32")), (dtype, count)
            gathered = comm.all_gather(mine)
            assert type(gathered) is type(mine)
            assert list(gathered.shape) == [size, count]
            mine = tensor(name, np.full(count, float(rank), "float32"), dtype)
            comm.broadcast(mine, src=1)
            assert np.array_equal(numbers(mine), np.ones(count, "float32"))
    part = comm.scatter(tensor(name, np.eye(size, dtype="float32")) if rank == 0 else None)
    assert np.array_equal(numbers(part), np.eye(size, dtype="float32")[rank])
    crooked = tensor(name, np.zeros((4, 6), "float32"))
    turned = crooked.t()
    turned += rank + 1.0
    comm.all_reduce(turned)
    assert np.array_equal(numbers(turned), np.full((6, 4), size * (size + 1) / 2, "float32"))
    embedding = framework(name).nn.Embedding(4, 2, sparse=True)
    embedding(tensor(name, np.array([1, 2]))).sum().backward()
    with pytest.raises(TypeError, match="layer without sparse=True"):
        comm.all_reduce(embedding.weight.grad)
    return comm.backend


def samples():
    source = np.random.default_rng(0)
    inputs = source.standard_normal((30, 5)).astype("float32")
    return inputs, source.standard_normal((30, 1)).astype("float32")


def make_model(name, seed, dtype):
    """Two layers, one that only rank 1 uses, one that nobody does, a frozen one, running means."""
    module = framework(name)
    (module.manual_seed if name == "torch" else module.seed)(seed)
    nn = module.nn
    base = nn.Module if name == "torch" else nn.Layer
    norm = nn.BatchNorm1d if name == "torch" else nn.BatchNorm1D

    class Model(base):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 1)
            self.some, self.never, self.frozen = nn.Linear(8, 1), nn.Linear(2, 2), nn.Linear(8, 8)
            self.norm = norm(8)
            for parameter in self.frozen.parameters():
                if name == "torch":
                    parameter.requires_grad = False
                else:
                    parameter.stop_gradient = True

        def forward(self, inputs, some):
            hidden = module.tanh(self.first(inputs))
            hidden = hidden + self.frozen(hidden)
            return self.last(hidden) + (self.some(hidden) if some else 0)

    model = Model()
    model.to(dtype=getattr(module, dtype)) if name == "torch" else model.to(dtype=dtype)
    return model


def step(name, model):
    """What an optimizer does; torch's own load its compiler, which takes seconds."""
    module = framework(name)
    with module.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.copy_(parameter - 0.1 * parameter.grad, False)


def clear(model):
    for parameter in model.parameters():
        parameter.grad = None


def train(name, loop, cut, dtype="float32", some=False):
    """The parameters after some steps, and who has no gradient after the last backward."""
    rank, size = rankspawn.get_rank(), rankspawn.get_world_size()
    plain = make_model(name, seed=rank, dtype=dtype)
    model = rankspawn.DataParallel(plain)
    parts = np.split(np.arange(30), [cut]) if size > 1 else [np.arange(30)]
    inputs, wanted = (tensor(name, each[parts[rank]], dtype) for each in samples())

    def loss():
        return ((model(inputs, some and rank == size - 1) - wanted) ** 2).mean()

    for _ in range(4):
        if loop == "modern":
            loss().backward()
        elif loop == "classic":
            model.scale_loss(loss()).backward()
            model.apply_collective_grads()
            model.apply_collective_grads()
        elif loop == "samples":
            model.scale_loss(loss(), samples=len(parts[rank])).backward()
            model.apply_collective_grads()
        elif loop == "accumulate":
            with model.no_sync():
                loss().backward()
            loss().backward()
        elif loop == "cleared late":  # what was left from the step before, after scale_loss
            scaled = model.scale_loss(loss())
            clear(model)
            scaled.backward()
            model.apply_collective_grads()
        else:
            for _ in range(2):
                model.scale_loss(loss()).backward()
                model.apply_collective_grads()
        none = [key for key, each in model.named_parameters() if each.grad is None]
        step(name, model)
        if loop != "cleared late":
            clear(model)
    assert sorted(model.state_dict()) == sorted(plain.state_dict())
    return {key: numbers(each) for key, each in model.state_dict().items()}, none


def wrap(name):
    """What the wrapper passes on."""
    plain = make_model(name, 0, "float32")
    model = rankspawn.DataParallel(plain)
    model.eval()
    assert not plain.training
    model.note = 7
    assert plain.note == 7
    del model.note
    assert not hasattr(plain, "note")
    for same in (model.to(dtype="float32" if name == "paddle" else None), model.apply(id)):
        assert same is model
    if name == "torch":
        assert model.train().eval() is model
    assert model.first is plain.first
    assert model.module is plain
    assert repr(model).startswith("DataParallel(Model(")
    return type(pickle.loads(pickle.dumps(rankspawn.DataParallel([np.ones(2)])))).__name__


def train_with_ddp():
    """The same with torch's own."""
    import torch

    torch.distributed.init_process_group("gloo")
    rank = rankspawn.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1)
    own, theirs = (type(model)(5, 1) for _ in range(2))
    for other in (own, theirs):
        other.load_state_dict(model.state_dict())
    wrapped = rankspawn.DataParallel(own), torch.nn.parallel.DistributedDataParallel(theirs)
    inputs, wanted = (torch.tensor(each[rank * 15 : rank * 15 + 15]) for each in samples())
    for each in wrapped:
        ((each(inputs) - wanted) ** 2).mean().backward()
    torch.distributed.destroy_process_group()
    return [
        (p.grad - q.grad).abs().max().item()
        for p, q in zip(own.parameters(), theirs.parameters(), strict=True)
    ]


def average_with_jax():
    """Trees whose arrays cannot be written to: there are new ones."""
    import jax
    import jax.numpy as jnp

    rank = rankspawn.get_rank()
    model = rankspawn.DataParallel({"weight": jnp.full(3, rank + 1.0)})
    assert isinstance(model["weight"], jax.Array)
    assert model["weight"].tolist() == [1.0] * 3
    model["weight"] -= model.apply_collective_grads({"weight": jnp.full(3, rank * 1.0)})["weight"]
    assert model["weight"].tolist() == [0.5] * 3
    tree = {"a": [jnp.full(3, rank + 1.0)], "b": jnp.full(4, rank * 2.0, jnp.bfloat16)}
    found = []
    for options in ({}, {"samples": 7}):
        back = rankspawn.all_reduce_gradients(tree, **options)
        leaves = jax.tree_util.tree_leaves(back)
        assert all(isinstance(leaf, jax.Array) for leaf in leaves)
        found += [(str(leaf.dtype), [float(each) for each in leaf]) for leaf in leaves]
    return found


def train_as_documented(loop, sizes):
    """A program of Paddle's documentation, with this package's names; parameters after it."""
    import paddle
    from paddle import nn

    import rankspawn.compat.paddle as dist

    comm = dist.init_parallel_env()
    paddle.seed(dist.get_rank())
    layer = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    dp_layer = dist.DataParallel(layer, find_unused_parameters=True)
    loss_fn = nn.MSELoss()
    adam = paddle.optimizer.Adam(learning_rate=0.01, parameters=dp_layer.parameters())
    ends = np.cumsum(sizes)
    mine = (
        slice(ends[comm.rank] - sizes[comm.rank], ends[comm.rank]) if comm.size > 1 else slice(30)
    )
    inputs, labels = (paddle.to_tensor(each[mine]) for each in samples())
    for _ in range(5):
        loss = loss_fn(dp_layer(inputs), labels)
        if loop == "classic":
            loss = dp_layer.scale_loss(loss)
        elif loop == "uneven":
            loss = dp_layer.scale_loss(loss, samples=len(inputs))
        loss.backward()
        if loop != "modern":
            dp_layer.apply_collective_grads()
        adam.step()
        adam.clear_grad()
    if comm.size > 1:  # Paddle's own names work beside them
        total = paddle.to_tensor([comm.rank + 1.0])
        dist.all_reduce(total)
        assert float(total.sum()) == comm.size * (comm.size + 1) / 2
    return [parameter.numpy() for parameter in layer.parameters()]


def lose_a_rank(name):
    """Rank 1 dies in its second step; what rank 0 gets, which stays to be asked."""
    comm = rankspawn.init_parallel_env()
    model = rankspawn.DataParallel(framework(name).nn.Linear(5, 1))
    inputs = tensor(name, samples()[0])
    model(inputs).mean().backward()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    model(inputs).mean().backward()


def leave_a_backward(loop):
    """What rank 0 gets in Paddle, told step by step, when rank 1 leaves before the backward."""
    import paddle

    comm = rankspawn.init_parallel_env()
    model = rankspawn.DataParallel(paddle.nn.Linear(5, 1))
    told = []
    for steps in range(2):
        loss = model(paddle.to_tensor(samples()[0])).mean()
        if steps and comm.rank == 1:
            break
        try:
            if loop == "classic":
                model.scale_loss(loss).backward()
            elif loop == "kept":
                loss = model.scale_loss(loss)
                loss.backward()
            else:
                loss.backward()
        except (RuntimeError, SystemError) as error:
            told.append((type(error).__name__, getattr(error, "rank", None)))
        try:
            model.apply_collective_grads()
        except RuntimeError as error:
            told.append((type(error).__name__, getattr(error, "rank", None)))
    return told


def free_losses():
    """How many scaled losses of Paddle's are there still, each after its backward or the next."""
    import weakref

    import paddle

    model = rankspawn.DataParallel(paddle.nn.Linear(5, 1))
    kept = []
    for step in range(4):
        loss = model.scale_loss(model(paddle.to_tensor(samples()[0])).mean())
        kept.append(weakref.ref(loss))
        if step % 2:
            loss.backward(retain_graph=True)
            loss.backward()
        del loss
    return sum(each() is not None for each in kept)


def begin_with_buffers(name):
    """Buffers begin as those of rank 0, and each rank's own go on from there."""
    module = framework(name)
    rank = rankspawn.get_rank()
    norm = module.nn.BatchNorm1d(3) if name == "torch" else module.nn.BatchNorm1D(3)
    for buffer in norm.buffers():
        buffer.add_(tensor(name, np.array(rank + 1.0), str(buffer.dtype).rpartition(".")[2]))
    model = rankspawn.DataParallel(norm)
    return [numbers(each).tolist() for each in model.buffers()]
