"""What Slurm, Kubernetes and others say about the nodes of a job, where the user said nothing.

Pure: takes the environment as a mapping.

What a flag or its ``PADDLE_*`` variable gives always wins, each one by itself; a scheduler
fills in the rest of number of nodes, rank of this node and master.

Slurm is asked if all of this holds:

- ``SLURM_JOB_ID`` is set, and the step that this process runs in, or else the allocation, has
  more than one node. With one node there is nothing to fill in.
- ``--nnodes`` was not given, or agrees with Slurm's number. If it does not (one node of a
  large allocation, or a step for each node), Slurm's numbers are about something else.

Then ``srun`` started one launcher on each node: the number of nodes is that of the step, the
rank is ``SLURM_NODEID``, the master is the first node of the step, and its port follows from
the ids of job and step, so that two jobs on one node do not meet.

An indexed Kubernetes job tells a pod its index and nothing else. So the rank comes from
``JOB_COMPLETION_INDEX``; the number of nodes and the master have to be given, the latter
maybe as ``MASTER_ADDR`` and ``MASTER_PORT``, as is the habit there.

Before them comes who is nearer: ``PET_*``, which somebody set for this very job and which are read
with the flags, and ``mpirun``, which may run inside of a Slurm allocation; see
:mod:`~rankspawn.launch.foreign_launchers`.

In a worker of this package all of it is about the job that the worker belongs to, and nothing
is filled in. The same holds where endpoints or addresses of all nodes were listed.
"""

from __future__ import annotations

from rankspawn.launch.flags import UsageError
from rankspawn.launch.scheduler_values import (
    agrees,
    first_number,
    is_number,
    number_of,
    port_of,
    port_of_job,
    with_note,
)
from rankspawn.plan.environ import WORKER_VARIABLE
from rankspawn.plan.topology import join

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankspawn.launch.config import LaunchConfig

# Prime to the number of ports, and far above the number of steps that run at the same time:
# the steps of one job are far apart, and so are the first steps of jobs with close ids.
_BETWEEN_STEPS = 1009
# One of each dialect; see foreign_launchers, which most starts need not load.
_OF_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def fill(config: LaunchConfig, environ: Mapping[str, str]) -> LaunchConfig:
    """The configuration, completed from a scheduler's variables; the same one without any.

    What was filled in is added to its ``notes``.

    Raises:
        UsageError: A variable has no sense, or one that is needed is missing.
    """
    if WORKER_VARIABLE in environ or config.run_mode == "ipu":
        return config
    if config.ips or config.servers:
        return config
    if any(environ.get(name) for name in _OF_MPI):
        from rankspawn.launch.foreign_launchers import fill_from_mpi

        told = fill_from_mpi(config, environ)
        if told is not None:
            return told
    if environ.get("SLURM_JOB_ID"):
        return _fill_from_slurm(config, environ)
    if environ.get("MASTER_ADDR") and environ.get("RANK"):
        from rankspawn.launch.foreign_launchers import fill_from_pod

        told = fill_from_pod(config, environ)
        if told is not None:
            return told
    if environ.get("JOB_COMPLETION_INDEX"):
        return _fill_from_kubernetes(config, environ)
    return config


def _fill_from_slurm(config: LaunchConfig, environ: Mapping[str, str]) -> LaunchConfig:
    in_step = "SLURM_STEP_ID" in environ or "SLURM_STEP_NUM_NODES" in environ
    nodes = first_number(
        environ,
        *(("SLURM_STEP_NUM_NODES",) if in_step else ()),
        *(("SLURM_NNODES", "SLURM_JOB_NUM_NODES") if in_step else _OF_ALLOCATION),
    )
    if nodes < 2 or not agrees(config, nodes):
        return config
    job_id = number_of(environ, "SLURM_JOB_ID")
    filled: dict[str, object] = {}
    if "nnodes" not in config.given:
        filled |= {"min_nodes": nodes, "max_nodes": nodes}
        if config.node_rank >= nodes:
            raise UsageError(
                f"--rank {config.node_rank} is out of range for the {nodes} nodes that Slurm gave "
                f"to this job: it is below {nodes}, or give --nnodes"
            )
    # The ranks of an elastic job change with its nodes, so they are assigned.
    if "node_rank" not in config.given and not config.is_elastic:
        filled["node_rank"] = _slurm_rank(environ, nodes)
    if "master" not in config.given:
        filled["master"] = _slurm_master(environ, nodes, job_id)
    if filled:
        _refuse_many_tasks(environ, nodes, in_step=in_step)
    return with_note(config, filled, f"Slurm job {job_id}", alone="" if in_step else _ALONE)


