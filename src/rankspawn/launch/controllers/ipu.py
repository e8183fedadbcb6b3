"""IPU jobs: ``poprun`` starts the processes on all hosts, so one program is all there is here.

Its options are from Graphcore's guide to PopRun; which of them are given, and the variables
of each process, are as under Paddle's launcher.
"""

from __future__ import annotations

import sys

from rankspawn.launch.flags import UsageError
from rankspawn.launch.programs import TRAINER, ProgramSpec
from rankspawn.plan.environ import removed_env
from rankspawn.plan.topology import join

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rankspawn.launch.config import IpuConfig, LaunchConfig

MISSING_POPRUN = (
    "poprun is not on PATH: it is a part of Graphcore's Poplar SDK and starts the processes of a "
    "job on IPUs; install the SDK and run `source <sdk>/poplar/enable.sh` first"
)

# The processes have one endpoint per host in their variables; nothing of ours listens there.
_PORT = 8090

# mpirun starts processes on other hosts with an environment of their own. What decides which
# code they run and how, goes along; by name, so that no value is seen in the list of processes.
_FORWARDED = ("LD_LIBRARY_PATH", "PYTHONPATH")
_FORWARDED_FAMILIES = ("FLAGS_", "IPUOF_", "POPART_", "POPLAR_")


def plan_ipu(config: LaunchConfig, environ: Mapping[str, str], poprun: str) -> list[ProgramSpec]:
    """``poprun`` as the one program of this node; see ``ipu_command``."""
    return [
        ProgramSpec(
            role=TRAINER,
            rank=0,
            command=ipu_command(config, environ, poprun),
            env=removed_env(environ),
            log_name="workerlog.0",
            on_terminal=True,
        )
    ]


def ipu_command(config: LaunchConfig, environ: Mapping[str, str], poprun: str) -> tuple[str, ...]:
    """The command that starts the job.

    Args:
        config: What was asked for, with its ``ipu`` part.
        environ: The launcher's environment; which variables it has decides which go along.
        poprun: The program, as it was found.

    Raises:
        UsageError: The IPUs cannot be shared out evenly.
    """
    ipu = config.ipu
    if ipu is None:
        raise ValueError("this is no configuration for IPUs")
    processes = len(ipu.hosts) * ipu.nproc_per_host
    return (
        poprun,
        f"--num-instances={processes}",
        f"--num-replicas={_replicas(ipu, processes)}",
        f"--ipus-per-replica={ipu.ipus_per_replica}",
        f"--host={','.join(ipu.hosts)}",
        f"--vipu-partition={ipu.ipu_partition}",
        f"--vipu-server-host={ipu.vipu_server}",
        "--update-partition=no",
        "--vipu-server-timeout=120",
        "--print-topology=yes",
        "--numa-aware=yes",
        f"--mpi-local-args={_exports(_for_all(ipu, processes, environ))}",
        *_for_each(ipu),
        *config.command(sys.executable),
    )


def _replicas(ipu: IpuConfig, processes: int) -> int:
    replicas, rest = divmod(ipu.device_count, ipu.ipus_per_replica)
    if rest:
        raise UsageError(
            f"--devices {ipu.device_count} is no multiple of --ipus_per_replica "
            f"{ipu.ipus_per_replica}: every replica needs as many IPUs; change one of the two"
        )
    if replicas % processes:
        raise UsageError(
            f"{replicas} replicas (--devices {ipu.device_count} / --ipus_per_replica "
            f"{ipu.ipus_per_replica}) cannot be shared out among {processes} processes "
            f"({len(ipu.hosts)} --hosts times --nproc_per_host {ipu.nproc_per_host}): "
            "make it a multiple"
        )
    return replicas


def _for_all(ipu: IpuConfig, processes: int, environ: Mapping[str, str]) -> Iterator[str]:
    yield f"PADDLE_TRAINERS_NUM={processes}"
    yield f"PADDLE_TRAINER_ENDPOINTS={','.join(join(host, _PORT) for host in ipu.hosts)}"
    for name in sorted(environ):
        if name in _FORWARDED or name.startswith(_FORWARDED_FAMILIES):
            yield name


def _for_each(ipu: IpuConfig) -> Iterator[str]:
    rank = 0
    for host in ipu.hosts:
        for local_rank in range(ipu.nproc_per_host):
            exports = _exports(
                (
                    f"PADDLE_TRAINER_ID={rank}",
                    f"PADDLE_CURRENT_ENDPOINT={join(host, _PORT)}",
                    f"PADDLE_RANK_IN_NODE={local_rank}",
                )
            )
            yield f"--instance-mpi-local-args={rank}:{exports}"
            rank += 1


def _exports(variables: Iterator[str] | tuple[str, ...]) -> str:
    """Options of ``mpirun`` that set these variables, or pass them on."""
    return " ".join(f"-x {variable}" for variable in variables)
