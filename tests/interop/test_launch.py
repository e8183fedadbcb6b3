"""Real Paddle and torch scripts under ``rankrun``: not a line in them is about it.

Each script runs under the framework's own launcher as well, and must learn the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.launch.running import Done, environment, rankrun
from tests.ports import free_port

pytestmark = pytest.mark.interop

DEADLOCK = 180.0

PADDLE = """
    import json, os
    import paddle
    import paddle.distributed as dist
    from paddle import nn

    dist.init_parallel_env()
    rank, size = dist.get_rank(), dist.get_world_size()
    paddle.seed(rank + 1)  # different: DataParallel must begin with those of rank 0
    model = paddle.DataParallel(nn.Linear(4, 1))
    optimizer = paddle.optimizer.SGD(learning_rate=0.1, parameters=model.parameters())
    rows = paddle.linspace(-1, 1, 4 * 8).reshape([8, 4])[rank::size]
    for _ in range(3):
        loss = nn.functional.mse_loss(model(rows), rows.sum(axis=1, keepdim=True))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    total = paddle.to_tensor([float(rank)])
    dist.all_reduce(total)
    # In one write: under torchrun all ranks share the output.
    os.write(1, b"RESULT %s\\n" % json.dumps({
        "rank": rank, "size": size, "total": total.item(), "loss": float(loss),
        "parameters": [p.numpy().ravel().tolist() for p in model.parameters()],
    }).encode())
"""

TORCH = """
    import json, os
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank + 1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.linspace(-1, 1, 4 * 8).reshape(8, 4)[rank::size]
    for _ in range(3):
        loss = torch.nn.functional.mse_loss(model(rows), rows.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    # In one write: under torchrun all ranks share the output.
    os.write(1, b"RESULT %s\\n" % json.dumps({
        "rank": rank, "size": size, "total": float(total), "loss": float(loss.detach()),
        "parameters": [p.detach().numpy().ravel().tolist() for p in model.parameters()],
    }).encode())
    dist.destroy_process_group()
    # On a loaded machine one of fifty such scripts aborts in the destructors of torch 2.13.0 after
    # all is done, also without any launcher ("terminate called without an active exception").
    os._exit(0)
"""


@pytest.fixture(params=["paddle", "torch"])
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A training script of a framework that is installed here, in an empty folder."""
    # Not imported here: Paddle sets variables of the process that imports it.
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent({"paddle": PADDLE, "torch": TORCH}[request.param]))
    return path


def run(script: Path, *flags: str, **variables: str) -> Done:
    # Frameworks keep caches among the temporary files.
    quiet = {"TMPDIR": str(script.parent), "OMP_NUM_THREADS": "1"}
    done = rankrun(script.parent, "--device_type", "cpu", *flags, script.name, **quiet, **variables)
    assert done.code == 0, done.errors
    return done


def results_in(*texts: str) -> list[dict[str, Any]]:
    lines = [line.partition("RESULT ")[2] for text in texts for line in text.splitlines()]
    return sorted((json.loads(line) for line in lines if line), key=lambda one: one["rank"])


@pytest.mark.parametrize("nprocs", [2, 4])
def test_training(script: Path, nprocs: int) -> None:
    done = run(script, "--nproc_per_node", str(nprocs))
    results = results_in(*(done.log(f"workerlog.{rank}") for rank in range(nprocs)))
    assert [one["rank"] for one in results] == list(range(nprocs))
    assert {one["size"] for one in results} == {nprocs}
    assert {one["total"] for one in results} == {float(sum(range(nprocs)))}
    assert len({one["loss"] for one in results}) == nprocs, "the ranks saw the same rows"
    for one in results:
        assert one["parameters"] == results[0]["parameters"]
    assert results_in(done.output) == results[:1]