# In a batch script, and in a shell of salloc, both are about the allocation.
_OF_ALLOCATION = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")

_ALONE = (
    "; no SLURM_STEP_ID is set, so this may be the batch script itself, which runs on the first "
    "node only: start one launcher on every node with `srun --ntasks-per-node=1 rankrun …`, or "
    "say --nnodes 1"
)


def _slurm_rank(environ: Mapping[str, str], nodes: int) -> int:
    if not environ.get("SLURM_NODEID"):
        raise UsageError(
            f"this Slurm allocation has {nodes} nodes, but SLURM_NODEID is missing, so nothing "
            "says which one this is: start one launcher on every node with "
            "`srun --ntasks-per-node=1 rankrun …`, give --rank, or say --nnodes 1 to use this "
            "machine alone"
        )
    rank = number_of(environ, "SLURM_NODEID")
    if rank >= nodes:
        raise UsageError(
            f"SLURM_NODEID={rank} is out of range for {nodes} nodes: give --nnodes and --rank"
        )
    return rank


def _slurm_master(environ: Mapping[str, str], nodes: int, job_id: int) -> str:
    step = environ.get("SLURM_STEP_ID", "")
    number = int(step) if is_number(step) else 0
    port = port_of_job(job_id + _BETWEEN_STEPS * number)
    if environ.get("MASTER_PORT"):
        port = port_of(environ)
    return join(environ.get("MASTER_ADDR") or _first_node(environ, nodes), port)


def _first_node(environ: Mapping[str, str], nodes: int) -> str:
    from rankspawn.launch.node_lists import expand_nodes

    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if not environ.get(name):
            continue
        hosts = expand_nodes(environ[name], name=name)
        # In a step on a part of the allocation, only the step's own list is about its nodes.
        if len(hosts) == nodes:
            return hosts[0]
    if environ.get("SLURM_LAUNCH_NODE_IPADDR"):
        return environ["SLURM_LAUNCH_NODE_IPADDR"]
    raise UsageError(
        f"this Slurm job has {nodes} nodes, but neither SLURM_STEP_NODELIST nor "
        "SLURM_JOB_NODELIST names as many, nor does SLURM_LAUNCH_NODE_IPADDR tell where srun "
        "is: give --master host:port with the first node as host"
    )


def _refuse_many_tasks(environ: Mapping[str, str], nodes: int, *, in_step: bool) -> None:
    """Several launchers on a node would all take themselves for that node."""
    if not in_step or not environ.get("SLURM_STEP_NUM_TASKS"):
        return
    tasks = number_of(environ, "SLURM_STEP_NUM_TASKS")
    if tasks != nodes:
        raise UsageError(
            f"srun started {tasks} tasks on {nodes} nodes, but one launcher on each node is "
            "needed, which starts the workers itself: use `srun --ntasks-per-node=1 rankrun …`"
        )


def _fill_from_kubernetes(config: LaunchConfig, environ: Mapping[str, str]) -> LaunchConfig:
    index = number_of(environ, "JOB_COMPLETION_INDEX")
    pod = f"JOB_COMPLETION_INDEX={index} says that this is a pod of an indexed Kubernetes job, but"
    if "nnodes" not in config.given:
        raise UsageError(
            f"{pod} nothing tells how many there are: give --nnodes, or PADDLE_NNODES in the "
            "pod's template, with the number of completions; --nnodes 1 if each pod is on its own"
        )
    if config.max_nodes == 1:
        return config
    filled: dict[str, object] = {}
    if "node_rank" not in config.given and not config.is_elastic:
        if index >= config.max_nodes:
            raise UsageError(
                f"JOB_COMPLETION_INDEX={index} is out of range for --nnodes {config.max_nodes}: "
                "make --nnodes the number of completions of the Kubernetes job"
            )
        filled["node_rank"] = index
    if "master" not in config.given:
        filled["master"] = _kubernetes_master(environ, index, pod)
    return with_note(config, filled, "Kubernetes job")


def _kubernetes_master(environ: Mapping[str, str], index: int, pod: str) -> str:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if not missing:
        return join(environ["MASTER_ADDR"], port_of(environ))
    # Pods of such a job are called <job>-<index>.
    hostname = environ.get("HOSTNAME", "")
    job = hostname.removesuffix(f"-{index}") if hostname.endswith(f"-{index}") else ""
    first = f"{job or '<job>'}-0.<service>"
    raise UsageError(
        f"{pod} not where they meet: {' and '.join(missing)} is not set, nor --master. Give "
        f"--master {first}:29500, or PADDLE_MASTER in the pod's template, where <service> is the "
        "headless service that the job's template names as its subdomain"
    )
