"""The whole way from options to ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest

from rankspawn.options import SpawnOptions, read_options
from rankspawn.plan.devices import Machine
from rankspawn.plan.job import Plan, describe, make_plan, resolve

MachineOf = Callable[..., Machine]


def plan_of(
    nprocs: int,
    options: Mapping[str, Any],
    environ: Mapping[str, str],
    machine: Machine,
    **extra: Any,
) -> Plan:
    job = resolve(nprocs, read_options(options), environ, machine)
    return make_plan(job, range(5000, 5000 + job.resources.nprocs), run_id="job", **extra)


def column(plan: Plan, name: str) -> list[str | None]:
    return [spec.env[name] for spec in plan.ranks]


def test_two_ranks_on_the_cpu(machine: MachineOf) -> None:
    plan = plan_of(2, {"backend": "gloo"}, {}, machine(cpu=8))
    assert [spec.endpoint for spec in plan.ranks] == ["127.0.0.1:5000", "127.0.0.1:5001"]
    assert column(plan, "RANK") == column(plan, "PADDLE_TRAINER_ID") == ["0", "1"]
    assert column(plan, "OMP_NUM_THREADS") == ["4", "4"]
    assert [(spec.device_type, spec.device) for spec in plan.ranks] == [("cpu", None)] * 2
    assert (plan.nprocs, plan.world_size, plan.nnodes, plan.node_rank) == (2, 2, 1, 0)


@pytest.mark.parametrize(
    ("environ", "count"), [({}, 6), ({"CPU_NUM": "3"}, 3), ({"CPU_NUM": ""}, 6)]
)
def test_minus_one_on_the_cpu_is_cpu_num_or_all_cpus(
    environ: dict[str, str], count: int, machine: MachineOf
) -> None:
    job = resolve(-1, SpawnOptions(backend="gloo"), environ, machine(cpu=6))
    assert job.resources.nprocs == count


@pytest.mark.parametrize("value", ["0", "-2", "two"])
def test_a_cpu_num_that_is_no_number_is_an_error(value: str, machine: MachineOf) -> None:
    with pytest.raises(ValueError, match=f"CPU_NUM='{value}' must be a positive number"):
        resolve(-1, SpawnOptions(backend="gloo"), {"CPU_NUM": value}, machine())


def test_the_fallback_to_the_cpu_is_told_and_an_explicit_one_is_not(machine: MachineOf) -> None:
    asked = SpawnOptions(backend="gloo")
    assert resolve(2, SpawnOptions(), {}, machine()).resources.warning is not None
    assert resolve(2, asked, {}, machine()).resources.warning is None


MASKS = [None, "0,1,2,3", "4,5,6,7", "7,2,5,0", "GPU-a,GPU-b,GPU-c,MIG-d"]


@pytest.mark.parametrize(
    ("mask", "count", "visibility"), list(product(MASKS, [1, 2, 3], ["all", "own"]))
)
def test_every_rank_finds_its_device_where_it_is_told(
    mask: str | None, count: int, visibility: str, machine: MachineOf
) -> None:
    """Whatever the mask and the mode: mask[FLAGS_selected_gpus] is the rank's device."""
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    options = {"device_visibility": visibility, "backend": "nccl"}
    plan = plan_of(count, options, environ, machine(devices={"gpu": 8}))
    for spec in plan.ranks:
        seen = spec.env.get("CUDA_VISIBLE_DEVICES", mask) or "0,1,2,3,4,5,6,7"
        assert seen.split(",")[int(spec.env["FLAGS_selected_gpus"] or "")] == spec.device
    assert len({spec.device for spec in plan.ranks}) == count


def test_a_selection_of_a_mask(machine: MachineOf) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    plan = plan_of(2, {"gpus": "5,7"}, environ, machine(devices={"gpu": 8}))
    assert column(plan, "FLAGS_selected_gpus") == ["1", "3"]
    assert [spec.device for spec in plan.ranks] == ["5", "7"]
    assert all("CUDA_VISIBLE_DEVICES" not in spec.env for spec in plan.ranks)
    # LOCAL_RANK numbers the ranks, not the devices.
    assert column(plan, "LOCAL_RANK") == ["0", "1"]


def test_own_visibility_writes_the_rank_s_own_mask(machine: MachineOf) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    options = {"gpus": "5,7", "device_visibility": "own"}
    plan = plan_of(2, options, environ, machine(devices={"gpu": 8}))
    assert column(plan, "CUDA_VISIBLE_DEVICES") == ["5", "7"]
    assert column(plan, "FLAGS_selected_gpus") == ["0", "0"]


def test_own_visibility_below_a_lower_mask_of_rocm(machine: MachineOf) -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "1,3"}
    options = {"gpus": "7", "device_visibility": "own"}
    plan = plan_of(-1, options, environ, machine(devices={"gpu": 8}, vendor="amd"))
    assert column(plan, "HIP_VISIBLE_DEVICES") == ["3"]
    assert [spec.device for spec in plan.ranks] == ["7"]
    assert "ROCR_VISIBLE_DEVICES" not in plan.ranks[0].env