def test_the_same_as_under_the_frameworks_own_launcher(script: Path, tmp_path: Path) -> None:
    ours = run(script, "--nproc_per_node", "2")
    expected = _under_its_own(script, tmp_path / "theirs")
    got = results_in(ours.log("workerlog.0"), ours.log("workerlog.1"))
    for one, other in zip(got, expected, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        for values, theirs in zip(one["parameters"], other["parameters"], strict=True):
            assert values == pytest.approx(theirs, rel=1e-5, abs=1e-6)


def _under_its_own(script: Path, logs: Path) -> list[dict[str, Any]]:
    is_paddle = "import paddle\n" in script.read_text()
    launcher = (
        ["-m", "paddle.distributed.launch", "--nproc_per_node=2", f"--log_dir={logs}"]
        if is_paddle
        else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    )
    done = subprocess.run(
        [sys.executable, *launcher, script.name],
        cwd=script.parent,
        env=environment(TMPDIR=str(script.parent), OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if is_paddle:
        return results_in(*(path.read_text() for path in sorted(logs.glob("workerlog.*"))))
    return results_in(done.stdout)


def test_a_restart(script: Path) -> None:
    """The second start meets on fresh ports."""
    text = script.read_text()
    failing = """
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
            os._exit(3)
    """
    marker = "rank, size = dist.get_rank(), dist.get_world_size()\n"
    script.write_text(text.replace(marker, marker + textwrap.dedent(failing)))
    done = run(script, "--nproc_per_node=2", "--elastic_level=1", "--max_restart=1")
    assert "restart 1 of 1" in done.errors
    assert [one["rank"] for one in results_in(done.output)] == [0]


def test_a_failing_rank_does_not_leave_the_other_waiting(script: Path) -> None:
    text = script.read_text()
    marker = "rank, size = dist.get_rank(), dist.get_world_size()\n"
    script.write_text(
        text.replace(marker, marker + "if rank == 1: raise ValueError('of rank 1')\n")
    )
    # The other one would wait in its next collective for half an hour.
    done = rankrun(
        script.parent,
        *("--device_type=cpu", "--nproc_per_node=2", "--grace_period=2", script.name),
        TMPDIR=str(script.parent),
    )
    assert done.code == 1
    assert "rank 1 on" in done.errors
    assert "ValueError: of rank 1" in done.errors


@pytest.mark.parametrize("nprocs", [1, 2])
def test_training_on_two_nodes(script: Path, nprocs: int) -> None:
    """Over loopback; the same command for both."""
    command = [sys.executable, "-m", "rankspawn.launch", "--device_type=cpu", "--nnodes=2"]
    command += [f"--master=127.0.0.1:{free_port()}", f"--nproc_per_node={nprocs}"]
    quiet = {"TMPDIR": str(script.parent), "OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen(
            [*command, f"--log_dir={script.parent / 'log'}", script.name],
            cwd=script.parent,
            env=environment(RANKSPAWN_JOB_TOKEN="a token of the tests", **quiet),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [node.communicate(timeout=DEADLOCK)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    logs = [script.parent / "log" / f"workerlog.{rank}" for rank in range(2 * nprocs)]
    results = results_in(*(log.read_text() for log in logs))
    assert [one["rank"] for one in results] == list(range(2 * nprocs))
    assert {one["size"] for one in results} == {2 * nprocs}
    assert {one["total"] for one in results} == {float(sum(range(2 * nprocs)))}
    for one in results:
        assert one["parameters"] == results[0]["parameters"]
    # Each node shows the first of its own.
    shown = [one["rank"] for output in outputs for one in results_in(output)]
    assert sorted(shown) == [0, nprocs]


def test_two_jobs_at_once(script: Path) -> None:
    """Neither of them needs to know of the other, nor a port."""
    command = [sys.executable, "-m", "rankspawn.launch", "--device_type=cpu", "--nproc_per_node=2"]
    jobs = [
        subprocess.Popen(
            [*command, f"--log_dir=log{number}", script.name],
            cwd=script.parent,
            env=environment(TMPDIR=str(script.parent), OMP_NUM_THREADS="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [job.communicate(timeout=DEADLOCK)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    first, second = (results_in(output) for output in outputs)
    assert first == second
    assert os.listdir(script.parent / "log1")
