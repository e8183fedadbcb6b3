"""What ``DataParallel`` asks of a model, for each kind of model.

No framework is imported: a model of one can only be here if its module is loaded.
"""

from __future__ import annotations

import sys
import weakref
from importlib import import_module
from typing import Any, Protocol

from rankspawn.parallel.gradients import as_given, open_tree, writable

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

    def after_broadcast(self, given: Any) -> Any:
        """The model that was given, or what takes its place now that all have rank 0's."""

    def look_again(self) -> None:
        """See which parameters are trained now, and forget a backward that did not end."""

    def gradient(self, parameter: Any) -> Any:
        """The gradient, or None."""

    def set_gradient(self, parameter: Any, gradient: Any) -> None:
        """Have it for a gradient; None for none."""

    def take_gradient(self, parameter: Any) -> Any:
        """The gradient, which the parameter has no longer."""

    def zeros(self, parameter: Any) -> Any:
        """A gradient of zeros."""

    def add(self, gradient: Any, other: Any) -> Any:
        """The sum of two gradients, in place of the first where that can be."""

    def before_backward(self, loss: Any, call: Callable[[], None]) -> None:
        """Call this when the backward of this loss begins, if there is one."""

    def after_backward(self, call: Callable[[], None]) -> None:
        """From now on, call this at the end of each backward that reaches a parameter."""

    def take_error(self) -> BaseException | None:
        """What the last call at the end of a backward raised, if nobody got it as what it is."""


class _Layers:
    """What the models of torch and Paddle have in common."""

    has_hooks = True

    def __init__(self, module: Any) -> None:
        self._module = module
        # Called when a gradient has come, once somebody wants to know.
        self._note: Callable[..., None] | None = None
        self._noted: list[Any] = []
        self._is_queued = False
        self.parameters: list[Any] = []
        self.look_again()
        self.buffers: list[Any] = [
            *(each for each in module.parameters() if not self._is_trained(each)),
            *module.buffers(),
        ]

    def after_broadcast(self, given: Any) -> Any:
        """The same: its tensors were written to."""
        return given

    def look_again(self) -> None:
        """See which parameters are trained now: some are unfrozen later, or new."""
        self.parameters = [each for each in self._module.parameters() if self._is_trained(each)]
        if self._note is not None:
            known = {id(each) for each in self._noted}
            for parameter in self.parameters:
                if id(parameter) not in known:
                    self._tell(parameter, self._note)
            self._noted = self.parameters

    def _is_trained(self, parameter: Any) -> bool:
        raise NotImplementedError

    def _tell(self, parameter: Any, note: Callable[..., None]) -> None:
        """Call this whenever the parameter has got a gradient."""
        raise NotImplementedError

    def gradient(self, parameter: Any) -> Any:
        """The gradient, or None."""
        return parameter.grad

    def set_gradient(self, parameter: Any, gradient: Any) -> None:
        """Have it for a gradient; None for none."""
        parameter.grad = gradient


class TorchModel(_Layers):
    """A ``torch.nn.Module``."""

    def __init__(self, module: Any) -> None:
        self._torch = sys.modules["torch"]
        super().__init__(module)

    def look_again(self) -> None:
        """See which parameters are trained now, and forget a backward that did not end."""
        super().look_again()
        # What was to be called at the end of a backward that raised is never called.
        if self._torch._C._current_graph_task_id() == -1:
            self._is_queued = False

    def _is_trained(self, parameter: Any) -> bool:
        return bool(parameter.requires_grad)

    def _tell(self, parameter: Any, note: Callable[..., None]) -> None:
        parameter.register_post_accumulate_grad_hook(note)

    def take_gradient(self, parameter: Any) -> Any:
        """The gradient, which the parameter has no longer."""
        gradient, parameter.grad = parameter.grad, None
        return gradient

    def zeros(self, parameter: Any) -> Any:
        """A gradient of zeros."""
        return self._torch.zeros_like(parameter, memory_format=self._torch.contiguous_format)

    def add(self, gradient: Any, other: Any) -> Any:
        """The sum of two gradients, in place of the first: somebody may hold a view of it."""
        gradient.detach().add_(other.detach())
        return gradient

    def before_backward(self, loss: Any, call: Callable[[], None]) -> None:
        """Call this when the backward of this loss begins, if there is one."""
        if getattr(loss, "requires_grad", False):
            loss.register_hook(lambda _: self._begin(call))

    def _begin(self, call: Callable[[], None]) -> None:
        call()
        # The end of this backward is meant, not that of one inside it (checkpoints that re-enter).
        if self._note is not None:
            self._note()

    def after_backward(self, call: Callable[[], None]) -> None:
        """From now on, call this at the end of each backward that reaches a parameter."""
        engine = self._torch.autograd.Variable._execution_engine

        def finish() -> None:
            self._is_queued = False
            call()

        def note(_: Any = None) -> None:
            if not self._is_queued:
                self._is_queued = True
                engine.queue_callback(finish)

        self._note = note
        self.look_again()

    def take_error(self) -> BaseException | None:
        """None: it leaves torch's backward as it is."""
        return None


class PaddleModel(_Layers):
    """A ``paddle.nn.Layer``.

    Paddle makes a ``SystemError`` of whatever is raised at the end of a backward, so it is kept.
    """

    def __init__(self, layer: Any) -> None:
        self._paddle = sys.modules["paddle"]
        self._error: BaseException | None = None
        self._last_scaled: weakref.ref[_Backward] | None = None
        self._call: Callable[[], None] = lambda: None
        # In the backward of a scaled loss, and what is called at its end is to be called.
        self._is_inside = self._is_late = False
        super().__init__(layer)

    def _is_trained(self, parameter: Any) -> bool:
        return not parameter.stop_gradient

    def _tell(self, parameter: Any, note: Callable[..., None]) -> None:
        parameter._register_backward_hook(note)

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
            if self._is_inside:
                self._is_late = True
                return
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

        self._note, self._call = note, call
        self.look_again()

    def go_back(self, backward: Callable[[], Any]) -> Any:
        """Go backward from a loss, and call what is to be called when all of it has ended.

        Paddle does so at the end of a backward inside it, too, where some gradients have not come.
        """
        self._error = None  # one of an earlier backward
        self._is_inside, self._is_late = True, False
        try:
            result = backward()
        finally:
            self._is_inside = False
        if self._is_late:
            self._call()
        return result

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
        return self._model.go_back(lambda: self._loss.backward(*args, **kwargs))


class ArrayModel:
    """Arrays in dicts and lists, which have no gradients of their own."""

    has_hooks = False

    def __init__(self, tree: Any) -> None:
        self.parameters: list[Any] = []
        self._leaves, self._rebuild = open_tree(tree)
        self.buffers: list[Any] = [writable(leaf) for leaf in self._leaves]

    def after_broadcast(self, given: Any) -> Any:
        """The same tree; another one if an array of it, as JAX's, could not be written to."""
        pairs = [*zip(self._leaves, self.buffers, strict=True)]
        if all(leaf is copy for leaf, copy in pairs):
            return given
        return self._rebuild([as_given(leaf, copy) for leaf, copy in pairs])

    def look_again(self) -> None:
        """There are no parameters that could be others."""

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
