"""What ``mpirun``, and what torch's variables, say about the nodes of a job.

Pure. Read as a scheduler's variables are: flags win, each one by itself.

``mpirun`` starts one copy of the launcher on each node, and tells it its number and how many
there are: Open MPI in ``OMPI_COMM_WORLD_*``, MPICH and Intel's in ``PMI_*``; PMIx alone has a
number only. None says where they meet, so that has to be given, unless a Slurm allocation tells.
Several copies on one machine may be as many nodes, or too many launchers: that is refused.

Kubeflow sets torchrun's ``PET_*``, which are read as its flags are, in ``torchrun``.
Its older versions set ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``, as
torch reads them, in each pod. They are taken for those of nodes where they cannot be those of one
process: nothing says which rank on its machine it is, and the master is on another machine.
"""

from __future__ import annotations

from rankspawn.launch.flags import UsageError
from rankspawn.launch.scheduler_values import (
    agrees,
    number_of,
    outside_pod,
    port_of,
    port_of_job,
    with_note,
)
from rankspawn.plan.topology import is_loopback, join
from rankspawn.values import dataclass

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankspawn.launch.config import LaunchConfig

# What torchrun tells its workers, and nobody tells a machine.
_OF_A_PROCESS = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")


@dataclass(frozen=True, slots=True)
class _Dialect:
    """The variables of one kind of ``mpirun``; an empty name where it has none."""

    rank: str
    size: str
    on_this_node: str


_DIALECTS = (
    _Dialect("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    _Dialect("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    _Dialect("PMIX_RANK", "", ""),
)


def fill_from_mpi(config: LaunchConfig, environ: Mapping[str, str]) -> LaunchConfig | None:
    """The configuration, completed from what ``mpirun`` says; None if it was not there.

    Raises:
        UsageError: It does not say enough, or started several launchers on a machine.
    """
    found = next((each for each in _DIALECTS if environ.get(each.rank)), None)
    # srun has some of them set, too, and says more itself.
    by_srun = environ.get("SLURM_JOB_ID") and not (found and environ.get(found.on_this_node))
    if found is None or by_srun:
        return None
    rank = number_of(environ, found.rank)
    if not environ.get(found.size):
        return _fill_without_size(config, environ, found.rank, rank)
    nodes = number_of(environ, found.size)
    if nodes < 2 or not agrees(config, nodes):
        return config
    if not {"nnodes", "master"} <= config.given:
        _refuse_many_copies(environ, found.on_this_node)
    filled: dict[str, object] = {}
    if "nnodes" not in config.given:
        filled |= {"min_nodes": nodes, "max_nodes": nodes}
    if "master" not in config.given:
        filled["master"] = _mpi_master(environ, f"{found.size}={nodes}", nodes)
    if "node_rank" not in config.given and not config.is_elastic:
        filled["node_rank"] = _below(rank, nodes, found.rank)
    return with_note(config, filled, f"mpirun that started this ({found.size})")


def _fill_without_size(
    config: LaunchConfig, environ: Mapping[str, str], name: str, rank: int
) -> LaunchConfig:
    if "nnodes" not in config.given:
        raise UsageError(
            f"{name}={rank} says that this is one of several copies, but nothing tells how many "
            "there are: give --nnodes and --master; --nnodes 1 if each of them is on its own"
        )
    if config.max_nodes == 1:
        return config
    filled: dict[str, object] = {}
    if "master" not in config.given:
        filled["master"] = _mpi_master(environ, f"{name}={rank}", config.max_nodes)
    if "node_rank" not in config.given and not config.is_elastic:
        filled["node_rank"] = _below(rank, config.max_nodes, name)
    return with_note(config, filled, f"process manager that started this ({name})")


def _mpi_master(environ: Mapping[str, str], known: str, nodes: int) -> str:
    if environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
        return join(environ["MASTER_ADDR"], port_of(environ))
    if environ.get("SLURM_JOB_ID") and environ.get("SLURM_JOB_NODELIST"):
        from rankspawn.launch.node_lists import expand_nodes

        hosts = expand_nodes(environ["SLURM_JOB_NODELIST"])
        if len(hosts) == nodes:
            return join(hosts[0], port_of_job(number_of(environ, "SLURM_JOB_ID")))
    raise UsageError(
        f"{known} says that mpirun started this launcher on several nodes, but not where they "
        "meet: give --master host:port with the node of MPI's rank 0 as host, or set MASTER_ADDR "
        "and MASTER_PORT on all of them; --nnodes 1 if each copy is a job of its own"
    )


def _refuse_many_copies(environ: Mapping[str, str], name: str) -> None:
    if not environ.get(name):
        return
    copies = number_of(environ, name)
    if copies > 1:
        raise UsageError(
            f"mpirun started {copies} launchers on this machine ({name}), but one on each node is "
            "needed, which starts the workers itself: use `mpirun --map-by ppr:1:node rankrun …`, "
            "or with MPICH `mpiexec -ppn 1 rankrun …`; --nnodes 1 if each copy is a job of its "
            "own, --nnodes and --master if each is to be a node"
        )


def fill_from_pod(config: LaunchConfig, environ: Mapping[str, str]) -> LaunchConfig | None:
    """The configuration, completed from ``RANK`` and the like of a pod; None if they are none.

    Raises:
        UsageError: One has no sense.
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(environ.get(name) for name in names) or any(map(environ.get, _OF_A_PROCESS)):
        return None
    master = outside_pod(environ["MASTER_ADDR"], "RANK", environ)
    nodes, rank = number_of(environ, "WORLD_SIZE"), number_of(environ, "RANK")
    if is_loopback(master) or nodes < 2 or not agrees(config, nodes):
        return None
    filled: dict[str, object] = {}
    if "nnodes" not in config.given:
        filled |= {"min_nodes": nodes, "max_nodes": nodes}
    if "master" not in config.given:
        filled["master"] = join(master, port_of(environ))
    if "node_rank" not in config.given and not config.is_elastic:
        filled["node_rank"] = _below(rank, nodes, "RANK")
    hint = "" if "nnodes" in config.given else "; if WORLD_SIZE counts workers, give --nnodes"
    return with_note(config, filled, "variables RANK, WORLD_SIZE and MASTER_ADDR", alone=hint)


def _below(rank: int, nodes: int, name: str) -> int:
    if rank >= nodes:
        raise UsageError(
            f"{name}={rank} is out of range for {nodes} nodes: give --nnodes and --rank"
        )
    return rank
