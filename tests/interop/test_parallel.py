"""Ranks that talk with the tensors of real frameworks, and train one model together."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import rankspawn
from tests.interop import backward_cases
from tests.interop import parallel_cases as cases

pytestmark = pytest.mark.interop


@pytest.fixture(params=["torch", "paddle"])
def name(request):
    need(request.param)
    return request.param


def need(module):
    """Not importing it: that changes this process, and takes seconds."""
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def run(function, *args, nprocs=2):
    return rankspawn.spawn(function, args=args, nprocs=nprocs, backend="gloo").results()


def test_tensors_are_exchanged_in_place(name):
    assert run(cases.exchange_tensors, name, nprocs=3) == ["shm"] * 3


@pytest.mark.parametrize(
    ("loop", "cut"),
    [
        ("modern", 15),
        ("classic", 15),
        ("samples", 7),
        ("accumulate", 15),
        ("twice", 15),
        ("cleared late", 15),
    ],
)
def test_ranks_train_as_one_process_does(name, loop, cut):
    (first, none), (second, _) = run(cases.train, name, loop, cut)
    ((alone, _),) = run(cases.train, name, loop, cut, nprocs=1)

    assert {key: each.tobytes() for key, each in first.items()} == {
        key: each.tobytes() for key, each in second.items()
    }
    for key, each in alone.items():
        np.testing.assert_allclose(first[key], each, atol=1e-6, err_msg=key)
    assert {"never.weight", "never.bias"} <= set(none)


def test_gradients_are_those_of_one_process_whatever_a_backward_is_like(name):
    first, second = run(backward_cases.go_back_in_all_ways, name)
    (alone,) = run(backward_cases.go_back_in_all_ways, name, nprocs=1)

    for case, expected in alone.items():
        for mine, others, each in zip(first[case], second[case], expected, strict=True):
            assert np.array_equal(mine, others), case
            np.testing.assert_allclose(mine, each, atol=1e-6, err_msg=str(case))


@pytest.mark.parametrize("loop", ["modern", "classic"])
def test_a_parameter_that_one_rank_uses_counts_as_zero_for_the_others(name, loop):
    (first, none), (second, same_none) = run(cases.train, name, loop, 15, "float32", True)

    assert none == same_none
    assert "some.weight" not in none
    assert "never.weight" in none
    assert all(np.array_equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("loop", "sizes"),
    [("modern", [15, 15]), ("classic", [10, 10, 10]), ("uneven", [4, 26])],
)
def test_a_program_of_paddles_documentation(loop, sizes):
    need("paddle")
    first, *others = run(cases.train_as_documented, loop, sizes, nprocs=len(sizes))
    (alone,) = run(cases.train_as_documented, loop, sizes, nprocs=1)

    for values, expected in zip(first, alone, strict=True):
        np.testing.assert_allclose(values, expected, atol=1e-6)
    for other in others:
        assert all(np.array_equal(x, y) for x, y in zip(first, other, strict=True))


def test_all_begin_with_the_buffers_of_rank_0(name):
    first, second = run(cases.begin_with_buffers, name)

    assert first == second


def test_a_rank_that_dies_is_the_one_to_blame(name):
    with pytest.raises(rankspawn.ProcessExitedException) as caught:
        run(cases.lose_a_rank, name)

    assert caught.value.rank == 1
    assert [failure.rank for failure in caught.value.failures] in ([1], [1, 0])


@pytest.mark.parametrize("loop", ["classic", "kept", "modern"])
def test_an_error_leaves_paddles_backward_as_it_is_or_comes_with_apply(loop):
    need("paddle")
    first, second = run(cases.leave_a_backward, loop)

    before = [("SystemError", None)] if loop == "modern" else []
    assert first[: len(before) + 1] == [*before, ("RankLostError", 1)]
    assert second == []


def test_scaled_losses_of_paddles_are_freed():
    need("paddle")
    assert run(cases.free_losses) == [0, 0]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_floats_are_the_same_on_all_ranks(name, dtype):
    if name == "paddle" and dtype != "float64":
        pytest.skip("Paddle has no kernels for 16 bits on the CPU")
    (first, _), (second, _) = run(cases.train, name, "modern", 15, dtype)

    assert all(np.array_equal(first[key], second[key]) for key in first)


def test_the_wrapper_passes_on_what_is_the_models(name):
    assert run(cases.wrap, name) == ["list", "list"]


def test_trees_of_jax_are_averaged():
    need("jax")
    for found in run(cases.average_with_jax):
        assert found == [("float32", [1.5] * 3), ("bfloat16", [1.0] * 4)] * 2


def test_gradients_are_those_of_ddp():
    need("torch")
    for differences in run(cases.train_with_ddp):
        assert max(differences) < 1e-6
