"""Environment variables that tell a worker who it is.

Pure: takes and returns mappings; never touches ``os.environ``. One function per dialect,
so that a worker can use Paddle, torch or JAX without further set-up.

``LOCAL_RANK`` counts a node's ranks from 0, always: programs use it for more than devices.
It equals the device's index only when a job takes the first visible devices, which is the
default. With a selection (``gpus="5,7"``) or with ``device_visibility="own"`` it does not,
so ``torch.cuda.set_device(LOCAL_RANK)`` would take the wrong device or none; write
``torch.cuda.set_device(rankspawn.ParallelEnv().device_id)``, which is right in every case.
"""

from __future__ import annotations

from rankspawn.plan.devices import vendor_of

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankspawn.plan.devices import Device, Visible
    from rankspawn.plan.resources import Resources
    from rankspawn.plan.topology import Identity

Variables = dict[str, "str | None"]
"""Changes against the parent's environment; None removes a variable."""

# Set in every worker of ours: the type of its device, and the absolute id of that device.
WORKER_VARIABLE = "RANKSPAWN_DEVICE_TYPE"
DEVICE_VARIABLE = "RANKSPAWN_DEVICE"
# The CPUs of a rank that is bound to some, as numbers with commas. It takes them before it loads
# what it runs.
CPUS_VARIABLE = "RANKSPAWN_CPUS"

# The secret of a job on several nodes. It has no flag, since others could read that in the list
# of processes, and no worker has it: a program that prints its environment prints it to a log.
TOKEN_VARIABLES = ("RANKSPAWN_JOB_TOKEN", "PADDLE_JOB_TOKEN")
# The same for the password of an etcd at which the nodes meet.
ETCD_PASSWORD_VARIABLE = "RANKSPAWN_ETCD_PASSWORD"

# The rank that is debugged; with a comma and the word "hold", the others wait for it.
DEBUG_VARIABLE = "RANKSPAWN_DEBUG"
# What Python does at a breakpoint, and what it is told to in the programs of rankrun.
HOOK_VARIABLE, HOOK = "PYTHONBREAKPOINT", "rankspawn.workers.breakpoints.stop"
# Whether Python shows its stacks when it crashes in C code.
CRASH_VARIABLE = "PYTHONFAULTHANDLER"

# Only the lower-case names: gRPC and Paddle read no others, so the upper-case ones are left to
# programs that download something.
_PROXIES = ("http_proxy", "https_proxy")

# Whatever says "you are number n of a job" in any dialect. A worker that starts a job must not
# pass on its own: of what its ranks are not told anew, they would believe the old.
_PLACE_IN_A_JOB = (
    "PADDLE_TRAINER_ID",
    "PADDLE_CURRENT_ENDPOINT",
    "PADDLE_DISTRI_BACKEND",
    "PADDLE_MASTER",
    "PADDLE_GLOBAL_RANK",
    "PADDLE_GLOBAL_SIZE",
    "PADDLE_LOCAL_RANK",
    "PADDLE_LOCAL_SIZE",
    "PADDLE_NNODES",
    "PADDLE_RANK_IN_NODE",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    # These make a process a part of a parameter server's job.
    "TRAINING_ROLE",
    "PADDLE_ROLE",
    "PADDLE_PORT",
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_GLOO_RENDEZVOUS",
    "PADDLE_GLOO_FS_PATH",
    "PADDLE_GLOO_HTTP_ENDPOINT",
    "PADDLE_WITH_GLOO",
    "PADDLE_STAGE_TRAINERS_NUM",
    "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST",
    "PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST",
    "PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST",
    "STAGE_ID",
    "STAGE_NUM",
    "HETER_DEVICE_TYPE",
)

# What a module that is imported before its process has a rank cannot know.
OF_A_RANK = frozenset(
    {
        *_PLACE_IN_A_JOB,
        *("PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS", "MASTER_ADDR", "MASTER_PORT"),
        "JAX_COORDINATOR_ADDRESS",
    }
)

# What srun tells a task of its number. Here the task is a launcher, or a program that spawns, and
# a rank that believes it takes itself for that: JAX gives all of them the same device.
_OF_A_SLURM_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID", "SLURM_GTIDS")

