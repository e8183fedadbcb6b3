"""What each dialect says about a rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankspawn.plan.devices import Device, Visible
from rankspawn.plan.environ import (
    device_env,
    jax_env,
    paddle_env,
    removed_env,
    slurm_env,
    thread_env,
    torch_env,
)
from rankspawn.plan.topology import Identity

THIRD = Identity(
    rank=2,
    local_rank=0,
    local_world_size=2,
    node_rank=1,
    nnodes=2,
    endpoints=("10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:3", "10.0.0.2:4"),
    endpoint_list="10.0.0.1:1,10.0.0.1:2,10.0.0.2:3,10.0.0.2:4",
)
GPUS = Visible("gpu", (), "CUDA_VISIBLE_DEVICES", "", ("CUDA_VISIBLE_DEVICES",), True)


def test_paddle_is_told_rank_and_endpoints() -> None:
    assert paddle_env(THIRD, "nccl") == {
        "PADDLE_TRAINER_ID": "2",
        "PADDLE_TRAINERS_NUM": "4",
        "PADDLE_CURRENT_ENDPOINT": "10.0.0.2:3",
        "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:1,10.0.0.1:2,10.0.0.2:3,10.0.0.2:4",
    }


def test_paddle_is_told_when_to_use_gloo() -> None:
    assert paddle_env(THIRD, "gloo")["PADDLE_DISTRI_BACKEND"] == "gloo"


def test_torch_is_told_all_that_torchrun_would_tell() -> None:
    assert torch_env(THIRD, restart_count=1, max_restarts=3, run_id="job") == {
        "RANK": "2",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "2",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": None,
    }


def test_torch_is_told_that_the_store_is_hosted_beside_the_ranks() -> None:
    env = torch_env(THIRD, restart_count=0, max_restarts=0, run_id="job", agent_store=True)
    assert env["TORCHELASTIC_USE_AGENT_STORE"] == "True"


def test_an_ipv6_master_has_brackets_only_next_to_its_port() -> None:
    who = Identity(0, 0, 1, 0, 1, ("[::1]:29500",), "[::1]:29500")
    env = torch_env(who, restart_count=0, max_restarts=0, run_id="job")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("::1", "29500")
    assert jax_env(who) == {"JAX_COORDINATOR_ADDRESS": "[::1]:29500"}


def test_jax_coordinates_at_rank_0() -> None:
    assert jax_env(THIRD) == {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1"}


def test_a_rank_that_sees_all_devices_is_told_its_index() -> None:
    assert device_env([Device("5", "1", "5")], GPUS) == {
        "RANKSPAWN_DEVICE_TYPE": "gpu",
        "RANKSPAWN_DEVICE": "5",
        "FLAGS_selected_gpus": "1",
    }


def test_a_process_with_several_devices_is_told_all_of_them() -> None:
    env = device_env([Device("5", "1", "5"), Device("7", "3", "7")], GPUS)
    assert (env["RANKSPAWN_DEVICE"], env["FLAGS_selected_gpus"]) == ("5", "1,3")


def test_a_rank_that_sees_its_own_device_finds_it_at_0() -> None:
    assert device_env([Device("GPU-aa", "1", "GPU-aa")], GPUS, own=True) == {
        "RANKSPAWN_DEVICE_TYPE": "gpu",
        "RANKSPAWN_DEVICE": "GPU-aa",
        "CUDA_VISIBLE_DEVICES": "GPU-aa",
        "FLAGS_selected_gpus": "0",
    }


def test_a_rank_on_the_cpu_has_no_device() -> None:
    expected = {"RANKSPAWN_DEVICE_TYPE": "cpu", "RANKSPAWN_DEVICE": None}
    assert device_env([], None, own=True) == expected


@pytest.mark.parametrize(
    ("threads", "environ", "expected"),
    [
        (None, {}, {"OMP_NUM_THREADS": "4"}),
        (None, {"OMP_NUM_THREADS": ""}, {"OMP_NUM_THREADS": "4"}),
        (None, {"OMP_NUM_THREADS": "7"}, {}),
        (3, {"OMP_NUM_THREADS": "7"}, {"OMP_NUM_THREADS": "3"}),
    ],
)
def test_threads_are_asked_for_or_inherited_or_shared(
    threads: int | None, environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert thread_env(threads, environ, cpus=8, nprocs=2) == expected


def test_every_rank_gets_at_least_one_thread() -> None:
    assert thread_env(None, {}, cpus=2, nprocs=8) == {"OMP_NUM_THREADS": "1"}


def test_proxies_and_the_token_of_a_job_are_not_inherited() -> None:
    proxies = {"http_proxy": None, "https_proxy": None}
    assert removed_env({"HTTP_PROXY": "x", "TRAINING_ROLE": "TRAINER"}) == proxies
    for token in ("RANKSPAWN_JOB_TOKEN", "PADDLE_JOB_TOKEN"):
        assert removed_env({token: "s3cret"}) == {**proxies, token: None}


def test_a_worker_passes_on_neither_its_device_nor_its_place() -> None:
    place = {"PADDLE_DISTRI_BACKEND": "gloo", "PADDLE_GLOBAL_RANK": "3", "TRAINING_ROLE": "TRAINER"}
    env = removed_env({"RANKSPAWN_DEVICE_TYPE": "npu", "PATH": "/bin", **place})
    assert {"FLAGS_selected_npus", *place} <= env.keys()
    assert "PATH" not in env
    assert set(env.values()) == {None}


def test_a_process_without_a_rank_inherits_none_from_a_platform() -> None:
    assert "PADDLE_TRAINER_ID" in removed_env({"PADDLE_TRAINER_ID": "1"}, place=True)
    assert "PADDLE_TRAINER_ID" not in removed_env({"PADDLE_TRAINER_ID": "1"})


def test_a_rank_is_told_what_slurm_would_tell_it_as_its_task() -> None:
    task = {
        "SLURM_JOB_ID": "4711",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "1",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }
    last = replace(THIRD, rank=3, local_rank=1)
    assert slurm_env(last, task) == {
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_NTASKS": "4",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    }
    alone = replace(THIRD, nnodes=1, endpoints=THIRD.endpoints[:2])
    assert slurm_env(alone, task)["SLURM_STEP_TASKS_PER_NODE"] == "2"
    uneven = replace(THIRD, endpoints=THIRD.endpoints[:3])
    assert slurm_env(uneven, task)["SLURM_STEP_TASKS_PER_NODE"] is None
    assert slurm_env(last, {"SLURM_JOB_ID": "4711"}) == {}


def test_a_process_without_a_rank_inherits_none_of_a_slurm_task() -> None:
    env = removed_env({"SLURM_PROCID": "1", "SLURM_JOB_ID": "4711"}, place=True)
    assert env.keys() - {"http_proxy", "https_proxy"} == {"SLURM_PROCID"}


@pytest.mark.parametrize(
    "place",
    [
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_orte_hnp_uri": "1;tcp://h:1", "PMIX_RANK": "0"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_WORLD_SIZE": "2", "OMPI_MCA_num_procs": "2"},
        {"PMI_RANK": "0", "PMI_FD": "9", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"},
    ],
)
def test_a_rank_is_no_process_of_the_mpirun_that_started_its_launcher(
    place: dict[str, str],
) -> None:
    settings = {"OMPI_MCA_btl": "self,tcp", "PMIX_MCA_gds": "hash", "MPI_HOME": "/opt/mpi"}
    env = removed_env({**place, **settings})
    assert env.keys() - {"http_proxy", "https_proxy"} == place.keys()
    assert set(env.values()) == {None}
