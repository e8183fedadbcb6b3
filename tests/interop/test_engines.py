"""Ranks that talk over each real engine: torch.distributed, Paddle's, MPI."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import rankspawn
from tests.interop import engine_cases as cases
from tests.jobs import DEADLOCK
from tests.launch.members import running_job
from tests.launch.running import environment
from tests.ports import free_port

pytestmark = pytest.mark.interop
# Importing a framework takes seconds on a busy machine.
PATIENCE = 2 * DEADLOCK


def need(module):
    """Not importing it: that changes this process, and takes seconds."""
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def run(function, *args, nprocs=2):
    return rankspawn.spawn(function, args=args, nprocs=nprocs, backend="gloo").results()


def mpirun(folder, text, ranks=2):
    """Run a program under MPI; its lines, sorted."""
    need("mpi4py")
    command = Path(sys.executable).with_name("mpirun")
    if not command.exists():
        pytest.skip("there is no mpirun")
    script = folder / "program.py"
    script.write_text(text)
    told = environment(
        OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TMPDIR=str(folder)
    )
    # Only this machine, whatever networks it has.
    flags = ("--oversubscribe", "--mca", "btl", "self,sm", "--host", f"localhost:{ranks}")
    # `-m mpi4py` ends all ranks if one raises.
    done = subprocess.run(
        [command, "-n", str(ranks), *flags, sys.executable, "-m", "mpi4py", script],
        cwd=folder,
        env=told,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.split("\n"))[1:]


@pytest.mark.parametrize(
    ("engine", "module", "name"),
    [
        ("shm", "numpy", "shm"),
        ("torch:gloo", "torch", "torch:gloo"),
        ("paddle", "paddle", "paddle:gloo"),
    ],
)
def test_all_collectives_against_numpy(engine, module, name):
    need(module)
    ranks = 2 if module == "paddle" else 3
    assert run(cases.talk, engine, nprocs=ranks) == [name] * ranks


def test_all_collectives_over_mpi(tmp_path):
    text = "from tests.interop import engine_cases as cases; print(cases.talk('auto'), flush=True)"
    assert mpirun(tmp_path, text) == ["mpi"] * 2


def test_ranks_that_mpi_started_are_found(tmp_path):
    text = "import rankspawn as r; print(r.get_rank(), r.get_world_size(), flush=True)"
    assert mpirun(tmp_path, text) == ["0 2", "1 2"]


def test_ranks_train_over_mpi_as_one_process_does(tmp_path):
    need("torch")
    text = "from tests.interop import engine_cases as c; print(c.train('mpi', 'torch'), flush=True)"
    assert mpirun(tmp_path, text) == ["mpi"] * 2


@pytest.mark.parametrize("name", ["torch", "paddle"])
def test_ranks_train_over_their_framework_as_one_process_does(name):
    need(name)
    assert run(cases.train, name, name) == [f"{name}:gloo"] * 2


def test_over_torch_a_lost_rank_and_a_late_one_are_told():
    need("torch")
    with pytest.raises(rankspawn.ProcessExitedException, match="exit code 3"):
        run(cases.lose_a_rank, "torch")
    memory, story = run(cases.be_late, "torch")[0]
    assert memory == "shm"
    assert story == "rank 1 did not come to all_reduce in 0.2 s"


@pytest.mark.parametrize("name", ["torch", "paddle"])
def test_over_a_framework_mistakes_are_named_and_messages_arrive(name):
    need(name)
    calls = run(cases.make_a_mistake, name, nprocs=3)
    for rank, call in enumerate(calls):
        assert call.startswith(f"all_reduce of float64[{4 if rank == 1 else 3}] op=sum at ")


def test_mistakes_are_named_over_mpi(tmp_path):
    text = "from tests.interop import engine_cases as c; print(c.make_a_mistake('mpi')[:10])"
    assert mpirun(tmp_path, text, ranks=3) == ["all_reduce"] * 3


def test_tensors_on_devices_go_over_their_framework():
    need("torch")
    assert run(cases.pretend_device) == [("torch:gloo", 1)] * 2


TWO_MACHINES = """
import numpy as np
import rankspawn
from tests.interop import engine_cases as cases

comm = rankspawn.init_parallel_env()
cases.moves(comm)
total = comm.all_reduce(np.full(100_000, comm.rank + 1.0))
shared = comm.empty(50_000)
shared[:] = comm.rank
comm.all_reduce(shared, "max")
mean = comm.all_reduce(np.full(3, float(comm.rank)), "avg")
print(type(comm).__name__, comm.backend, total[-1], shared[-1], mean[0], flush=True)
comm.close()
"""


@pytest.mark.parametrize("module", ["torch", "paddle"])
def test_two_machines_talk_over_a_framework(module, tmp_path):
    need(module)
    script = tmp_path / "program.py"
    script.write_text(TWO_MACHINES)
    with running_job(tmp_path) as job:
        flags = ("--nnodes", "2", "--master", f"127.0.0.1:{free_port()}", "--nproc_per_node", "2")
        for _ in range(2):
            job.start(*flags, script=(str(script),))
        codes = job.codes()
        said = "".join(member.read_rest() for member in job.members)
    logs = [path.read_text() for path in sorted(tmp_path.glob("log*/workerlog.*"))]
    assert codes == [0, 0], (said, logs)
    kind = "Hierarchy" if module == "torch" else "OverEngine"
    line = f"{kind} {module}:gloo 10.0 3.0 1.5\n"
    assert [line in log for log in logs] == [True] * 4, logs


def test_several_machines_without_an_engine_are_told_the_ways(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for name in ("MASTER_ADDR", "PADDLE_TRAINER_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match=r"on 2 machines, .* torch or paddlepaddle, .* mpi4py"):
        rankspawn.init_parallel_env()
