"""What ``DataParallel`` asks of a model, with one that is like Paddle's: see also interop."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import rankspawn
from rankspawn.parallel.models import ArrayModel, PaddleModel

FINAL_HOOKS: list[Callable[[], None]] = []


class Loss:
    """A tensor of Paddle's, as far as it goes backward."""

    stop_gradient = False

    def __init__(self, parameter: Parameter) -> None:
        self._parameter = parameter
        self._hooks: list[Callable[[Any], None]] = []

    def register_hook(self, hook: Callable[[Any], None]) -> None:
        self._hooks.append(hook)

    def backward(self, retain_graph: bool = False) -> None:
        self.is_kept = retain_graph
        try:
            for hook in self._hooks:
                hook(None)
            for note in self._parameter.hooks:
                note()
            while FINAL_HOOKS:
                FINAL_HOOKS.pop()()
        except Exception as error:
            raise SystemError("returned a result with an exception set") from error


class Parameter:
    stop_gradient = False

    def __init__(self) -> None:
        self.hooks: list[Callable[[], None]] = []

    def _register_backward_hook(self, hook: Callable[[], None]) -> None:
        self.hooks.append(hook)


@pytest.fixture
def parameter(monkeypatch: pytest.MonkeyPatch) -> Parameter:
    eager = SimpleNamespace(_add_backward_final_hook=FINAL_HOOKS.append)
    monkeypatch.setitem(sys.modules, "paddle", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "paddle.base", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "paddle.base.core", SimpleNamespace(eager=eager))
    return Parameter()


def make_model(parameter: Parameter, exchange: Callable[[], None]) -> PaddleModel:
    layer = SimpleNamespace(parameters=lambda: [parameter], buffers=list)
    model = PaddleModel(layer)
    model.after_backward(exchange)
    return model


def lose_a_rank() -> None:
    raise rankspawn.RankLostError("rank 1 is lost", 1, "all_reduce")


def fail_otherwise() -> None:
    raise ValueError("of a hook of the user's")


def end_inside() -> None:
    while FINAL_HOOKS:
        FINAL_HOOKS.pop()()


def scaled(model: PaddleModel, parameter: Parameter) -> Any:
    loss = Loss(parameter)
    model.before_backward(loss, lambda: None)
    return loss


def test_an_error_leaves_the_backward_of_a_scaled_loss_as_it_is(parameter: Parameter) -> None:
    model = make_model(parameter, lose_a_rank)

    with pytest.raises(rankspawn.RankLostError, match="rank 1 is lost"):
        scaled(model, parameter).backward()

    assert model.take_error() is None


def test_else_it_is_kept_for_whoever_asks_and_for_once(parameter: Parameter) -> None:
    model = make_model(parameter, lose_a_rank)

    with pytest.raises(SystemError):
        Loss(parameter).backward()

    assert isinstance(model.take_error(), rankspawn.RankLostError)
    assert model.take_error() is None


def test_a_system_error_of_paddles_own_is_none_of_the_exchange(parameter: Parameter) -> None:
    model = make_model(parameter, lose_a_rank)
    with pytest.raises(SystemError):
        Loss(parameter).backward()
    other = Parameter()
    other.hooks.append(fail_otherwise)

    with pytest.raises(SystemError) as caught:
        scaled(model, other).backward()

    assert isinstance(caught.value.__cause__, ValueError)


def test_an_exchange_that_went_well_forgets_the_one_before(parameter: Parameter) -> None:
    fails = [True, False]
    model = make_model(parameter, lambda: lose_a_rank() if fails.pop(0) else None)
    with pytest.raises(SystemError):
        Loss(parameter).backward()

    Loss(parameter).backward()

    assert model.take_error() is None


def test_a_loss_goes_backward_twice_and_is_freed_without_the_garbage_collector(
    parameter: Parameter,
) -> None:
    calls: list[int] = []
    model = make_model(parameter, lambda: calls.append(1))
    first = scaled(model, parameter)
    first.backward(retain_graph=True)
    first.backward()
    never = scaled(model, parameter)
    gone = [weakref.ref(first), weakref.ref(never)]

    del first, never
    last = scaled(model, parameter)

    assert [each() for each in gone] == [None, None]
    assert "backward" in vars(last)
    assert calls == [1, 1]


def test_a_backward_inside_that_of_a_scaled_loss_is_not_its_end(parameter: Parameter) -> None:
    calls: list[str] = []
    model = make_model(parameter, lambda: calls.append("exchange"))
    parameter.hooks.append(end_inside)
    parameter.hooks.append(lambda: calls.append("last gradient"))

    scaled(model, parameter).backward()

    assert calls == ["last gradient", "exchange"]


def test_parameters_that_come_later_are_seen(parameter: Parameter) -> None:
    calls: list[int] = []
    model = make_model(parameter, lambda: calls.append(1))
    later = Parameter()
    model._module.parameters = lambda: [parameter, later]

    for _ in range(2):
        model.look_again()
    Loss(later).backward()

    assert model.parameters == [parameter, later]
    assert [len(each.hooks) for each in model.parameters] == [1, 1]
    assert calls == [1]


def test_a_loss_without_a_gradient_stays_as_it_is(parameter: Parameter) -> None:
    loss = Loss(parameter)
    loss.stop_gradient = True

    make_model(parameter, lose_a_rank).before_backward(loss, lambda: None)

    assert "backward" not in vars(loss)


def test_arrays_have_no_backward_that_could_fail() -> None:
    assert ArrayModel([]).take_error() is None
