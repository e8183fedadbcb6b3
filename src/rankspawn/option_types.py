"""``rankspawn.Options``: what checkers and editors know about the options of ``spawn``.

Nobody needs this module at run time: ``spawn`` reads its options with ``options.py``, and a test
holds the two together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, SupportsFloat, SupportsIndex, TypedDict

from rankspawn.cluster.engine import Engine
from rankspawn.supervise.reports import Steps

StartMethod = Literal["spawn", "fork", "forkserver"]


class CommonOptions(TypedDict, total=False):
    """Every option that leaves alone what ``func`` is called with."""

    start_method: StartMethod | None
    """How a worker is started. ``spawn`` (default): fresh interpreters. ``fork``: copies of this
    process; nothing is pickled. ``forkserver``: copies of a clean server process."""

    backend: Literal["auto", "nccl", "bkcl", "xccl", "gloo", "cpu"] | None
    """``nccl`` (GPU), ``bkcl`` (XPU), ``xccl`` (custom device), ``gloo`` or ``cpu``, or ``auto``
    (default): what the device options, a set mask or the machine itself say."""

    gpus: str | Sequence[SupportsIndex | str] | None
    """GPUs by absolute id, one per rank: ``"4,5"``, ``[4, 5]``, ``["GPU-8932f937"]``."""

    xpus: str | Sequence[SupportsIndex | str] | None
    """XPUs by absolute id, one per rank: ``"4,5"``, ``[4, 5]``."""

    devices: str | Sequence[SupportsIndex | str] | None
    """Devices of the type ``device_type`` by absolute id, one per rank."""

    device_type: str | None
    """A custom type of device, such as ``"npu"``; without ``devices``, the visible ones."""

    share_devices: bool | None
    """Several ranks may have one device: ``gpus="4,4"``."""

    ips: str | Sequence[str] | None
    """Addresses of all nodes, ``"10.0.0.1,10.0.0.2"``; the same script runs on every one."""

    print_config: bool | None
    """Print the resolved plan: ranks, devices, endpoints, and the variables that are set."""

    env: Mapping[str, str | None] | Callable[[int], Mapping[str, str | None]] | None
    """Variables for every rank, or a function of the rank that returns them. A value None
    unsets. Wins over all else."""

    timeout: SupportsFloat | None
    """Seconds for the whole run. Past it the stacks of all ranks are taken, they are stopped,
    and ``SpawnTimeoutError`` is raised."""

    grace_period: SupportsFloat | None
    """Seconds between SIGTERM and SIGKILL, shared by all workers; 10 by default."""

    log_dir: str | os.PathLike[str] | None
    """A folder in which ``workerlog.<rank>`` keeps all that the rank and its descendants print."""

    tee: bool | str | Sequence[SupportsIndex] | None
    """True, or ranks (``"0"``, ``[0, 3]``): show their output live, line by line."""

    prefix: str | None
    """What stands before each line that is shown: ``{rank}``, ``{local_rank}``,
    ``{world_size}``, ``{device}``."""

    progress: bool | None
    """A live table of all ranks while somebody joins; see ``rankspawn.report``."""

    on_report: Callable[[int, Steps], object] | None
    """Called with a rank and what it said with ``rankspawn.report``, by whoever waits for the
    ranks; see ``rankspawn.Steps``."""

    trace: str | os.PathLike[str] | None
    """A file that shows afterwards what happened: ``run.html``, a page for a browser, or
    ``run.json`` for Perfetto and Chrome."""

    stall_timeout: SupportsFloat | None
    """Seconds without a ``rankspawn.report`` and without output of any rank, after which the stacks
    of all are taken, they are stopped, and ``SpawnTimeoutError`` is raised."""

    stacks: bool | None
    """False: when a rank fails, the stacks of the others are not taken before they are stopped."""

    keep_alive_on_failure: bool | None
    """When a rank fails, nothing is stopped before Ctrl-C."""

    logging: Literal["inherit", "relay"] | None
    """``inherit``: the ranks' ``logging`` has the levels and formats of this program's; the default
    if it has set up its own. ``relay``: its handlers get the ranks' records, with ``record.rank``
    and ``record.device``. None, given: they have none of it."""

    debug: SupportsIndex | str | None
    """The rank that gets the terminal, for ``breakpoint()``; with ``"1,hold"`` the others wait at
    the breakpoints that rank 1 is at, ``"hold"`` is the same of rank 0."""

    debugpy: SupportsIndex | str | None
    """A rank, or ``"all"``: it listens for the debugger of an editor (debugpy), and says where;
    with ``"1,wait"`` it begins once that is there."""

    preload: str | Sequence[str] | None
    """Modules that the fork server imports once, before it forks; ``forkserver`` only.
    ``"main"`` stands for what the main module imports, ``"auto"`` for that and for what ranks of
    earlier calls imported by themselves."""

    max_restarts: SupportsIndex | None
    """Start the whole group again after a failure, on fresh ports, at most so often."""

    on_failure: Literal["stop", "continue"] | None
    """``stop`` (default): the others are stopped when a rank fails. ``continue``: they finish, and
    then all failures are raised at once, as a ``ProcessExceptionGroup``."""

    device_visibility: Literal["all", "own"] | None
    """``all`` (default): every rank sees all devices and is told its index. ``own``: its mask
    names its one device."""

    numa: Literal["node", "socket", "exclusive", "core-complex"] | None
    """The CPUs of each rank: those of its device's NUMA ``node`` or ``socket``, cores of that node
    for itself (``exclusive``), or CPUs that share a cache (``core-complex``)."""

    threads_per_rank: SupportsIndex | None
    """``OMP_NUM_THREADS``. None: what is set already, else CPUs divided by ``nprocs``."""

    agent_store: bool | None
    """torch's store is hosted by a process beside the ranks, as under torchrun, not by rank 0."""

    cluster: Engine | str | None
    """Where to run: an engine of ``rankspawn.cluster``, such as ``Local(nodes=2)``, or its name.
    ``nprocs`` is then the number of ranks on each node."""

    selected_devices: str | Sequence[SupportsIndex | str] | None
    """Deprecated: use ``gpus`` or ``xpus``."""

    selected_gpus: str | Sequence[SupportsIndex | str] | None
    """Deprecated: use ``gpus`` or ``xpus``."""

    cluster_node_ips: str | Sequence[str] | None
    """Deprecated: use ``ips``."""

    node_ip: str | None
    """Deprecated: use ``ips``, which finds this node's own address, or ``rankrun``."""

    started_port: SupportsIndex | None
    """Deprecated: one node needs no port; for several use ``rankrun --start_port``."""

    use_paddlecloud: bool | None
    """Deprecated: PaddleCloud's variables are noticed without it."""


class Options(CommonOptions, total=False):
    """The options of ``spawn``; an option that is None is the same as one not given.

    For whoever passes them on: ``def train(**options: Unpack[rankspawn.Options])``.
    """

    kwargs: Mapping[str, Any] | None
    """Keyword arguments of ``func``."""

    rank_args: Iterable[tuple[Any, ...] | list[Any]] | None
    """One tuple per rank of this node, appended to ``args``."""

    rank_kwargs: Iterable[Mapping[str, Any]] | None
    """One mapping per rank of this node, whose keyword arguments are added to ``kwargs``."""
