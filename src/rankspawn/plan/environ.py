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

from dataclasses import dataclass

from rankspawn.plan.devices import Device, Visible
from rankspawn.plan.topology import WORKER_MARK
from rankspawn.plan.vendors import vendor_of

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Identity",
    "Variables",
    "device_env",
    "inherited_env",
    "jax_env",
    "paddle_env",
    "thread_env",
    "torch_env",
]

Variables = dict[str, "str | None"]
"""Changes against the parent's environment; None removes a variable."""

DEVICE_MARK = "RANKSPAWN_DEVICE"


@dataclass(frozen=True, slots=True)
class Identity:
    """A rank's place in the job: what every dialect is derived from."""

    rank: int
    local_rank: int
    local_world_size: int
    node_rank: int
    nnodes: int
    endpoints: tuple[str, ...]
    # The same as one text: made once for all ranks, because it is as long as they are many.
    endpoint_list: str

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return len(self.endpoints)

    @property
    def endpoint(self) -> str:
        """This rank's own."""
        return self.endpoints[self.rank]


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


def torch_env(who: Identity, *, restart_count: int, max_restarts: int, run_id: str) -> Variables:
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
        # Under torchrun the agent hosts the store, and every worker waits for it. Here
        # rank 0 has to host it, also when spawn was called by a worker of torchrun.
        "TORCHELASTIC_USE_AGENT_STORE": None,
    }


def jax_env(who: Identity) -> Variables:
    """The one variable that ``jax.distributed.initialize`` reads."""
    return {"JAX_COORDINATOR_ADDRESS": who.endpoints[0]}


def device_env(device: Device | None, visible: Visible | None, *, own: bool) -> Variables:
    """The rank's device: its index for Paddle, and a mask of its own if wanted."""
    if device is None or visible is None:
        return {WORKER_MARK: "cpu", DEVICE_MARK: None}
    env: Variables = {WORKER_MARK: visible.device_type, DEVICE_MARK: device.id}
    flag = vendor_of(visible.device_type).flag
    if not own:
        return env | {flag: device.index}
    return env | dict.fromkeys(visible.masks, device.entry) | {flag: "0"}


def thread_env(
    threads: int | None, environ: Mapping[str, str], *, cpus: int, nprocs: int
) -> Variables:
    """Threads for each rank: what was asked for, what the user set, or a fair share."""
    if threads is not None:
        return {"OMP_NUM_THREADS": str(threads)}
    if environ.get("OMP_NUM_THREADS"):
        return {}
    return {"OMP_NUM_THREADS": str(max(1, cpus // nprocs))}


def inherited_env(environ: Mapping[str, str]) -> Variables:
    """What must not be inherited: proxies, and what made the parent a worker itself.

    Only the lower-case names go: gRPC and Paddle read no others, so the upper-case ones
    are left to programs that download something.
    """
    env: Variables = {"http_proxy": None, "https_proxy": None}
    outer = environ.get(WORKER_MARK)
    if outer is not None:
        env["PADDLE_DISTRI_BACKEND"] = None
        env[vendor_of(outer).flag] = None
    return env
