"""Backwards out of the ordinary, whose gradients are those of one process all the same."""

from __future__ import annotations

import rankspawn
from tests.interop.parallel_cases import clear, framework, numbers, samples, tensor


def make(name):
    """A wrapped model whose first layer can be frozen, and this rank's samples."""
    module = framework(name)
    (module.manual_seed if name == "torch" else module.seed)(0)
    nn = module.nn
    plain = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    rank, size = rankspawn.get_rank(), rankspawn.get_world_size()
    part = slice(rank * 30 // size, (rank + 1) * 30 // size)
    return plain, *(tensor(name, each[part]) for each in samples())


def freeze(name, layer, is_frozen):
    for parameter in layer.parameters():
        if name == "torch":
            parameter.requires_grad = not is_frozen
        else:
            parameter.stop_gradient = is_frozen


def is_unfrozen_later(name, scaled):
    plain, inputs, wanted = make(name)
    freeze(name, plain[0], True)
    model = rankspawn.DataParallel(plain)
    freeze(name, plain[0], False)
    go_back(model, ((model(inputs) - wanted) ** 2).mean(), scaled)
    return plain


def is_replaced_later(name, scaled):
    plain, inputs, wanted = make(name)
    model = rankspawn.DataParallel(plain)
    plain[2], new = framework(name).nn.Linear(8, 1), plain[2]
    freeze(name, new, True)
    go_back(model, ((model(inputs) - wanted) ** 2).mean(), scaled)
    return plain


def goes_back_from_two_losses(name, scaled):
    plain, inputs, wanted = make(name)
    model = rankspawn.DataParallel(plain)
    losses = [((model(inputs) - wanted) ** 2).mean(), (model(inputs) ** 2).mean()]
    if scaled:
        losses = [model.scale_loss(loss) for loss in losses]
    for loss in losses:
        loss.backward()
    return plain


def goes_back_twice_from_one(name, scaled):
    plain, inputs, wanted = make(name)
    model = rankspawn.DataParallel(plain)
    loss = ((model(inputs) - wanted) ** 2).mean()
    if scaled:
        loss = model.scale_loss(loss)
    loss.backward(retain_graph=True)
    loss.backward()
    return plain


def skips_a_scaled_loss(name, scaled):
    plain, inputs, wanted = make(name)
    model = rankspawn.DataParallel(plain)
    model.scale_loss(model(inputs).mean())
    go_back(model, ((model(inputs) - wanted) ** 2).mean(), scaled)
    return plain


def goes_on_after_one_that_failed(name, scaled):
    plain, inputs, wanted = make(name)
    model = rankspawn.DataParallel(plain)
    module = framework(name)
    base = module.autograd.Function if name == "torch" else module.autograd.PyLayer

    class Fails(base):
        @staticmethod
        def forward(_, hidden):
            return hidden * 1

        @staticmethod
        def backward(*_):
            raise MemoryError

    hidden = plain[0](inputs)
    try:
        go_back(model, (plain[2](Fails.apply(hidden)) * plain[2](hidden)).mean(), scaled)
    except (MemoryError, OSError, SystemError):
        pass
    else:
        raise AssertionError("that backward was to fail")
    clear(plain)
    go_back(model, ((model(inputs) - wanted) ** 2).mean(), scaled)
    return plain


def enters_others(name, scaled):
    """A backward inside the backward, as of checkpoints that compute the forward again."""
    plain, inputs, wanted = make(name)
    if name == "torch":
        from torch.utils.checkpoint import checkpoint

        def again(*args):
            return checkpoint(*args, use_reentrant=True)
    else:
        from paddle.distributed.fleet.utils import recompute as again

    model = rankspawn.DataParallel(plain)
    if name == "torch":
        inputs.requires_grad = True
    else:
        inputs.stop_gradient = False
    go_back(model, ((again(plain[2], again(plain[0], inputs)) - wanted) ** 2).mean(), scaled)
    return plain


def go_back(model, loss, scaled):
    (model.scale_loss(loss) if scaled else loss).backward()
    model.apply_collective_grads()


CASES = (
    is_unfrozen_later,
    is_replaced_later,
    goes_back_from_two_losses,
    goes_back_twice_from_one,
    skips_a_scaled_loss,
    goes_on_after_one_that_failed,
    enters_others,
)


def go_back_in_all_ways(name):
    """By case and loop, the gradients."""
    return {
        (case.__name__, scaled): [numbers(each.grad) for each in case(name, scaled).parameters()]
        for case in CASES
        for scaled in (False, True)
    }
