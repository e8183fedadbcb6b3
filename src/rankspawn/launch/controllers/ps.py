"""Parameter server jobs: servers keep the model, trainers work on it.

Servers run until they are stopped, which is due when all trainers have ended.
"""

from __future__ import annotations

import sys

from rankspawn.launch.controllers import hand_out, share_out
from rankspawn.launch.controllers.collective import in_order, node_env
from rankspawn.launch.controllers.roles import lay_out
from rankspawn.launch.programs import HETER, SERVER, TRAINER, ProgramSpec
from rankspawn.plan.environ import Variables, device_env, removed_env, thread_env

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.controllers.roles import Layout, RoleSlot
    from rankspawn.launch.programs import Node
    from rankspawn.plan.devices import Device
    from rankspawn.plan.resources import Resources

_ROLE_NAMES = {SERVER: "PSERVER", TRAINER: "TRAINER", HETER: "HETER_TRAINER"}
_LOG_NAMES = {SERVER: "serverlog", TRAINER: "workerlog", HETER: "heterlog"}

# 1 is a shared file system, 2 HDFS, 3 a small HTTP service of the first server.
_GLOO_OVER_HTTP = "3"


def plan_ps(
    config: LaunchConfig, resources: Resources, nodes: Sequence[Node], me: int, *, gloo_path: str
) -> list[ProgramSpec]:
    """The servers and then the trainers of this node.

    Devices that a flag selects are shared out among the trainers: one each, or several if there
    are more. Of those that a mask shows each trainer sees one, as under Paddle's launcher.

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
    make = ProgramMaker(
        config, resources, ordered, me, layout, gloo_path, with_gloo=config.with_gloo
    )
    trainers = make.own(layout.trainers)
    if resources.own:
        parts = hand_out(resources.devices, len(trainers))
    else:
        parts = share_out(resources.devices, len(trainers), who="trainers") if trainers else []
    return [
        *(make.program(SERVER, slot) for slot in make.own(layout.servers)),
        *(
            make.program(TRAINER, slot, devices=part)
            for slot, part in zip(trainers, parts, strict=True)
        ),
    ]


class ProgramMaker:
    """Makes the programs of one node, whatever their roles."""

    def __init__(
        self,
        config: LaunchConfig,
        resources: Resources,
        nodes: Sequence[Node],
        me: int,
        layout: Layout,
        gloo_path: str,
        *,
        with_gloo: bool,
    ) -> None:
        self._config = config
        self._resources = resources
        self._node = nodes[me]
        here = layout.at(me)
        self._processes = here.total
        self._shown = TRAINER if here.trainers else SERVER if here.servers else HETER
        self._common: Variables = {
            "PADDLE_PSERVERS_IP_PORT_LIST": _listed(layout.servers),
            "PADDLE_TRAINER_ENDPOINTS": _listed(layout.trainers),
            "PADDLE_TRAINERS_NUM": str(len(layout.trainers)),
            "POD_IP": self._node.host,
            "PADDLE_NNODES": str(len(nodes)),
            "PADDLE_GLOO_RENDEZVOUS": _GLOO_OVER_HTTP,
            "PADDLE_GLOO_FS_PATH": gloo_path,
            "PADDLE_GLOO_HTTP_ENDPOINT": layout.gloo,
            "PADDLE_WITH_GLOO": "1" if with_gloo else "0",
        }

    def own(self, slots: Sequence[RoleSlot]) -> list[RoleSlot]:
        """The slots among these that are on this node."""
        return [slot for slot in slots if slot.node == self._node.rank]

    def program(
        self,
        role: str,
        slot: RoleSlot,
        *,
        devices: Sequence[Device] = (),
        more: Variables | None = None,
    ) -> ProgramSpec:
        """One process, with ``more`` variables than those of every such job."""
        resources = self._resources
        env: Variables = {
            **removed_env(resources.environ, place=True),
            **self._common,
            "PADDLE_PORT": slot.port,
            "PADDLE_ROLE": _ROLE_NAMES[role],
            "TRAINING_ROLE": _ROLE_NAMES[role],
            "PADDLE_LOCAL_RANK": str(slot.local_rank),
            **({"PADDLE_TRAINER_ID": str(slot.rank)} if role == TRAINER else {}),
            **(more or {}),
            **device_env(devices, resources.visible, own=resources.own),
            **thread_env(None, resources.environ, cpus=resources.cpus, nprocs=self._processes),
            **node_env(self._config, self._node),
        }
        return ProgramSpec(
            role=role,
            rank=slot.rank,
            command=self._config.command(sys.executable),
            env=env,
            log_name=f"{_LOG_NAMES[role]}.{slot.rank}",
            on_terminal=role == self._shown and slot.local_rank == 0,
        )


def _listed(slots: Sequence[RoleSlot]) -> str:
    return ",".join(slot.endpoint for slot in slots)