# One of them is set in each process of an mpirun's. Its ranks are no processes of MPI, which
# would let one of them speak for all: in them MPI starts anew.
_OF_AN_MPI_PROCESS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_FD", "PMI_PORT")
_PREFIXES_OF_MPI = (
    "OMPI_COMM_WORLD_",
    "OMPI_WORLD_",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_MCA_num_procs",
    "OMPI_MCA_orte_",
    "OMPI_MCA_ess",
    "OMPI_FILE_LOCATION",
    "PMIX_",
    "PMI_",
    "PRTE_LAUNCHED",
    "MPI_LOCALN",
    "MPI_LOCALR",
    "HYDI_",
)
# Settings, which hold for MPI wherever it is started.
_SETTINGS_OF_MPI = ("PMIX_MCA_",)


def rank_env(
    who: Identity,
    resources: Resources,
    *,
    run_id: str,
    restart_count: int,
    max_restarts: int,
    threads: int | None = None,
    agent_store: bool = False,
) -> Variables:
    """All that a rank finds in its environment, under ``spawn`` as under ``rankrun``.

    Args:
        who: Its place in the job.
        resources: What this node has for its ranks.
        run_id: A name for the job that no other one has.
        restart_count: How often the job was started before.
        max_restarts: How often it may be.
        threads: ``OMP_NUM_THREADS``; None for what the user set, or a fair share.
        agent_store: torch's store is hosted beside the ranks, at the endpoint of rank 0.
    """
    devices = resources.devices[who.local_rank : who.local_rank + 1]
    cpus, count = resources.cpus, who.local_world_size
    return {
        **removed_env(resources.environ),
        **slurm_env(who, resources.environ),
        **paddle_env(who, resources.backend),
        **torch_env(
            who,
            restart_count=restart_count,
            max_restarts=max_restarts,
            run_id=run_id,
            agent_store=agent_store,
        ),
        **jax_env(who),
        **device_env(devices, resources.visible, own=resources.own),
        **thread_env(threads, resources.environ, cpus=cpus, nprocs=count),
    }


def removed_env(environ: Mapping[str, str], *, place: bool = False) -> Variables:
    """What must not be inherited: proxies, secrets, and what made this process a worker itself.

    Args:
        environ: This process's.
        place: Its place in a job goes also if it is no worker of ours. A rank is told all that
            counts, and whoever sets more than that has a reason; but a server has no rank, and
            would take the number that a platform gave this machine for its own.
    """
    outer = environ.get(WORKER_VARIABLE)
    names = [*TOKEN_VARIABLES, ETCD_PASSWORD_VARIABLE, CPUS_VARIABLE, *_OF_A_SLURM_TASK]
    if place or outer is not None:
        names += _PLACE_IN_A_JOB
    if any(name in environ for name in _OF_AN_MPI_PROCESS):
        names += [
            name
            for name in environ
            if name.startswith(_PREFIXES_OF_MPI) and not name.startswith(_SETTINGS_OF_MPI)
        ]
    env: Variables = dict.fromkeys(_PROXIES)
    env |= {name: None for name in names if name in environ}
    if outer is not None:
        env[vendor_of(outer).flag] = None
    return env


def slurm_env(who: Identity, environ: Mapping[str, str]) -> Variables:
    """What Slurm would say, had it started the ranks as its tasks; nothing where it says nothing.

    For JAX, Lightning and others who look there, and so find what is true.
    """
    if "SLURM_PROCID" not in environ:
        return {}
    is_even = who.world_size == who.local_world_size * who.nnodes
    each = str(who.local_world_size)
    per_node = each if who.nnodes == 1 else f"{each}(x{who.nnodes})"
    told = {
        "SLURM_PROCID": str(who.rank),
        "SLURM_LOCALID": str(who.local_rank),
        "SLURM_NODEID": str(who.node_rank),
        "SLURM_NTASKS": str(who.world_size),
        "SLURM_NPROCS": str(who.world_size),
        "SLURM_STEP_NUM_TASKS": str(who.world_size),
        "SLURM_NTASKS_PER_NODE": each if is_even else None,
        "SLURM_TASKS_PER_NODE": per_node if is_even else None,
        "SLURM_STEP_TASKS_PER_NODE": per_node if is_even else None,
    }
    return {name: value for name, value in told.items() if name in environ}


