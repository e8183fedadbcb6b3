"""The names of ``paddle.distributed``, without Paddle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rankspawn
from rankspawn import MultiprocessContext, RankLostError
from rankspawn.compat import paddle as dist
from tests import jobs


def replace_ours(monkeypatch: pytest.MonkeyPatch, init: Callable[..., object]) -> None:
    # Not in the module that it comes from: others that are loaded meanwhile would keep it.
    ours = SimpleNamespace(init_parallel_env=init)
    monkeypatch.setattr("rankspawn.compat.paddle_parallel.environment", ours)


def who_am_i() -> tuple[int, int, int]:
    return dist.get_rank(), dist.get_world_size(), dist.ParallelEnv().rank


def test_a_program_of_the_documentation() -> None:
    context = dist.spawn(who_am_i, nprocs=2, backend="gloo", start_method="fork")

    assert context.results() == [(0, 2, 0), (1, 2, 1)]


def train_classic() -> list[float]:
    comm = dist.init_parallel_env()
    model = dist.DataParallel(
        [np.full(2, comm.rank + 5.0)], find_unused_parameters=True, group=comm
    )
    assert model._layers is model.module
    gradients = [np.full(2, model.scale_loss(comm.rank + 1.0))]
    model.apply_collective_grads(gradients)
    return [float(model[0][0]), float(gradients[0][0])]


def test_ranks_talk_without_paddle() -> None:
    context = dist.spawn(train_classic, nprocs=2, backend="gloo", start_method="fork")

    assert context.results() == [[5.0, 1.5]] * 2


@pytest.mark.parametrize("name", dist.__all__)
def test_a_name_is_there(name: str) -> None:
    assert getattr(dist, name) is not None
    assert name in dir(dist)


def test_launch_is_rankruns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankspawn.launch.cli.main", lambda: 7)

    with pytest.raises(SystemExit) as caught:
        dist.launch()

    assert caught.value.code == 7


@pytest.fixture
def paddle_loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("paddle", "paddle.distributed"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    return sys.modules["paddle.distributed"]


def test_all_other_names_are_paddles_own(paddle_loaded: Any) -> None:
    paddle_loaded.all_reduce = object()
    paddle_loaded.get_rank = paddle_loaded.get_world_size = lambda group: group + 1

    assert dist.all_reduce is paddle_loaded.all_reduce
    assert (dist.get_rank(5), dist.get_world_size(group=7)) == (6, 8)


def test_paddles_own_ranks_are_set_up_too(
    paddle_loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    paddle_loaded.init_parallel_env = lambda: done.append("theirs")
    replace_ours(monkeypatch, lambda *args: args)

    assert dist.init_parallel_env(timeout=3.0) == ("auto", 3.0)
    assert done == ["theirs"]


@pytest.mark.parametrize("error", [RuntimeError("on 2 machines"), RankLostError("gone", 1, "x")])
def test_where_ours_cannot_be_theirs_is_what_there_is(
    error: Exception, paddle_loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    paddle_loaded.init_parallel_env = lambda: "theirs"
    replace_ours(monkeypatch, refuse)

    if type(error) is RuntimeError:
        assert dist.init_parallel_env() == "theirs"
    else:  # not because ours cannot be, but because it was
        with pytest.raises(RankLostError):
            dist.init_parallel_env()


def test_a_group_of_paddles_for_some_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    all_ranks = SimpleNamespace(size=4)
    replace_ours(monkeypatch, lambda: all_ranks)

    with pytest.raises(ValueError, match=r"of 3 ranks is Paddle's: give the communicator"):
        dist.DataParallel([np.ones(2)], group=SimpleNamespace(nranks=3))


def test_without_paddle_its_names_are_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "paddle", None)

    with pytest.raises(AttributeError, match=r"paddle\.distributed's, but paddle is not installed"):
        _ = dist.all_reduce


def test_what_paddle_itself_lacks_is_not_taken_for_paddle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "paddle"
    package.mkdir()
    (package / "__init__.py").write_text("import a_module_that_nobody_has")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "paddle", raising=False)
    monkeypatch.delitem(sys.modules, "paddle.distributed", raising=False)

    with pytest.raises(ModuleNotFoundError, match="a_module_that_nobody_has"):
        _ = dist.all_reduce


class PaddlesContext:
    def __init__(self, *_: object) -> None:
        raise AssertionError("ours is made in our way")


def test_the_context_is_paddles_too(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("paddle.distributed.spawn")
    module.MultiprocessContext = PaddlesContext
    monkeypatch.setitem(sys.modules, module.__name__, module)

    context = rankspawn.spawn(jobs.return_rank, nprocs=1, backend="gloo", start_method="fork")

    assert isinstance(context, PaddlesContext)
    assert isinstance(context, MultiprocessContext)
    assert repr(context) == "<MultiprocessContext: 1 rank, 1 returned>"
    assert context.results() == [0]


def test_a_class_that_cannot_be_a_base_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("paddle.distributed.spawn")
    module.MultiprocessContext = bool  # which is final
    monkeypatch.setitem(sys.modules, module.__name__, module)

    context = rankspawn.spawn(jobs.return_rank, nprocs=1, backend="gloo", start_method="fork")

    assert type(context) is MultiprocessContext


def test_nothing_more_is_imported_with_it(tmp_path: Path) -> None:
    code = (
        "import sys, rankspawn; before = {*sys.modules}\n"
        "import rankspawn.compat.paddle; print(sorted({*sys.modules} - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout == "['rankspawn.compat', 'rankspawn.compat.paddle']\n"
