"""Parameter server jobs: servers keep the model, trainers work on it.

Servers run until they are stopped, which is due when all trainers have ended.
"""

from __future__ import annotations

import sys

from rankspawn.launch.controllers.collective import in_order, node_env
from rankspawn.launch.controllers.resources import devices_env, share_out
from rankspawn.launch.controllers.roles import lay_out
from rankspawn.launch.programs import HETER, SERVER, TRAINER, ProgramSpec
from rankspawn.plan.environ import Variables, inherited_env, thread_env

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.controllers.roles import Layout, Seat
    from rankspawn.launch.programs import Node
    from rankspawn.plan.devices import Device
    from rankspawn.plan.job import Job

__all__ = ["ProgramMaker", "plan_ps"]

_ROLE_NAMES = {SERVER: "PSERVER", TRAINER: "TRAINER", HETER: "HETER_TRAINER"}
_LOG_NAMES = {SERVER: "serverlog", TRAINER: "workerlog", HETER: "heterlog"}

# 1 is a shared file system, 2 HDFS, 3 a small HTTP service of the first server.
_GLOO_OVER_HTTP = "3"

# Whatever says "you are number n" in any dialect. A process of such a job that inherited one
# would take it for its own: a platform's number of this pod, or an outer job's rank.
_WHO_AM_I = (
    "PADDLE_TRAINER_ID",
    "PADDLE_CURRENT_ENDPOINT",
    "PADDLE_DISTRI_BACKEND",
    "PADDLE_MASTER",
    "PADDLE_GLOBAL_RANK",
    "PADDLE_GLOBAL_SIZE",
    "PADDLE_LOCAL_SIZE",
    "PADDLE_RANK_IN_NODE",
    "PADDLE_STAGE_TRAINERS_NUM",
    "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST",
    "PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST",
    "PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST",
    "STAGE_ID",
    "STAGE_NUM",
    "HETER_DEVICE_TYPE",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
)


def plan_ps(
    config: LaunchConfig, job: Job, nodes: Sequence[Node], me: int, *, gloo_path: str
) -> list[ProgramSpec]:
    """The servers and then the trainers of this node.

    Selected devices are shared out among the trainers: one each, or several if there are more.

    Args:
        config: What was asked for.
        job: The devices and CPUs of this node.
        nodes: All nodes of the job; see ``roles.lay_out`` for their ports.
        me: The rank of this node.
        gloo_path: A folder for gloo.

    Raises:
        UsageError: The options contradict each other, the nodes or the devices.
    """
    ordered = in_order(nodes)
    layout = lay_out(config, ordered)
    make = ProgramMaker(config, job, ordered, me, layout, gloo_path, with_gloo=config.with_gloo)
    trainers = make.own(layout.trainers)
    parts = share_out(job.devices, len(trainers), who="trainers") if trainers else []
    return [
        *(make.program(SERVER, seat) for seat in make.own(layout.servers)),
        *(
            make.program(TRAINER, seat, devices=part)
            for seat, part in zip(trainers, parts, strict=True)
        ),
    ]


class ProgramMaker:
    """Makes the programs of one node, whatever their roles."""

    def __init__(
        self,
        config: LaunchConfig,
        job: Job,
        nodes: Sequence[Node],
        me: int,
        layout: Layout,
        gloo_path: str,
        *,
        with_gloo: bool,
    ) -> None:
        self._config = config
        self._job = job
        self._node = nodes[me]
        self._layout = layout
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

    def own(self, seats: Sequence[Seat]) -> list[Seat]:
        """Those of this node."""
        return [seat for seat in seats if seat.node == self._node.rank]

    def program(
        self,
        role: str,
        seat: Seat,
        *,
        devices: Sequence[Device] = (),
        more: Variables | None = None,
    ) -> ProgramSpec:
        """One process, with ``more`` variables than those of every such job."""
        job = self._job
        env: Variables = {
            **{name: None for name in _WHO_AM_I if name in job.environ},
            **inherited_env(job.environ),
            **self._common,
            "PADDLE_PORT": seat.port,
            "PADDLE_ROLE": _ROLE_NAMES[role],
            "TRAINING_ROLE": _ROLE_NAMES[role],
            "PADDLE_LOCAL_RANK": str(seat.local_rank),
            **({"PADDLE_TRAINER_ID": str(seat.rank)} if role == TRAINER else {}),
            **(more or {}),
            **devices_env(devices, job.visible),
            **thread_env(None, job.environ, cpus=job.cpus, nprocs=self._processes),
            **node_env(self._config, self._node),
        }
        return ProgramSpec(
            role=role,
            rank=seat.rank,
            local_rank=seat.local_rank,
            command=self._config.command(sys.executable),
            env=env,
            log_name=f"{_LOG_NAMES[role]}.{seat.rank}",
            on_terminal=role == self._shown and seat.local_rank == 0,
        )


def _listed(seats: Sequence[Seat]) -> str:
    return ",".join(seat.endpoint for seat in seats)