def paddle_env(who: Identity, backend: str) -> Variables:
    """What ``paddle.distributed.init_parallel_env`` reads, but for the device."""
    env: Variables = {
        "PADDLE_TRAINER_ID": str(who.rank),
        "PADDLE_TRAINERS_NUM": str(who.world_size),
        "PADDLE_CURRENT_ENDPOINT": who.endpoint,
        "PADDLE_TRAINER_ENDPOINTS": who.endpoint_list,
    }
    if backend == "gloo":
        env["PADDLE_DISTRI_BACKEND"] = "gloo"
    return env


def torch_env(
    who: Identity,
    *,
    restart_count: int,
    max_restarts: int,
    run_id: str,
    agent_store: bool = False,
) -> Variables:
    """What ``torch.distributed.init_process_group`` and torchrun's programs read."""
    host, _, port = who.endpoints[0].rpartition(":")
    return {
        "RANK": str(who.rank),
        "LOCAL_RANK": str(who.local_rank),
        "WORLD_SIZE": str(who.world_size),
        "LOCAL_WORLD_SIZE": str(who.local_world_size),
        "GROUP_RANK": str(who.node_rank),
        "GROUP_WORLD_SIZE": str(who.nnodes),
        "ROLE_RANK": str(who.rank),
        "ROLE_WORLD_SIZE": str(who.world_size),
        # The brackets belong to host:port only.
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": str(restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        # Under torchrun the agent hosts the store, and every worker waits for it. Here, unless
        # asked for, rank 0 has to host it, also when spawn was called by a worker of torchrun.
        "TORCHELASTIC_USE_AGENT_STORE": "True" if agent_store else None,
    }


def jax_env(who: Identity) -> Variables:
    """The one variable that ``jax.distributed.initialize`` reads."""
    return {"JAX_COORDINATOR_ADDRESS": who.endpoints[0]}


def device_env(
    devices: Sequence[Device], visible: Visible | None, *, own: bool = False
) -> Variables:
    """A process's devices: their indices for Paddle, and a mask of its own if wanted.

    A rank has one, or none on the CPU; a process of a parameter server's job may have several.
    """
    if not devices or visible is None:
        return {WORKER_VARIABLE: "cpu", DEVICE_VARIABLE: None}
    first = devices[0]
    env: Variables = {WORKER_VARIABLE: visible.device_type, DEVICE_VARIABLE: first.id}
    flag = vendor_of(visible.device_type).flag
    if own:
        return env | dict.fromkeys(visible.masks, first.entry) | {flag: "0"}
    if len(devices) == 1:
        return env | {flag: first.index}
    return env | {flag: ",".join(device.index or device.id for device in devices)}


def thread_env(
    threads: int | None, environ: Mapping[str, str], *, cpus: int, nprocs: int
) -> Variables:
    """Threads for each rank: what was asked for, what the user set, or a fair share."""
    if threads is not None:
        return {"OMP_NUM_THREADS": str(threads)}
    if environ.get("OMP_NUM_THREADS"):
        return {}
    return {"OMP_NUM_THREADS": str(max(1, cpus // nprocs))}


def has_own_breakpoints(environ: Mapping[str, str]) -> bool:
    """Whether breakpoints are to do what the user has chosen, and not what ``rankrun`` gave."""
    return environ.get(HOOK_VARIABLE, "") not in ("", HOOK)


def breakpoint_env(environ: Mapping[str, str], *, is_python: bool) -> Variables:
    """What programs are told of breakpoints while none of them is debugged.

    Args:
        environ: The launcher's own.
        is_python: They are run by Python.
    """
    # It is of a group that the launcher is in.
    env: Variables = {DEBUG_VARIABLE: None} if DEBUG_VARIABLE in environ else {}
    return {**env, HOOK_VARIABLE: HOOK} if is_python and not has_own_breakpoints(environ) else env


def crash_env(environ: Mapping[str, str], *, is_python: bool) -> Variables:
    """What has programs print their Python stacks when they crash, unless the user decided.

    Args:
        environ: The launcher's own.
        is_python: They are run by Python.
    """
    return {CRASH_VARIABLE: "1"} if is_python and CRASH_VARIABLE not in environ else {}
