"""Gradients in trees of arrays, averaged over ranks and samples."""

from __future__ import annotations

import pickle
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import rankspawn
from rankspawn.parallel.gradients import open_tree
from rankspawn.parallel.reducing import check_operation
from tests.parallel import cases
from tests.parallel.crew import run_crew, values

Pair = namedtuple("Pair", ["weight", "bias"])


def make_tree(rank: int, large: bool) -> dict[str, Any]:
    count = 20_000 if large else 10
    return {
        "layers": [np.full((count, 2), rank + 1.0, "float32"), None],
        "pair": Pair(np.full(3, rank * 2.0), np.full((2, 4), float(rank)).T),
        "half": np.full(5, rank + 1.0, "float16"),
    }


def average(large: bool) -> list[list[float]]:
    comm = cases.connect()
    found = []
    options: list[dict[str, Any]] = [{}, {"average": False}, {"samples": 1 + 2 * comm.rank}]
    for option in options:
        tree = make_tree(comm.rank, large)
        for _ in range(2):  # with what is kept, too
            tree = make_tree(comm.rank, large)
            back = rankspawn.all_reduce_gradients(tree, **option)
            assert back["layers"][0] is tree["layers"][0]
            assert back["layers"][1] is None
            assert type(back["pair"]) is Pair
            leaves, _ = open_tree(back)
            assert all((leaf == leaf.flat[0]).all() for leaf in leaves)
        found.append([float(leaf.flat[0]) for leaf in leaves])
    return found


@pytest.mark.parametrize("large", [False, True])
def test_gradients_are_averaged_summed_and_weighed(large: bool) -> None:
    for mean, total, weighed in values(run_crew(2, average, large)):
        assert mean == [1.5, 1.5, 1.0, 0.5]
        assert total == [3.0, 3.0, 2.0, 1.0]
        assert weighed == [1.75, 1.75, 1.5, 0.75]


def weigh_nothing() -> list[list[float]]:
    comm = cases.connect()
    found = []
    for dtype in ("float64", "float16"):
        gradient = np.full(2, np.nan if comm.rank else 3.0, dtype)
        rankspawn.all_reduce_gradients([gradient], samples=0 if comm.rank else 4)
        found.append(gradient.tolist())
    return found


def test_the_mean_of_no_samples_counts_as_nothing_also_if_it_is_no_number() -> None:
    assert values(run_crew(2, weigh_nothing)) == [[[3.0, 3.0]] * 2] * 2


def average_in_another_order() -> tuple[list[str], dict[str, float]]:
    comm = cases.connect()
    names = ["weight", "bias"] if comm.rank else ["bias", "weight"]
    tree = {name: np.full(2, comm.rank + len(name)) * 1.0 for name in names}
    back = rankspawn.all_reduce_gradients({"layer": tree})["layer"]
    return [*back], {name: float(each[0]) for name, each in back.items()}


def test_what_belongs_together_is_told_by_its_key_not_by_its_place() -> None:
    for rank, (names, found) in enumerate(values(run_crew(2, average_in_another_order))):
        assert found == {"bias": 4.5, "weight": 6.5}
        assert names == (["weight", "bias"] if rank else ["bias", "weight"])


def bring_other_shapes(large: bool) -> str:
    comm = cases.connect()
    shapes = [(3, 2), (8,)] if comm.rank else [(8,), (3, 2)]
    more = [np.ones(20_000)] if large else []
    with pytest.raises(rankspawn.CollectiveMismatchError) as caught:
        rankspawn.all_reduce_gradients([*(np.ones(shape) for shape in shapes), *more])
    return str(caught.value)


@pytest.mark.parametrize("large", [False, True])
def test_gradients_of_other_shapes_are_no_mean_also_if_they_are_as_many(large: bool) -> None:
    for story in values(run_crew(2, bring_other_shapes, large)):
        assert "[3, 2] [8]" in story
        assert "[8] [3, 2]" in story


