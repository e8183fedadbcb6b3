"""Real Paddle under ``rankspawn.spawn``: its users' scripts with one name changed.

Paddle's documented usages of ``spawn`` are: the function only, with args, with nprocs, with
nprocs and selected devices. A CPU build can train the first three. It has no devices to select,
so the fourth is only planned here: its workers report what they were given.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

paddle = pytest.importorskip("paddle")

import rankspawn  # noqa: E402
from tests.interop import paddle_cases as cases  # noqa: E402  # only where Paddle is installed

pytestmark = pytest.mark.interop

DEADLOCK = 120.0
SCRIPT = Path(__file__).with_name("paddle_script.py")
USAGES = ["function", "args", "nprocs", "backend", "four", "no_join"]


def run_script(text: str, usage: str, folder: Path) -> list[dict[str, Any]]:
    """Run a script's text as a file of its own; the results that it printed, by rank."""
    script = folder / "train.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, str(script), usage],
        # Two ranks wherever the script does not say how many.
        env={**os.environ, "CPU_NUM": "2", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.partition("RESULT ")[2] for line in done.stdout.splitlines()]
    return [json.loads(line) for line in lines if line]


def test_script_trains_the_same_with_only_the_import_replaced(tmp_path: Path) -> None:
    text = SCRIPT.read_text()
    changed = text.replace(
        "import paddle.distributed as dist", "import rankspawn.compat.paddle as dist"
    )
    assert changed != text

    expected = run_script(text, "no_join", tmp_path)
    got = run_script(changed, "no_join", tmp_path)

    assert [(r["rank"], r["world_size"]) for r in got] == [(0, 2), (1, 2)]
    assert [r["loss"] for r in got] == pytest.approx([r["loss"] for r in expected], rel=1e-5)


def test_context_is_an_instance_of_paddles() -> None:
    theirs = sys.modules["paddle.distributed.spawn"].MultiprocessContext

    context = rankspawn.spawn(os.getpid, nprocs=1, backend="gloo")

    assert isinstance(context, theirs)
    assert isinstance(context, rankspawn.MultiprocessContext)


@pytest.mark.parametrize("usage", USAGES)
def test_script_trains_the_same_with_only_spawn_replaced(usage: str, tmp_path: Path) -> None:
    text = SCRIPT.read_text()
    changed = text.replace("dist.spawn(", "rankspawn.spawn(")
    changed = changed.replace("import paddle\n", "import paddle\nimport rankspawn\n", 1)
    assert "dist.spawn(" not in changed

    expected = run_script(text, usage, tmp_path)
    got = run_script(changed, usage, tmp_path)

    nprocs = 4 if usage == "four" else 2
    assert [(result["rank"], result["world_size"]) for result in got] == [
        (rank, nprocs) for rank in range(nprocs)
    ]
    assert len({result["loss"] for result in got}) == nprocs, "the ranks saw the same rows"
    assert [r["loss"] for r in got] == pytest.approx([r["loss"] for r in expected], rel=1e-5)
    if usage != "function":
        for result, of_paddle in zip(got, expected, strict=True):
            assert result["parameters"] == got[0]["parameters"]
            for values, theirs in zip(result["parameters"], of_paddle["parameters"], strict=True):
                assert values == pytest.approx(theirs, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.parametrize("nprocs", [2, 4])
def test_all_reduce_sums_over_the_ranks(nprocs: int, start_method: str) -> None:
    # Not under fork: the parent of these tests has imported Paddle, whose threads do not
    # survive a fork.
    context = rankspawn.spawn(
        cases.all_reduce_ranks,
        nprocs=nprocs,
        backend="gloo",
        start_method=start_method,
        timeout=DEADLOCK,
    )

    total = float(sum(range(1, nprocs + 1)))
    assert context.results() == [(rank, nprocs, total) for rank in range(nprocs)]


def test_return_queue_gives_the_loss_of_each_rank() -> None:
    context = rankspawn.spawn(
        cases.train_one_step, args=(0.1,), nprocs=2, backend="gloo", timeout=DEADLOCK
    )

    results = [queue.get() for queue in context.return_queues]
    assert [queue.empty() for queue in context.error_queues] == [True, True]
    (first_loss, first_parameters), (second_loss, second_parameters) = results
    assert first_loss != second_loss
    assert first_parameters == second_parameters


def test_parallel_env_is_what_paddle_reads() -> None:
    context = rankspawn.spawn(cases.both_envs, nprocs=2, backend="gloo", timeout=DEADLOCK)

    for rank, (ours, theirs) in enumerate(context.results()):
        assert ours == theirs
        assert ours["rank"] == rank


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("option", ["gpus", "selected_devices"])
@pytest.mark.parametrize("devices", ["4,5", "6,4"])
def test_selected_devices_reach_the_ranks(
    option: str, devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")

    context = rankspawn.spawn(
        cases.selected_gpu, nprocs=2, backend="nccl", timeout=DEADLOCK, **{option: devices}
    )

    mask = ["4", "5", "6", "7"]
    assert context.results() == [str(mask.index(device)) for device in devices.split(",")]


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_and_layers_reach_every_rank(start_method: str, dtype: str) -> None:
    """Under Paddle's own spawn the first rank takes them away from the second."""
    tensor = paddle.ones([300, 300]).astype(dtype)
    tensor.stop_gradient = False
    arguments = (tensor, paddle.nn.Linear(300, 3))

    for _ in range(2):
        context = rankspawn.spawn(
            cases.describe,
            args=arguments,
            nprocs=3,
            backend="gloo",
            start_method=start_method,
            timeout=DEADLOCK,
        )

        assert context.results() == [cases.describe(*arguments)] * 3


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_layer_comes_back_with_its_parameters(start_method: str, dtype: str) -> None:
    layer = paddle.nn.Linear(300, 300)
    layer.to(dtype=dtype)
    layer.bias.stop_gradient = True
    layer.weight.optimize_attr["learning_rate"] = 0.5

    ((weight, back),) = rankspawn.spawn(
        cases.weight_and_layer,
        args=(layer,),
        nprocs=1,
        backend="gloo",
        start_method=start_method,
        timeout=DEADLOCK,
    ).results()

    assert weight is back.weight
    for name, expected in layer.named_parameters():
        got = getattr(back, name)
        assert isinstance(got, paddle.base.framework.EagerParamBase)
        assert (got.name, got.dtype) == (expected.name, expected.dtype)
        assert (got.trainable, got.persistable) == (expected.trainable, expected.persistable)
        assert got.optimize_attr == expected.optimize_attr
        assert bool((got == expected).all())
    if dtype == "bfloat16":  # a CPU does not multiply these
        return
    before = back.weight.clone()
    back(paddle.ones([1, 300])).sum().backward()
    paddle.optimizer.SGD(1.0, parameters=back.parameters()).step()
    assert not bool((back.weight == before).any())
