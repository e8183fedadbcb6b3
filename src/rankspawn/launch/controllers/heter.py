"""Parameter server jobs with heter workers: stages of a pipeline on devices of different types.

The trainers are stage 1, mostly on the CPU; every further stage has heter workers. Each
process knows the endpoints of the stage before its own and of the one after it. Heter workers
run until they are stopped, as servers do, when all trainers have ended.
"""

from __future__ import annotations

from rankspawn.launch.controllers import share_out
from rankspawn.launch.controllers.collective import in_order
from rankspawn.launch.controllers.ps import ProgramMaker
from rankspawn.launch.controllers.roles import lay_out
from rankspawn.launch.flags import UsageError
from rankspawn.launch.programs import HETER, SERVER, TRAINER

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.controllers.roles import Layout, RoleSlot
    from rankspawn.launch.programs import Node, ProgramSpec
    from rankspawn.plan.devices import Device
    from rankspawn.plan.environ import Variables
    from rankspawn.plan.resources import Resources


def plan_heter(
    config: LaunchConfig, resources: Resources, nodes: Sequence[Node], me: int, *, gloo_path: str
) -> list[ProgramSpec]:
    """The servers, the trainers and then the heter workers of this node.

    Selected devices are shared out among the heter workers of the stages that use their type;
    ``--heter_devices`` has the types, and without it all stages use the selected one.

    Args:
        config: What was asked for.
        resources: The devices and CPUs of this node.
        nodes: All nodes of the job; see ``roles.lay_out`` for their ports.
        me: The rank of this node.
        gloo_path: A folder for gloo.

    Raises:
        UsageError: The options contradict each other, the nodes or the devices.
    """
    ordered = in_order(nodes)
    layout = lay_out(config, ordered)
    # Off unless asked for, as under Paddle's launcher: heter workers take no part in it.
    with_gloo = config.with_gloo and "with_gloo" in config.given
    make = ProgramMaker(config, resources, ordered, me, layout, gloo_path, with_gloo=with_gloo)
    types = _device_types(config, resources, len(layout.stages))
    everywhere = _everywhere(layout)
    devices = _devices_of(make, resources, layout, types)
    return [
        *(make.program(SERVER, slot, more=everywhere) for slot in make.own(layout.servers)),
        *(
            make.program(TRAINER, slot, more=everywhere | _stage_env(layout, 0, "cpu"))
            for slot in make.own(layout.trainers)
        ),
        *(
            make.program(
                HETER,
                slot,
                devices=devices.get(slot, ()),
                more=everywhere | _stage_env(layout, place + 1, types[place]),
            )
            for place, stage in enumerate(layout.stages)
            for slot in make.own(stage)
        ),
    ]


def _device_types(config: LaunchConfig, resources: Resources, stages: int) -> tuple[str, ...]:
    """The type of device that each stage of heter workers uses."""
    if not config.heter_devices:
        return (config.device_type or resources.device_type,) * stages
    if len(config.heter_devices) == 1:
        return config.heter_devices * stages
    return config.heter_devices


def _devices_of(
    make: ProgramMaker, resources: Resources, layout: Layout, types: Sequence[str]
) -> dict[RoleSlot, tuple[Device, ...]]:
    """Which heter worker of this node gets which of its devices."""
    if not resources.devices:
        return {}
    if resources.device_type not in types:
        raise UsageError(
            f"--devices selects devices of type {resources.device_type}, but --heter_devices "
            f"{';'.join(types)} has no stage that uses them: correct one of the two"
        )
    users = [
        slot
        for stage, device_type in zip(layout.stages, types, strict=True)
        if device_type == resources.device_type
        for slot in make.own(stage)
    ]
    if not users:
        return {}
    parts = share_out(
        resources.devices, len(users), who=f"heter workers on {resources.device_type}"
    )
    return dict(zip(users, parts, strict=True))


def _everywhere(layout: Layout) -> Variables:
    """What servers, trainers and heter workers all know."""
    heter = [slot.endpoint for stage in layout.stages for slot in stage]
    return {"PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST": ",".join(heter)}


def _stage_env(layout: Layout, place: int, device_type: str) -> Variables:
    """What a process of the stage at ``place`` knows; the trainers' stage is at 0."""
    stages = [[slot.endpoint for slot in stage] for stage in (layout.trainers, *layout.stages)]
    return {
        # Paddle reads it as a Python list.
        "PADDLE_STAGE_TRAINERS_NUM": str([len(stage) for stage in stages]),
        # Counted from 1.
        "STAGE_ID": str(place + 1),
        "STAGE_NUM": str(len(stages)),
        "PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST": ",".join(stages[place - 1] if place else []),
        "PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST": ",".join(
            stages[place + 1] if place + 1 < len(stages) else []
        ),
        "HETER_DEVICE_TYPE": device_type,
    }