@pytest.mark.parametrize(
    ("options", "environ", "flag", "values"),
    [
        ({"xpus": "5,7"}, {"XPU_VISIBLE_DEVICES": "4,5,6,7"}, "FLAGS_selected_xpus", ["1", "3"]),
        (
            {"devices": "5,7", "device_type": "npu"},
            {"ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7"},
            "FLAGS_selected_npus",
            ["1", "3"],
        ),
        ({"backend": "xccl"}, {"FLAGS_selected_npus": "4,5"}, "FLAGS_selected_npus", ["4", "5"]),
    ],
)
def test_other_devices_have_their_own_variable(
    options: dict[str, str],
    environ: dict[str, str],
    flag: str,
    values: list[str],
    machine: MachineOf,
) -> None:
    plan = plan_of(2, options, environ, machine(devices={"xpu": 8, "npu": 8}))
    assert column(plan, flag) == values


def test_ranks_of_the_second_node_follow_those_of_the_first(machine: MachineOf) -> None:
    own = frozenset({"10.0.0.2"})
    options = {"backend": "gloo", "ips": "10.0.0.1,10.0.0.2"}
    plan = plan_of(2, options, {}, machine(own=own))
    assert column(plan, "RANK") == ["2", "3"]
    assert column(plan, "LOCAL_RANK") == ["0", "1"]
    assert column(plan, "GROUP_RANK") == ["1", "1"]
    assert column(plan, "MASTER_ADDR") == ["10.0.0.1"] * 2
    assert column(plan, "PADDLE_CURRENT_ENDPOINT") == ["10.0.0.2:6070", "10.0.0.2:6071"]
    assert plan.world_size == 4


def test_a_worker_of_the_launcher_does_not_pass_its_place_on(machine: MachineOf) -> None:
    outer = {"PADDLE_MASTER": "10.0.0.1:7", "PADDLE_GLOBAL_RANK": "3", "TRAINING_ROLE": "TRAINER"}
    environ = {**outer, "RANK": "3", "RANKSPAWN_DEVICE_TYPE": "cpu"}
    plan = plan_of(2, {"backend": "gloo"}, environ, machine())
    assert [column(plan, name) for name in outer] == [[None, None]] * 3
    assert column(plan, "RANK") == ["0", "1"]
    # Whoever sets one of these without being a worker has a reason.
    assert not outer.keys() & plan_of(1, {"backend": "gloo"}, outer, machine()).ranks[0].env.keys()


def test_a_restart_gets_the_ports_and_the_count_it_is_given(machine: MachineOf) -> None:
    job = resolve(1, read_options({"backend": "gloo", "max_restarts": 2}), {}, machine())
    again = make_plan(job, [6001], run_id="job", restart_count=1)
    assert [spec.endpoint for spec in again.ranks] == ["127.0.0.1:6001"]
    assert column(again, "TORCHELASTIC_RESTART_COUNT") == ["1"]
    assert column(again, "TORCHELASTIC_MAX_RESTARTS") == ["2"]


def test_the_number_of_ports_must_fit(machine: MachineOf) -> None:
    job = resolve(2, SpawnOptions(backend="gloo"), {}, machine())
    with pytest.raises(ValueError, match="2 ranks need as many ports, not 1"):
        make_plan(job, [6001], run_id="job")


def test_the_user_s_environment_wins(machine: MachineOf) -> None:
    env = {"RANK": "9", "OMP_NUM_THREADS": None, "MINE": "x"}
    plan = plan_of(1, {"backend": "gloo", "env": env}, {}, machine())
    assert {name: plan.ranks[0].env[name] for name in env} == env


def test_the_user_s_environment_may_depend_on_the_rank(machine: MachineOf) -> None:
    options = {"backend": "gloo", "env": lambda rank: {"MINE": f"r{rank}"}}
    assert column(plan_of(2, options, {}, machine()), "MINE") == ["r0", "r1"]


def test_what_the_user_s_callable_returns_is_checked(machine: MachineOf) -> None:
    options = {"backend": "gloo", "env": lambda rank: {"MINE": rank}}
    with pytest.raises(TypeError, match=r"env\(0\)\['MINE'\] is 0 \(int\).*str\(0\)"):
        plan_of(1, options, {}, machine())


def test_a_callable_that_returns_no_mapping_is_an_error(machine: MachineOf) -> None:
    options = {"backend": "gloo", "env": lambda rank: f"RANK={rank}"}
    with pytest.raises(TypeError, match=r"env\(0\) must be a mapping"):
        plan_of(1, options, {}, machine())


def test_a_job_does_not_show_the_environment(machine: MachineOf) -> None:
    environ = {"API_TOKEN": "s3cret"}
    job = resolve(1, read_options({"backend": "gloo", "env": environ}), environ, machine())
    assert "s3cret" not in repr(job)
    assert "s3cret" not in repr(make_plan(job, [1], run_id="job"))


def test_a_plan_as_text(machine: MachineOf) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "4,5"}
    lines = describe(plan_of(2, {}, environ, machine(devices={"gpu": 8}))).splitlines()
    assert lines[:4] == [
        "2 of 2 ranks on node 0 of 1, backend nccl",
        "  rank  device  endpoint",
        "  0     gpu:4   127.0.0.1:5000",
        "  1     gpu:5   127.0.0.1:5001",
    ]
    assert "  http_proxy is removed" in lines
    shared, second = (
        lines.index("environment of every rank:"),
        lines.index("environment of rank 1:"),
    )
    assert shared < lines.index("  WORLD_SIZE=2") < second < len(lines) - 1
    assert "  FLAGS_selected_gpus=1" in lines[second:]
