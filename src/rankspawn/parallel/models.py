"""What ``DataParallel`` asks of a model, for each kind of model.

No framework is imported: a model of one can only be here if its module is loaded.
"""

from __future__ import annotations

import sys
import weakref
from importlib import import_module
from typing import Any, Protocol

from rankspawn.parallel.gradients import open_tree

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable


class Model(Protocol):
    """A model as it is seen by whoever exchanges its gradients."""

    parameters: list[Any]
    """Those that are trained, in the same order on every rank."""
    buffers: list[Any]
    """What else rank 0 gives the others at the beginning: other parameters, running means."""
    has_hooks: bool
    """Whether it tells when a backward has ended."""

    def gradient(self, parameter: Any) -> Any:
        """The gradient, or None."""

    def set_gradient(self, parameter: Any, gradient: Any) -> None:
        """Have it for a gradient; None for none."""

    def take_gradient(self, parameter: Any) -> Any:
        """The gradient, which the parameter has no longer."""

    def zeros(self, parameter: Any) -> Any:
        """A gradient of zeros."""

    def add(self, gradient: Any, other: Any) -> Any:
        """The sum of two gradients."""

    def before_backward(self, loss: Any, call: Callable[[], None]) -> None:
        """Call this when the backward of this loss begins, if there is one."""

    def after_backward(self, call: Callable[[], None]) -> None:
        """From now on, call this at the end of each backward that reaches a parameter."""

    def take_error(self) -> BaseException | None:
        """What the last call at the end of a backward raised, if nobody got it as what it is."""


class TorchModel:
    """A ``torch.nn.Module``."""

    has_hooks = True

    def __init__(self, module: Any) -> None:
        everything = [*module.parameters()]
        self.parameters: list[Any] = [each for each in everything if each.requires_grad]
        self.buffers: list[Any] = [each for each in everything if not each.requires_grad] + [
            *module.buffers()
        ]
        self._torch = sys.modules["torch"]
        self._is_queued = False

    def gradient(self, parameter: Any) -> Any:
        """The gradient, or None."""
        return parameter.grad

    def set_gradient(self, parameter: Any, gradient: Any) -> None:
        """Have it for a gradient; None for none."""
        parameter.grad = gradient

    def take_gradient(self, parameter: Any) -> Any:
        """The gradient, which the parameter has no longer."""
        gradient, parameter.grad = parameter.grad, None
        return gradient

    def zeros(self, parameter: Any) -> Any:
        """A gradient of zeros."""
        return self._torch.zeros_like(parameter, memory_format=self._torch.contiguous_format)

    def add(self, gradient: Any, other: Any) -> Any:
        """The sum of two gradients."""
        return gradient + other

    def before_backward(self, loss: Any, call: Callable[[], None]) -> None:
        """Call this when the backward of this loss begins, if there is one."""
        if getattr(loss, "requires_grad", False):
            loss.register_hook(lambda _: call())

    def after_backward(self, call: Callable[[], None]) -> None:
        """From now on, call this at the end of each backward that reaches a parameter."""
        engine = self._torch.autograd.Variable._execution_engine

        def finish() -> None:
            self._is_queued = False
            call()

        def note(_: Any) -> None:
            if not self._is_queued:
                self._is_queued = True
                engine.queue_callback(finish)

        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(note)

    def take_error(self) -> BaseException | None:
        """None: it leaves torch's backward as it is."""
        return None


