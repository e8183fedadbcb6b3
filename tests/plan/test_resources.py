"""Which kind of device a job runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rankspawn.options import SpawnOptions, read_options
from rankspawn.plan.devices import Machine
from rankspawn.plan.job import device_request, resolve
from rankspawn.plan.resources import choose_backend

MachineOf = Callable[..., Machine]


def kind(options: SpawnOptions, environ: dict[str, str], machine: Machine) -> tuple[str, str]:
    choice = choose_backend(device_request(1, options), environ, machine)
    assert choice.warning is None
    return choice.backend, choice.device_type


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (SpawnOptions(gpus=("0",)), ("nccl", "gpu")),
        (SpawnOptions(xpus=("0",)), ("bkcl", "xpu")),
        (SpawnOptions(device_type="npu"), ("xccl", "npu")),
        (SpawnOptions(device_type="mychip", devices=("0",)), ("xccl", "mychip")),
        (SpawnOptions(device_type="gpu", devices=("0",)), ("nccl", "gpu")),
        (SpawnOptions(device_type="cpu"), ("gloo", "cpu")),
        (SpawnOptions(backend="nccl"), ("nccl", "gpu")),
        (SpawnOptions(backend="bkcl"), ("bkcl", "xpu")),
        (SpawnOptions(backend="gloo"), ("gloo", "cpu")),
        (SpawnOptions(backend="xccl", device_type="mlu"), ("xccl", "mlu")),
    ],
)
def test_an_option_decides_whatever_the_machine_has(
    options: SpawnOptions, expected: tuple[str, str], machine: MachineOf
) -> None:
    environ = {"ASCEND_RT_VISIBLE_DEVICES": "0"}
    assert kind(options, environ, machine(devices={"gpu": 2})) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, ("nccl", "gpu")),
        ({"HIP_VISIBLE_DEVICES": "0"}, ("nccl", "gpu")),
        ({"XPU_VISIBLE_DEVICES": "0"}, ("bkcl", "xpu")),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0"}, ("xccl", "npu")),
        ({"FLAGS_selected_mlus": "0"}, ("xccl", "mlu")),
        ({"CUDA_VISIBLE_DEVICES": "0", "XPU_VISIBLE_DEVICES": "0"}, ("nccl", "gpu")),
        ({"CUDA_VISIBLE_DEVICES": "", "XPU_VISIBLE_DEVICES": "0"}, ("bkcl", "xpu")),
    ],
)
def test_a_mask_that_is_set_decides_next(
    environ: dict[str, str], expected: tuple[str, str], machine: MachineOf
) -> None:
    assert kind(SpawnOptions(), environ, machine(devices={"gcu": 4})) == expected
    # Devices selected under Paddle's old name are of the same kind.
    old = SpawnOptions(selected_devices=("0",))
    assert kind(old, environ, machine(devices={"gcu": 4})) == expected


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({}, "CUDA_VISIBLE_DEVICES is not set, and none found"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES='-1'"),
    ],
)
def test_devices_selected_where_there_are_none(
    environ: dict[str, str], why: str, machine: MachineOf
) -> None:
    options = SpawnOptions(selected_devices=("3",))
    expected = rf"selected_devices 3 selects devices, but this machine shows none \({why}"
    with pytest.raises(ValueError, match=expected):
        resolve(1, options, environ, machine())


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ({"gpu": 1, "npu": 8}, ("nccl", "gpu")),
        ({"xpu": 1}, ("bkcl", "xpu")),
        ({"npu": 1}, ("xccl", "npu")),
        ({"iluvatar_gpu": 1}, ("xccl", "iluvatar_gpu")),
    ],
)
def test_what_is_found_on_the_machine_decides_next(
    devices: dict[str, int], expected: tuple[str, str], machine: MachineOf
) -> None:
    assert kind(SpawnOptions(), {}, machine(devices=devices)) == expected


def test_without_any_device_it_is_the_cpu_with_a_warning(machine: MachineOf) -> None:
    choice = choose_backend(device_request(1, SpawnOptions()), {}, machine())
    assert (choice.backend, choice.device_type) == ("gloo", "cpu")
    assert choice.warning is not None
    assert "no GPU or other accelerator was found" in choice.warning
    assert "backend='gloo'" in choice.warning


@pytest.mark.parametrize("mask", ["", "-1", "NoDevFiles"])
def test_a_mask_that_hides_the_gpus_leads_to_the_cpu(mask: str, machine: MachineOf) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": mask}
    choice = choose_backend(device_request(1, SpawnOptions()), environ, machine(devices={"gpu": 8}))
    assert choice.backend == "gloo"
    assert f"CUDA_VISIBLE_DEVICES={mask!r} shows no device" in (choice.warning or "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SpawnOptions(backend="gloo", gpus=("0",)), "gpus cannot be used with backend='gloo'"),
        (SpawnOptions(backend="bkcl", gpus=("0",)), "it needs backend='nccl'"),
        (SpawnOptions(backend="nccl", xpus=("0",)), "xpus cannot be used with backend='nccl'"),
        (SpawnOptions(backend="nccl", device_type="npu"), "device_type='npu' cannot be used"),
        (SpawnOptions(device_type="cpu", devices=("0",)), "devices cannot be used with"),
    ],
)
def test_devices_that_the_backend_cannot_use_are_an_error(
    options: SpawnOptions, message: str, machine: MachineOf
) -> None:
    with pytest.raises(ValueError, match=message):
        choose_backend(device_request(1, options), {}, machine(devices={"gpu": 8}))


@pytest.mark.parametrize(
    ("environ", "devices", "expected"),
    [
        ({"MLU_VISIBLE_DEVICES": "0"}, {"npu": 8}, "mlu"),
        ({}, {"gpu": 8, "npu": 8}, "npu"),
        ({"FLAGS_selected_mychips": "0,1"}, {}, "mychip"),
        ({"CUDA_VISIBLE_DEVICES": "0", "FLAGS_selected_gpus": "0"}, {"gcu": 1}, "gcu"),
    ],
)
def test_xccl_finds_its_device_type(
    environ: dict[str, str], devices: dict[str, int], expected: str, machine: MachineOf
) -> None:
    options = SpawnOptions(backend="xccl")
    assert kind(options, environ, machine(devices=devices)) == ("xccl", expected)


def test_xccl_without_any_hint_asks_for_the_device_type(machine: MachineOf) -> None:
    with pytest.raises(ValueError, match="give device_type"):
        choose_backend(device_request(1, SpawnOptions(backend="xccl")), {}, machine())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"selected_gpus": "4,5"},
            "selected_gpus 4,5 selects devices, but this machine shows none",
        ),
        ({"selected_gpus": "4,5", "backend": "gloo"}, "selected_gpus cannot be used with backend="),
        ({"selected_devices": "4", "backend": "nccl"}, "selected_devices: the device '4' is not"),
    ],
)
def test_messages_have_the_name_that_was_written(
    given: dict[str, Any], message: str, machine: MachineOf
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        resolve(-1, read_options(given), {}, machine())


def test_a_backend_without_devices_is_for_another_machine(machine: MachineOf) -> None:
    with pytest.raises(RuntimeError, match="0 devices of type 'gpu' are visible"):
        resolve(2, read_options({"backend": "nccl"}), {}, machine())
