"""``DataParallel``: the same model on every rank, trained on the samples of all of them."""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from typing import Any

from rankspawn.caller import at_users_line
from rankspawn.parallel.buffers import flatten, need_numpy
from rankspawn.parallel.devices import is_on_device, reduce_on_devices
from rankspawn.parallel.environment import init_parallel_env
from rankspawn.parallel.gradients import Buckets, all_reduce_gradients, share_of_samples
from rankspawn.parallel.models import find_model

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankspawn.parallel.communicator import Communicator

_OWN = "_data_parallel"
# Methods of torch's modules and Paddle's layers that return what they are called on.
_RETURN_THE_MODEL = frozenset((
    "train", "eval", "to", "cpu", "cuda", "float", "double", "half", "bfloat16", "type", "apply",
    "requires_grad_", "float16", "astype",
))  # fmt: skip


class _Exchange:
    """The gradients of one wrapped model, and how far their exchange is."""

    def __init__(self, model: Any, comm: Communicator) -> None:
        self.comm = comm
        self.model = find_model(model)
        self.syncs = True
        # scale_loss was called since the last exchange, whether or not a backward came of it.
        self.is_scaled = False
        # The backward of a scaled loss has begun since then: gradients are parts of a sum.
        self.is_sum = False
        # There are gradients that no other rank knows of.
        self.is_due = False
        # Gradients that are the same on all ranks already, from before this backward.
        self.kept: list[tuple[Any, Any]] = []
        self._is_set_aside = False
        self._buckets = Buckets(comm)

    def broadcast(self) -> None:
        tensors = [*self.model.parameters, *self.model.buffers]
        for tensor in tensors:  # on rank 0 too, which is not going to: all refuse it, or none
            if not is_on_device(tensor):
                flatten(tensor, writable=True)
        for tensor in tensors:
            self.comm.broadcast(tensor)

    def scale(self, loss: Any, samples: float | None) -> Any:
        self.is_scaled = True
        if samples is not None:
            loss = loss * share_of_samples(self.comm, samples)
        elif self.comm.size > 1:
            loss = loss / self.comm.size
        if self.comm.size > 1:
            self.model.look_again()
            # Not now: gradients may be cleared between this and the backward.
            self.model.before_backward(loss, self.begin_sum)
        return loss

    def begin_sum(self) -> None:
        """Keep what the ranks have agreed on out of the sum of what comes now."""
        self.is_sum = True
        if self.is_due or self._is_set_aside:
            return
        self._is_set_aside = True
        for parameter in self.model.parameters:
            if self.model.gradient(parameter) is not None:
                self.kept.append((parameter, self.model.take_gradient(parameter)))

    def after_backward(self) -> None:
        self.is_due = True
        if self.syncs:
            self.run()

    @property
    def is_waiting(self) -> bool:
        """There is something to exchange, and nothing else that does it."""
        has_news = self.is_due or self.is_scaled
        return has_news and self.syncs and self.comm.size > 1 and self.model.has_hooks

    def run(self) -> None:
        """Exchange, once for each time that there is something to exchange."""
        model, numpy = self.model, need_numpy("gradients are to be exchanged")
        model.look_again()
        gradients = [model.gradient(parameter) for parameter in model.parameters]
        used = numpy.array([gradient is not None for gradient in gradients], numpy.uint8)
        self.comm.all_reduce(used, "max")
        for parameter, gradient, is_used in zip(model.parameters, gradients, used, strict=True):
            if gradient is None and is_used:  # by others only
                model.set_gradient(parameter, model.zeros(parameter))
        chosen = [each for each, is_used in zip(model.parameters, used, strict=True) if is_used]
        found = [model.gradient(parameter) for parameter in chosen]
        op = "sum" if self.is_sum else "avg"
        here = [flatten(each, writable=True) for each in found if not is_on_device(each)]
        self._buckets.reduce(here, op)
        reduce_on_devices(self.comm, [each for each in found if is_on_device(each)], op)
        for parameter, kept in self.kept:
            gradient = model.gradient(parameter)
            total = kept if gradient is None else model.add(kept, gradient)
            model.set_gradient(parameter, total)
        self.kept.clear()
        self.is_due = self.is_scaled = self.is_sum = self._is_set_aside = False


