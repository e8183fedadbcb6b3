"""Masks, ids and who gets which device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rankspawn.plan.devices import VENDORS, DeviceRequest, Machine, assign, parse_mask, see_devices

MachineOf = Callable[..., Machine]
EIGHT_GPUS = {"gpu": 8}


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("4,5,6,7", ("4", "5", "6", "7")),
        (" 4 , 5 ", ("4", "5")),
        ("7,0", ("7", "0")),
        ("04", ("4",)),
        ("", ()),
        (" ", ()),
        ("-1", ()),
        ("-1,0", ()),
        ("0,2,-1,1", ("0", "2")),
        ("0,,1", ("0",)),
        ("0,x,1", ("0",)),
        ("NoDevFiles", ()),
        ("0,1,0", ()),
        ("1gpu,2", ("1", "2")),
        ("GPU-8932f937,GPU-aa", ("GPU-8932f937", "GPU-aa")),
        ("GPU-aa, GPU-aa", ()),
        ("GPU-aa,1", ("GPU-aa",)),
        ("1,GPU-aa", ("1",)),
        ("MIG-GPU-aa/1/0,MIG-41b", ("MIG-GPU-aa/1/0", "MIG-41b")),
        ("GPU-", ()),
        ("0.0,0.1,1.0", ("0.0", "0.1", "1.0")),
        ("0,0.1", ("0", "0.1")),
        ("0-3", ("0",)),
    ],
)
def test_a_mask_shows_what_cuda_would_show(text: str, ids: tuple[str, ...]) -> None:
    assert parse_mask(text) == ids


def test_an_ordinal_beyond_the_machine_hides_itself_and_all_after_it() -> None:
    assert parse_mask("0,9,1", count=8) == ("0",)


def test_ordinals_and_uuids_stand_side_by_side_where_the_runtime_allows_it() -> None:
    assert parse_mask("0,GPU-aa", mixed=True) == ("0", "GPU-aa")


def test_without_a_mask_all_devices_are_visible_under_their_own_numbers(
    machine: MachineOf,
) -> None:
    visible = see_devices("gpu", {}, machine(devices=EIGHT_GPUS))
    assert [(d.id, d.index) for d in visible.devices] == [(str(n), str(n)) for n in range(8)]
    assert visible.variable == "CUDA_VISIBLE_DEVICES"
    assert not visible.set_by_mask


def test_a_mask_renumbers(machine: MachineOf) -> None:
    visible = see_devices("gpu", {"CUDA_VISIBLE_DEVICES": "4,6"}, machine(devices=EIGHT_GPUS))
    assert [(d.id, d.index) for d in visible.devices] == [("4", "0"), ("6", "1")]


def test_a_mask_is_believed_where_no_device_is_found(machine: MachineOf) -> None:
    visible = see_devices("gpu", {"CUDA_VISIBLE_DEVICES": "4,6"}, machine())
    assert [d.id for d in visible.devices] == ["4", "6"]


ROCM_MASKS = [
    ({"HIP_VISIBLE_DEVICES": "2,3"}, [("2", "0", "2"), ("3", "1", "3")], ["HIP_VISIBLE_DEVICES"]),
    ({"ROCR_VISIBLE_DEVICES": "2,3"}, [("2", "0", "2"), ("3", "1", "3")], ["ROCR_VISIBLE_DEVICES"]),
    # The upper mask counts within what the lower one left: device 5 is its number 1.
    (
        {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"},
        [("5", "0", "1")],
        ["HIP_VISIBLE_DEVICES"],
    ),
    ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "2"}, [], ["HIP_VISIBLE_DEVICES"]),
    ({"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0"}, [], ["HIP_VISIBLE_DEVICES"]),
    (
        {"HIP_VISIBLE_DEVICES": "6", "CUDA_VISIBLE_DEVICES": "7"},
        [("6", "0", "6")],
        ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"],
    ),
    ({"CUDA_VISIBLE_DEVICES": "7"}, [("7", "0", "7")], ["CUDA_VISIBLE_DEVICES"]),
    (
        {"ROCR_VISIBLE_DEVICES": "0,GPU-ab"},
        [("0", "0", "0"), ("GPU-ab", "1", "GPU-ab")],
        ["ROCR_VISIBLE_DEVICES"],
    ),
]


@pytest.mark.parametrize(("environ", "devices", "masks"), ROCM_MASKS)
def test_the_masks_of_rocm(
    environ: dict[str, str],
    devices: list[tuple[str, str, str]],
    masks: list[str],
    machine: MachineOf,
) -> None:
    visible = see_devices("gpu", environ, machine(devices=EIGHT_GPUS, vendor="amd"))
    assert [(d.id, d.index, d.entry) for d in visible.devices] == devices
    assert list(visible.masks) == masks


def test_nvidia_ignores_the_masks_of_rocm(machine: MachineOf) -> None:
    environ = {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "3"}
    visible = see_devices("gpu", environ, machine(devices=EIGHT_GPUS, vendor="nvidia"))
    assert [d.id for d in visible.devices] == ["3"]


def test_where_no_gpu_tells_the_vendor_the_mask_does(machine: MachineOf) -> None:
    environ = {"HIP_VISIBLE_DEVICES": "1"}
    assert see_devices("gpu", environ, machine()).masks == ("HIP_VISIBLE_DEVICES",)
    environ["CUDA_VISIBLE_DEVICES"] = "3"
    assert see_devices("gpu", environ, machine()).masks == ("CUDA_VISIBLE_DEVICES",)


@pytest.mark.parametrize("device_type", [name for name in VENDORS if name != "gpu"])
def test_every_vendor_has_its_mask(device_type: str, machine: MachineOf) -> None:
    (mask, *_) = VENDORS[device_type].masks
    visible = see_devices(device_type, {mask: "4,5"}, machine(devices={device_type: 8}))
    assert [(d.id, d.index) for d in visible.devices] == [("4", "0"), ("5", "1")]
    assert visible.variable == mask


def test_the_flag_of_a_custom_type_selects_without_renumbering(machine: MachineOf) -> None:
    environ = {"FLAGS_selected_npus": "4,5"}
    visible = see_devices("npu", environ, machine(devices={"npu": 8}))
    assert [(d.id, d.index) for d in visible.devices] == [("4", "4"), ("5", "5")]


def test_the_flag_of_a_custom_type_counts_within_its_mask(machine: MachineOf) -> None:
    environ = {"ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7", "FLAGS_selected_npus": "1,3"}
    visible = see_devices("npu", environ, machine(devices={"npu": 8}))
    assert [(d.id, d.index, d.entry) for d in visible.devices] == [("5", "1", "5"), ("7", "3", "7")]
    assert visible.source == "FLAGS_selected_npus='1,3' of ASCEND_RT_VISIBLE_DEVICES='4,5,6,7'"


def test_a_mask_that_shows_nothing_leaves_nothing_to_the_flag(machine: MachineOf) -> None:
    environ = {"ASCEND_RT_VISIBLE_DEVICES": "", "FLAGS_selected_npus": "1"}
    assert see_devices("npu", environ, machine(devices={"npu": 8})).devices == ()


def test_a_type_that_nobody_can_count_is_taken_at_the_caller_s_word(machine: MachineOf) -> None:
    visible = see_devices("mychip", {}, machine())
    devices = assign(visible, DeviceRequest(nprocs=2, ids=("1", "3")))
    assert [(d.id, d.index) for d in devices] == [("1", "1"), ("3", "3")]
    with pytest.raises(RuntimeError, match="FLAGS_selected_mychips is not set"):
        assign(visible, DeviceRequest(nprocs=2))


@pytest.mark.parametrize(
    ("text", "ids"),
    [("0-3, 6 - 7,5", ["0", "1", "2", "3", "6", "7", "5"]), ("0-2,1", []), ("4", ["4"])],
)
def test_cores_of_neuron_may_be_given_as_ranges(
    text: str, ids: list[str], machine: MachineOf
) -> None:
    visible = see_devices("neuron", {"NEURON_RT_VISIBLE_CORES": text}, machine())
    assert [device.id for device in visible.devices] == ids


def test_an_unlisted_type_works_through_its_flag(machine: MachineOf) -> None:
    visible = see_devices("mychip", {"FLAGS_selected_mychips": "0,2"}, machine())
    assert [(d.id, d.index) for d in visible.devices] == [("0", "0"), ("2", "2")]
    assert visible.masks == ()


def chosen(
    machine: Machine,
    mask: str | None,
    nprocs: int,
    selection: tuple[str, ...] | None = None,
    *,
    own: bool = False,
) -> list[tuple[str, str | None]]:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    visible = see_devices("gpu", environ, machine)
    request = DeviceRequest(nprocs=nprocs, ids=selection, own=own, ids_name="gpus")
    devices = assign(visible, request)
    return [(device.id, device.index) for device in devices]


def test_without_a_selection_the_first_visible_devices_are_taken(machine: MachineOf) -> None:
    assert chosen(machine(devices=EIGHT_GPUS), "4,5,6,7", 2) == [("4", "0"), ("5", "1")]


def test_minus_one_takes_all_visible_devices(machine: MachineOf) -> None:
    assert len(chosen(machine(devices=EIGHT_GPUS), None, -1)) == 8
    assert len(chosen(machine(devices=EIGHT_GPUS), "4,5", -1)) == 2


def test_a_selection_gets_its_positions_in_the_mask(machine: MachineOf) -> None:
    got = chosen(machine(devices=EIGHT_GPUS), "4,5,6,7", 2, ("5", "7"))
    assert got == [("5", "1"), ("7", "3")]


def test_a_selection_keeps_its_order(machine: MachineOf) -> None:
    got = chosen(machine(devices=EIGHT_GPUS), "4,5,6,7", 2, ("7", "4"))
    assert got == [("7", "3"), ("4", "0")]


def test_a_selection_without_a_mask_holds_the_ids_themselves(machine: MachineOf) -> None:
    assert chosen(machine(devices=EIGHT_GPUS), None, -1, ("5", "7")) == [("5", "5"), ("7", "7")]


@pytest.mark.parametrize("wanted", ["GPU-aabb", "GPU-aabbccdd", "GPU-aabbccdd-11"])
def test_uuids_match_when_either_side_is_abbreviated(wanted: str, machine: MachineOf) -> None:
    got = chosen(machine(devices=EIGHT_GPUS), "GPU-0011,GPU-aabbccdd", 1, (wanted,))
    assert got == [("GPU-aabbccdd", "1")]


def test_an_ambiguous_abbreviation_is_an_error(machine: MachineOf) -> None:
    with pytest.raises(ValueError, match="'GPU-aa' is ambiguous"):
        chosen(machine(devices=EIGHT_GPUS), "GPU-aabb,GPU-aacc", 1, ("GPU-aa",))


def test_two_names_of_one_device_are_an_error(machine: MachineOf) -> None:
    with pytest.raises(ValueError, match="names a device twice"):
        chosen(machine(devices=EIGHT_GPUS), "GPU-0011,GPU-aabb", 2, ("GPU-aa", "GPU-aabb"))


def test_ranks_share_a_device_where_that_is_asked_for(machine: MachineOf) -> None:
    visible = see_devices("gpu", {"CUDA_VISIBLE_DEVICES": "3,4"}, machine(devices=EIGHT_GPUS))
    devices = assign(visible, DeviceRequest(nprocs=2, ids=("4", "4"), shared=True))
    assert [(device.id, device.index) for device in devices] == [("4", "1"), ("4", "1")]


@pytest.mark.parametrize("ids", [None, ("4", "5")])
def test_ranks_take_turns_on_devices_that_they_share(
    ids: tuple[str, ...] | None, machine: MachineOf
) -> None:
    visible = see_devices("gpu", {"CUDA_VISIBLE_DEVICES": "4,5"}, machine(devices=EIGHT_GPUS))
    devices = assign(visible, DeviceRequest(nprocs=3, ids=ids, shared=True))
    assert [device.id for device in devices] == ["4", "5", "4"]
    with pytest.raises(ValueError, match="give one device per process"):
        assign(visible, DeviceRequest(nprocs=1, ids=("4", "5"), shared=True))


def test_more_ranks_than_devices_names_both_numbers_and_the_variable(machine: MachineOf) -> None:
    with pytest.raises(RuntimeError, match=r"3 processes .* 2 devices .*CUDA_VISIBLE_DEVICES"):
        chosen(machine(devices=EIGHT_GPUS), "4,5", 3)


def test_no_device_at_all_is_an_error_too(machine: MachineOf) -> None:
    with pytest.raises(
        RuntimeError, match=r"0 devices .*none found on this machine\): change CUDA"
    ):
        chosen(machine(), None, -1)


def test_a_selection_of_another_length_is_an_error(machine: MachineOf) -> None:
    with pytest.raises(ValueError, match="selects 2 devices, but nprocs is 3"):
        chosen(machine(devices=EIGHT_GPUS), None, 3, ("0", "1"))


@pytest.mark.parametrize(
    ("mask", "id_"), [("4,5", "6"), (None, "8"), ("4,-1,5", "5"), ("0,1", "GPU-aa"), ("", "0")]
)
def test_a_selected_device_that_is_not_visible_is_named(
    mask: str | None, id_: str, machine: MachineOf
) -> None:
    with pytest.raises(ValueError, match=f"gpus: the device '{id_}' is not visible: CUDA_VISIBLE"):
        chosen(machine(devices=EIGHT_GPUS), mask, 1, (id_,))


def test_a_uuid_without_a_mask_needs_a_mask_of_its_own(machine: MachineOf) -> None:
    with pytest.raises(ValueError, match="'GPU-aa' is not visible"):
        chosen(machine(devices=EIGHT_GPUS), None, 1, ("GPU-aa",))
    assert chosen(machine(devices=EIGHT_GPUS), None, 1, ("GPU-aa",), own=True) == [("GPU-aa", None)]


def test_own_visibility_needs_a_mask_to_write(machine: MachineOf) -> None:
    visible = see_devices("mychip", {"FLAGS_selected_mychips": "0"}, machine())
    with pytest.raises(ValueError, match="device_visibility='own' is not possible"):
        assign(visible, DeviceRequest(own=True))
