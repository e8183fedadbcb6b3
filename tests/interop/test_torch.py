"""Real torch under ``rankspawn.spawn``: process groups, DDP, and tensors both ways."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rankspawn  # noqa: E402
from rankspawn.compat import torch as compat  # noqa: E402
from rankspawn.workers.payload import write_payload  # noqa: E402
from tests.interop import torch_cases as cases  # noqa: E402  # only where torch is installed

pytestmark = [
    pytest.mark.interop,
    # Python 3.12 and later warn that torch's threads make fork unsafe; fork is a subject here.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

# The bound of a deadlock, as the group's own time limit: it then says where each rank hangs.
DEADLOCK = 120.0
START_METHODS = ["spawn", "fork", "forkserver"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keep torch from starting OpenMP's threads in this process.

    They do not survive a fork, and the child's next large operation then waits for them
    forever, under torch's own spawn too.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def spawn(func: Any, args: tuple[Any, ...] = (), nprocs: int = 2, **options: Any) -> Any:
    return rankspawn.spawn(
        func, args=args, nprocs=nprocs, backend="gloo", timeout=DEADLOCK, **options
    )


@pytest.mark.parametrize("nprocs", [1, 2, 4])
def test_process_group_needs_no_set_up(nprocs: int) -> None:
    context = spawn(cases.all_reduce_ranks, nprocs=nprocs)

    total = float(sum(range(1, nprocs + 1)))
    assert context.results() == [(rank, nprocs, total) for rank in range(nprocs)]


@pytest.mark.parametrize("start_method", START_METHODS)
def test_process_group_under_every_start_method(start_method: str) -> None:
    context = spawn(cases.all_reduce_ranks, start_method=start_method)

    assert context.results() == [(0, 2, 3.0), (1, 2, 3.0)]


def test_process_groups_follow_one_another() -> None:
    for _ in range(2):
        assert spawn(cases.all_reduce_ranks).results() == [(0, 2, 3.0), (1, 2, 3.0)]


def test_groups_at_the_same_time_do_not_meet() -> None:
    barrier = multiprocessing.get_context("spawn").Barrier(4)

    with (
        spawn(cases.all_reduce_while_others_do, args=(barrier, 1.0), join=False) as first,
        spawn(cases.all_reduce_while_others_do, args=(barrier, 10.0), join=False) as second,
    ):
        assert first.join() is True
        assert second.join() is True

        assert first.results() == [2.0, 2.0]
        assert second.results() == [20.0, 20.0]


@pytest.fixture(scope="module")
def alone() -> tuple[float, list[Any]]:
    """One process's loss and parameters. Once: torch's first step sets a variable of its own."""
    return cases.train_alone()


@pytest.mark.parametrize("nprocs", [2, 4])
def test_ddp_trains_as_one_process_with_the_whole_batch(
    nprocs: int, alone: tuple[float, list[Any]]
) -> None:
    expected_loss, expected = alone

    results = spawn(cases.train_with_ddp, nprocs=nprocs).results()

    losses = [loss for loss, _ in results]
    assert losses[0] != losses[1], "the ranks saw the same rows"
    # The shares are of one size, so the mean of their losses is the loss of the whole. Rank 0's
    # parameters are broadcast before the step, so this also shows that they were.
    assert sum(losses) / nprocs == pytest.approx(expected_loss, rel=1e-5)
    for _, parameters in results:
        for got, first, alone in zip(parameters, results[0][1], expected, strict=True):
            assert torch.equal(got, first)
            assert torch.allclose(got, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_change_to_a_shared_tensor_is_seen_by_the_parent(start_method: str) -> None:
    tensor = torch.zeros(2, 3).share_memory_()

    spawn(cases.write_rank_into, args=(tensor,), start_method=start_method)

    assert tensor.tolist() == [[1.0] * 3, [2.0] * 3]


@pytest.mark.parametrize("size", [3, 30_000], ids=["small", "large"])
@pytest.mark.parametrize("start_method", START_METHODS)
def test_any_other_tensor_is_the_workers_own(start_method: str, size: int) -> None:
    tensor = torch.zeros(2, size)

    spawn(cases.write_rank_into, args=(tensor,), start_method=start_method)

    assert not tensor.is_shared()
    assert not tensor.any()


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_torchs_own_names_share_every_tensor(start_method: str) -> None:
    # Not under fork: there nothing is sent, and torch's own spawn shares nothing either.
    tensor, of_torch = torch.zeros(2, 3), torch.zeros(2, 3)
    for module, shared in ((torch.multiprocessing, of_torch), (compat, tensor)):
        module.start_processes(
            cases.write_rank_into_with_rank, args=(shared,), nprocs=2, start_method=start_method
        )

    assert tensor.is_shared() == of_torch.is_shared()
    assert tensor.tolist() == of_torch.tolist() == [[1.0] * 3, [2.0] * 3]


@pytest.mark.parametrize("start_method", START_METHODS)
def test_every_kind_of_tensor_goes_both_ways(start_method: str) -> None:
    # Large ones, so that what is sent beside the pickle is tried.
    large = torch.arange(40_000, dtype=torch.float32)
    sent = {
        "transposed": large.reshape(100, 400).t(),
        "part": large[10:30_000],
        "bfloat16": large.to(torch.bfloat16),
        "bool": large > 5,
        "complex": torch.complex(large, large),
        "conjugated": torch.complex(large, large).conj(),
        "empty": torch.empty(0, 5),
        "scalar": torch.tensor(3),
        "parameter": torch.nn.Parameter(large.clone()),
        "frozen": torch.nn.Parameter(large.clone(), requires_grad=False),
        "expanded": torch.ones(1).expand(20_000),
    }

    for got in spawn(cases.echo, args=(sent,), start_method=start_method).results():
        assert got.keys() == sent.keys()
        for name, tensor in sent.items():
            assert type(got[name]) is type(tensor), name
            assert got[name].dtype == tensor.dtype, name
            assert got[name].requires_grad == tensor.requires_grad, name
            assert torch.equal(got[name], tensor), name
        got["part"] += 1  # writable


@pytest.mark.parametrize("size", [8, 40_000], ids=["small", "large"])
@pytest.mark.parametrize("start_method", START_METHODS)
def test_views_of_one_tensor_share_memory_in_the_receiver(start_method: str, size: int) -> None:
    whole = torch.arange(float(size))
    parameter = torch.nn.Parameter(torch.ones(size))
    sent = {
        "part": whole[1:4],
        "whole": whole,
        "even": whole.reshape(-1, 2).t()[1],
        "bytes": whole.view(torch.uint8)[4:8],
        "parameter": parameter,
        "its data": parameter.data[1:],
    }

    (got,) = spawn(cases.write_and_echo, (sent,), nprocs=1, start_method=start_method).results()

    # Changed in the worker, through another one.
    assert got["part"][0] == got["even"][0] == got["bytes"].view(torch.float32) == -1
    assert got["even"].stride() == sent["even"].stride()
    # And so they are here.
    got["whole"][3] = -2
    assert got["part"][2] == got["even"][1] == -2
    got["its data"][0] = 5
    assert got["parameter"][1] == 5
    assert got["parameter"].requires_grad
    assert torch.equal(got["whole"][4:], whole[4:])


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_view_by_itself_is_sent_without_the_rest(
    start_method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[int] = []

    def write_and_note(*args: Any) -> Any:
        payload = write_payload(*args)
        ends.append(payload.end)
        return payload

    monkeypatch.setattr("rankspawn.workers.start.write_payload", write_and_note)
    whole = torch.zeros(1_000_000)

    spawn(cases.echo, args=([whole[:10], whole[10:20]],), nprocs=1, start_method=start_method)

    assert ends[0] < 100_000


@pytest.mark.parametrize("start_method", START_METHODS)
def test_tensor_argument_arrives_whole(start_method: str) -> None:
    tensor = torch.ones(1_000_000)

    context = spawn(cases.sum_of, args=(tensor,), start_method=start_method)

    assert context.results() == [1_000_000.0] * 2


@pytest.mark.parametrize("start_method", START_METHODS)
def test_tensors_come_back_after_their_worker_has_ended(start_method: str) -> None:
    # torch's own pickling for processes sends a handle that the sender must live to serve;
    # a result has to outlive it.
    size = 1_000_000

    results = spawn(cases.return_tensors, args=(size,), start_method=start_method).results()

    for rank, result in enumerate(results):
        assert torch.equal(result["small"], torch.tensor([rank]))
        assert torch.equal(result["large"], torch.full((size,), float(rank)))
        assert torch.equal(result["strided"], torch.arange(6).reshape(2, 3).t())
        assert isinstance(result["parameter"], torch.nn.Parameter)
        assert torch.equal(result["parameter"], torch.ones(2) * rank)
        assert torch.equal(result["shared"], torch.full((3,), rank))
