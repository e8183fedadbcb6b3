"""Who a process is, by its environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rankspawn.options import read_options
from rankspawn.parallel_env import ParallelEnv, get_local_rank, get_rank, get_world_size
from rankspawn.plan.job import make_plan, resolve

PREFIXES = ("PADDLE_", "FLAGS_selected_", "RANKSPAWN_", "GROUP_", "ROLE_", "OMPI_", "PMI_", "MPI_")
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that nobody told a rank."""
    for name in list(os.environ):
        if name.startswith(PREFIXES) or name in NAMES:
            monkeypatch.delenv(name)


class EightGpus:
    """A machine with eight GPUs."""

    def device_count(self, device_type: str) -> int:
        """Eight."""
        return 8 if device_type == "gpu" else 0

    def gpu_vendor(self) -> str:
        """The vendor whose masks are simple."""
        return "nvidia"

    def cpus(self) -> int:
        """Some."""
        return 4

    def addresses(self) -> frozenset[str]:
        """The second of two nodes."""
        return frozenset({"10.0.0.2"})

    def resolve(self, host: str) -> frozenset[str]:
        """Addresses stand for themselves."""
        return frozenset({host})


def test_outside_of_a_worker_it_is_rank_0_of_1() -> None:
    assert (get_rank(), get_local_rank(), get_world_size()) == (0, 0, 1)
    env = ParallelEnv()
    assert (env.rank, env.local_rank, env.world_size, env.nranks, env.nnodes) == (0, 0, 1, 1, 1)
    assert (env.device_type, env.device_id, env.dev_id) == ("cpu", 0, 0)
    assert (env.current_endpoint, env.trainer_endpoints) == ("", [])


@pytest.mark.parametrize(("visibility", "device_id"), [("all", 3), ("own", 0)])
def test_a_worker_finds_what_the_plan_says(
    visibility: str, device_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"gpus": "5,7", "ips": "10.0.0.1,10.0.0.2", "device_visibility": visibility}
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    job = resolve(2, read_options(options), environ, EightGpus())
    for name, value in make_plan(job, (6070, 6071), run_id="job").ranks[1].env.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    env = ParallelEnv()
    assert (env.rank, env.local_rank, env.world_size, env.nnodes) == (3, 1, 4, 2)
    assert (env.device_type, env.device_id, env.dev_id) == ("gpu", device_id, device_id)
    assert env.current_endpoint == "10.0.0.2:6071" == env.trainer_endpoints[3]
    assert repr(env) == f"ParallelEnv(rank=3, world_size=4, device='gpu:{device_id}')"


def test_it_is_what_it_was_when_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    env = ParallelEnv()
    monkeypatch.setenv("RANK", "5")
    assert env.rank == 0
    assert get_rank() == 5


def test_a_worker_of_paddle_s_launcher_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_TRAINER_ID", "2")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "4")
    monkeypatch.setenv("FLAGS_selected_xpus", "1,2")
    env = ParallelEnv()
    assert (env.rank, env.world_size) == (2, 4)
    assert (env.device_type, env.device_id) == ("xpu", 1)


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "")
    assert get_rank() == 0


def test_a_variable_that_holds_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ValueError, match="WORLD_SIZE='many' should hold a number"):
        get_world_size()


@pytest.mark.untraced
def test_a_worker_that_asks_for_its_rank_imports_no_more_than_os() -> None:
    code = (
        "import sys, os; before = set(sys.modules); import rankspawn.parallel_env;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["__future__", "rankspawn", "rankspawn.parallel_env"]


@pytest.mark.parametrize(
    "told",
    [
        {
            "OMPI_COMM_WORLD_RANK": "3",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "4",
        },
        {"PMI_RANK": "3", "MPI_LOCALRANKID": "1", "PMI_SIZE": "4"},
    ],
)
def test_a_process_that_mpi_started_is_the_rank_that_mpi_says(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, str]
) -> None:
    for name, text in told.items():
        monkeypatch.setenv(name, text)
    assert (get_rank(), get_local_rank(), get_world_size()) == (3, 1, 4)
    monkeypatch.setenv("RANK", "0")
    assert get_rank() == 0