class DataParallel:
    """A model whose gradients are those of the mean loss over the samples of all ranks.

    After backward, and ``apply_collective_grads`` if it is called, every rank holds the same
    gradients, to the bit. Two loops do it::

        loss.backward(); optimizer.step()
        model.scale_loss(loss).backward(); model.apply_collective_grads(); optimizer.step()

    Calls and attributes go to the model that is wrapped, so checkpoints have its names; a pickle
    has the model alone.

    Args:
        model: A torch module, a Paddle layer, or a dict or list of arrays. Arrays that cannot be
            written to, as JAX's, are replaced by others in ``module``.
        comm: The ranks; None for all of the job.
        broadcast: Give all ranks the parameters and buffers of rank 0 first.

    Raises:
        TypeError: The model is of no known kind.
    """

    def __init__(
        self, model: Any, comm: Communicator | None = None, broadcast: bool = True
    ) -> None:
        exchange = _Exchange(model, comm or init_parallel_env())
        if broadcast:
            exchange.broadcast()
            model = exchange.model.after_broadcast(model)
        object.__setattr__(self, "module", model)
        object.__setattr__(self, _OWN, exchange)
        if exchange.comm.size > 1:
            exchange.model.after_backward(exchange.after_backward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        exchange: _Exchange = getattr(self, _OWN)
        if exchange.comm.size > 1:
            exchange.model.look_again()
        return self.module(*args, **kwargs)

    @at_users_line
    def scale_loss(self, loss: Any, samples: float | None = None) -> Any:
        """The loss as this rank's part of the mean over all ranks.

        Args:
            loss: The mean over this rank's samples.
            samples: How many these are; all ranks say so, or none. Without it, all have as many.
        """
        exchange: _Exchange = getattr(self, _OWN)
        return exchange.scale(loss, samples)

    @at_users_line
    def apply_collective_grads(self, gradients: Any = None, samples: float | None = None) -> Any:
        """Make sure that the gradients are those of all ranks; a second call does nothing.

        After a backward they are already. It exchanges them for a rank whose backward, after
        ``scale_loss``, reached no parameter, and for arrays, whose gradients are given to it.

        Args:
            gradients: Of a dict or list of arrays: a tree of the same structure, changed in place.
            samples: How many samples they are the mean of; see :meth:`scale_loss`.

        Returns:
            The gradients that were given.

        Raises:
            BaseException: Of the exchange at the end of a backward, if Paddle made another of it.
        """
        exchange: _Exchange = getattr(self, _OWN)
        if gradients is not None:
            average = not exchange.is_scaled
            exchange.is_scaled = False
            return all_reduce_gradients(gradients, average, samples, comm=exchange.comm)
        error = exchange.model.take_error()
        if error is not None:
            raise error
        if exchange.is_waiting:
            if not exchange.is_due:  # no backward of this rank has come to a parameter
                exchange.begin_sum()
            exchange.run()
        return None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A block in which gradients add up on each rank; the next backward exchanges them."""
        exchange: _Exchange = getattr(self, _OWN)
        before, exchange.syncs = exchange.syncs, False
        try:
            yield
        finally:
            exchange.syncs = before

    def __getattr__(self, name: str) -> Any:
        if name in ("module", _OWN):  # while a copy is being made
            raise AttributeError(name)
        found = getattr(self.module, name)
        is_methods = name in _RETURN_THE_MODEL and getattr(found, "__self__", None) is self.module
        return self._returning_this(found) if is_methods else found

    def _returning_this(self, method: Any) -> Any:
        """The model's method, after which ``model = model.train()`` still is this object."""

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            return self if result is self.module else result

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.module, name)

    def __getitem__(self, key: Any) -> Any:
        """A part of the model."""
        return self.module[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.module[key] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)

    def __len__(self) -> int:
        """How many parts the model has."""
        return len(self.module)

    def __bool__(self) -> bool:
        """Always, also if the model has no parts that could be counted."""
        return True

    def __repr__(self) -> str:
        return f"DataParallel({self.module!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self.module,)


def _same(model: Any) -> Any:
    return model
