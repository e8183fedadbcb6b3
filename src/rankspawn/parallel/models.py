"""What ``DataParallel`` asks of a model, for each kind of model.

No framework is imported: a model of one can only be here if its module is loaded.
"""

from __future__ import annotations

import sys
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


class PaddleModel:
    """A ``paddle.nn.Layer``."""

    has_hooks = True

    def __init__(self, layer: Any) -> None:
        everything = [*layer.parameters()]
        self.parameters: list[Any] = [each for each in everything if not each.stop_gradient]
        self.buffers: list[Any] = [each for each in everything if each.stop_gradient] + [
            *layer.buffers()
        ]
        self._paddle = sys.modules["paddle"]
        self._is_queued = False

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

    def after_backward(self, call: Callable[[], None]) -> None:
        """From now on, call this at the end of each backward that reaches a parameter."""
        eager = import_module("paddle.base.core").eager

        def finish() -> None:
            self._is_queued = False
            call()

        def note() -> None:
            if not self._is_queued:
                self._is_queued = True
                eager._add_backward_final_hook(finish)

        for parameter in self.parameters:
            parameter._register_backward_hook(note)


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