def refuse() -> list[str]:
    comm = cases.connect()
    stories = []
    for call in (
        lambda: rankspawn.all_reduce_gradients([np.ones(2, int)]),
        lambda: rankspawn.all_reduce_gradients([np.ones(2)], samples=0),
        lambda: rankspawn.all_reduce_gradients([np.ones(2)], samples=float("nan")),
        lambda: rankspawn.DataParallel(object()),
        lambda: rankspawn.DataParallel([np.ones(2), b"fixed"]),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        stories.append(str(caught.value))
    counts = rankspawn.all_reduce_gradients([np.full(2, comm.rank)], average=False)
    assert counts[0].tolist() == [1, 1]  # a sum goes, and it can be used all the same
    return stories


def test_what_makes_no_sense_is_refused_and_does_no_harm() -> None:
    for whole, none, nan, unknown, fixed in values(run_crew(2, refuse)):
        assert "has no fractions" in whole
        assert "at least one has some" in none
        assert "[nan, nan]" in nan
        assert "no torch module, no Paddle layer" in unknown
        assert "must not be written to" in fixed


class Parts(dict[str, Any]):
    """A dict that returns itself as torch's modules do."""

    half = "of it"

    def train(self) -> Parts:
        return self

    def eval(self) -> int:
        return 7


def test_a_method_that_returns_the_model_returns_what_wraps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rankspawn.parallel.environment._current", None)
    model = rankspawn.DataParallel(Parts(weight=np.ones(2)))

    assert model.train() is model
    assert model.eval() == 7
    assert model.half == "of it"
    model.note = 1
    del model.note
    assert not hasattr(model.module, "note")
    model._data_parallel.comm.close()


@pytest.mark.parametrize("dtype", ["complex32", "float8_e4m3fn"])
def test_types_that_numpy_has_not_are_refused_before_the_call_is_announced(dtype: str) -> None:
    with pytest.raises(TypeError, match=f"{dtype} cannot be reduced"):
        check_operation("sum", dtype)


def begin_with_fixed_arrays() -> list[float]:
    comm = cases.connect()
    fixed, free = np.full(2, comm.rank + 1.0), np.full(2, comm.rank + 2.0)
    fixed.flags.writeable = False
    model = rankspawn.DataParallel({"fixed": fixed, "free": free})
    assert model["free"] is free
    assert fixed[0] == comm.rank + 1.0
    return [*model["fixed"], *model["free"]]


def test_arrays_that_cannot_be_written_to_are_replaced() -> None:
    assert values(run_crew(2, begin_with_fixed_arrays)) == [[1.0, 1.0, 2.0, 2.0]] * 2


def train_arrays() -> list[float]:
    comm = cases.connect()
    model = rankspawn.DataParallel({"weight": np.full(3, comm.rank + 5.0), "bias": np.zeros(1)})
    assert model["weight"].tolist() == [5.0] * 3
    assert len(model) == 2
    assert [*model] == ["weight", "bias"]
    assert isinstance(pickle.loads(pickle.dumps(model)), dict)
    modern = {"weight": np.full(3, comm.rank + 1.0), "bias": np.ones(1)}
    assert model.apply_collective_grads(modern) is not None
    classic = {"weight": np.full(3, model.scale_loss(comm.rank + 1.0)), "bias": np.ones(1)}
    model.apply_collective_grads(classic)
    weighed = {"weight": np.full(3, comm.rank + 1.0), "bias": np.ones(1)}
    model.apply_collective_grads(weighed, samples=1 + 2 * comm.rank)
    model["bias"] -= weighed["bias"]
    assert model.module["bias"].tolist() == [-1.0]
    return [float(each["weight"][0]) for each in (modern, classic, weighed)]


def test_arrays_are_a_model_too() -> None:
    assert values(run_crew(2, train_arrays)) == [[1.5, 1.5, 1.75]] * 2


def test_alone_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankspawn.parallel.environment._current", None)
    model = rankspawn.DataParallel([np.ones(2)])
    gradient = np.full(2, 3.0)

    assert model.scale_loss(4.0) == 4.0
    assert rankspawn.all_reduce_gradients([gradient])[0].tolist() == [3.0, 3.0]
    model._data_parallel.comm.close()