class PaddleModel:
    """A ``paddle.nn.Layer``.

    Paddle makes a ``SystemError`` of whatever is raised at the end of a backward, so it is kept.
    """

    has_hooks = True

    def __init__(self, layer: Any) -> None:
        everything = [*layer.parameters()]
        self.parameters: list[Any] = [each for each in everything if not each.stop_gradient]
        self.buffers: list[Any] = [each for each in everything if each.stop_gradient] + [
            *layer.buffers()
        ]
        self._paddle = sys.modules["paddle"]
        self._is_queued = False
        self._error: BaseException | None = None
        self._last_scaled: weakref.ref[_Backward] | None = None

    def gradient(self, parameter: Any) -> Any:
        """The gradient, or None."""
        return parameter.grad

    def set_gradient(self, parameter: Any, gradient: Any) -> None:
        """Have it for a gradient; None for none."""
        parameter.grad = gradient

    def take_gradient(self, parameter: Any) -> Any:
        """The gradient, which the parameter has no longer."""
        # A copy: the tensor loses its memory when the parameter loses it.
        gradient = parameter.grad.clone()
        parameter.grad = None
        return gradient

    def zeros(self, parameter: Any) -> Any:
        """A gradient of zeros."""
        return self._paddle.zeros(parameter.shape, dtype=parameter.dtype)

    def add(self, gradient: Any, other: Any) -> Any:
        """The sum of two gradients."""
        return gradient + other

    def before_backward(self, loss: Any, call: Callable[[], None]) -> None:
        """Call this when the backward of this loss begins, if there is one."""
        if not getattr(loss, "stop_gradient", True):
            loss.register_hook(lambda _: call())
            last = None if self._last_scaled is None else self._last_scaled()
            if last is not None:
                last.let_go()
            self._last_scaled = weakref.ref(_Backward(loss, self))

    def after_backward(self, call: Callable[[], None]) -> None:
        """From now on, call this at the end of each backward that reaches a parameter."""
        eager = import_module("paddle.base.core").eager

        def finish() -> None:
            self._is_queued = False
            self._error = None
            try:
                call()
            except BaseException as error:
                self._error = error
                raise

        def note() -> None:
            if not self._is_queued:
                self._is_queued = True
                eager._add_backward_final_hook(finish)

        for parameter in self.parameters:
            parameter._register_backward_hook(note)

    def take_error(self) -> BaseException | None:
        """What the last call at the end of a backward raised, if nobody got it as what it is."""
        error, self._error = self._error, None
        return error


class _Backward:
    """The ``backward`` of one loss of Paddle's: errors of the exchange leave it as they are.

    It takes its place on the loss until it is called, or another loss is scaled. The loss must be
    held by it: in ``scale_loss(loss).backward()`` nothing else does. Paddle's tensors are not known
    to the garbage collector, so what they hold in turn has to let go by itself.
    """

    def __init__(self, loss: Any, model: PaddleModel) -> None:
        self._loss = loss
        self._model = model
        loss.backward = self

    def let_go(self) -> None:
        """Give the loss its own one back."""
        if self._loss.__dict__.get("backward") is self:
            del self._loss.backward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Go backward, as Paddle does."""
        self.let_go()
        self._model.take_error()  # one of an earlier backward
        try:
            return self._loss.backward(*args, **kwargs)
        except SystemError:
            error = self._model.take_error()
            if error is None:
                raise
        # Out of the except block: the SystemError has this one as its cause already.
        raise error


class ArrayModel:
    """Arrays in dicts and lists, which have no gradients of their own."""

    has_hooks = False

    def __init__(self, tree: Any) -> None:
        self.parameters: list[Any] = []
        self.buffers: list[Any] = open_tree(tree)[0]

    def gradient(self, _parameter: Any) -> Any:
        """None: whoever has the gradients gives them to ``apply_collective_grads``."""
        return None

    def set_gradient(self, parameter: Any, gradient: Any) -> None:
        """There is no place for it."""

    def take_gradient(self, parameter: Any) -> Any:
        """There is none."""

    def zeros(self, parameter: Any) -> Any:
        """None is needed."""

    def add(self, gradient: Any, other: Any) -> Any:
        """The sum of two gradients."""
        return gradient + other

    def before_backward(self, loss: Any, call: Callable[[], None]) -> None:
        """There is no backward."""

    def after_backward(self, call: Callable[[], None]) -> None:
        """There is no backward."""

    def take_error(self) -> BaseException | None:
        """There is no backward."""
        return None


def find_model(model: Any) -> Model:
    """The kind of a model.

    Raises:
        TypeError: It is none that is known.
    """
    torch, paddle = sys.modules.get("torch"), sys.modules.get("paddle")
    if torch is not None and isinstance(model, torch.nn.Module):
        return TorchModel(model)
    if paddle is not None and isinstance(model, paddle.nn.Layer):
        return PaddleModel(model)
    if isinstance(model, dict | list | tuple):
        return ArrayModel(model)
    raise TypeError(
        f"{type(model).__name__} is no torch module, no Paddle layer, and no dict or list of arrays"
    )
