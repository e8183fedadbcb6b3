"""``spawn()``: from what was asked to a running, supervised group."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rankspawn.machine import RealMachine
from rankspawn.notebooks import in_notebook
from rankspawn.options import SpawnOptions, check_args, check_nprocs, check_rank_args, read_options
from rankspawn.plan.describe import describe
from rankspawn.plan.job import Job, make_plan, resolve
from rankspawn.plan.ports import hold_ports
from rankspawn.warned import file_of_caller, warn_caller
from rankspawn.workers import child
from rankspawn.workers.context import MultiprocessContext, start_context
from rankspawn.workers.group import WorkerGroup
from rankspawn.workers.limits import make_room_for_descriptors
from rankspawn.workers.orders import StartSettings, Task
from rankspawn.workers.start import start_group, warn_about_threads
from rankspawn.workers.supervisor import Policy, Spectator

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.view.sources import Place
    from rankspawn.view.wanted import Wanted


def spawn_ranks(
    func: Callable[..., Any],
    args: Sequence[Any],
    nprocs: int,
    join: bool,
    daemon: bool,
    given: Mapping[str, Any],
) -> MultiprocessContext:
    """The body of :func:`rankspawn.spawn`, which see.

    Args:
        func: See there, as for the next four.
        args: Its arguments.
        nprocs: How many.
        join: Wait for them.
        daemon: Their daemon flag.
        given: The options.
    """
    refuse_while_loading()
    if not callable(func):
        raise TypeError(f"func must be callable, not {type(func).__name__}: {func!r}")
    options = read_options(given)
    arguments = check_args(args)
    job = resolve(check_nprocs(nprocs), options, os.environ, RealMachine())
    check_rank_args(options.rank_args, job.nprocs)
    spectators = _spectators(job)
    if job.warning:
        warn_caller(job.warning, UserWarning)
    task = Task(func, arguments, options.kwargs, options.rank_args)
    settings = _settings(options, daemon=bool(daemon))
    warn_about_threads(settings)
    start = _starter(task, job, settings)
    return start_context(start, _policy(options), join=bool(join), spectators=spectators)


def refuse_while_loading() -> None:
    """Stop a module without ``__main__`` guard from starting workers in its workers."""
    if child.is_loading:
        raise child.MissingGuardError(file_of_caller())


def _settings(options: SpawnOptions, *, daemon: bool) -> StartSettings:
    log_dir = None if options.log_dir is None else os.path.abspath(options.log_dir)
    wanted = _wanted(options)
    return StartSettings(
        options.start_method,
        daemon,
        options.preload,
        log_dir,
        captures=wanted is not None and wanted.captures,
        looked_at=options.progress,
        debug_rank=options.debug,
    )


def _wanted(options: SpawnOptions) -> Wanted | None:
    """What is to be shown; whoever asks for nothing does not even load what decides."""
    asked = options.tee is not None or options.progress or in_notebook()
    if not asked and options.prefix is None:
        return None
    from rankspawn.view.wanted import decide

    return decide(options, in_notebook=in_notebook())


def _spectators(job: Job) -> list[Spectator]:
    """Who shows what the ranks do, or lends one of them the terminal."""
    options = job.options
    spectators: list[Spectator] = []
    world_size = job.nprocs * len(job.topology.nodes)
    wanted = _wanted(options)
    if (options.tee, options.prefix, options.debug) != (None, None, None):
        from rankspawn.view.wanted import check_wanted

        check_wanted(options, wanted, world_size)
    if wanted is not None:
        from rankspawn.view.viewer import View

        spectators.append(View(wanted, _places(job, world_size)))
    if options.debug is not None:
        if in_notebook():
            raise ValueError(f"debug={options.debug} needs a terminal, which a notebook has not")
        from rankspawn.workers.terminal import LentTerminal

        spectators.append(LentTerminal(options.debug))
    return spectators


def _places(job: Job, world_size: int) -> list[Place]:
    """What the view calls each rank of this node."""
    from rankspawn.view.sources import Place

    places = []
    for at in range(job.nprocs):
        device = job.devices[at].id if job.devices else None
        name = job.device_type if device is None else f"{job.device_type} {device}"
        gpu = device if job.device_type == "gpu" else None
        rank = job.topology.node_rank * job.nprocs + at
        places.append(Place(rank, at, world_size, name, gpu))
    return places


def _starter(task: Task, job: Job, settings: StartSettings) -> Callable[[int], WorkerGroup]:
    """A function that starts the group, each time on fresh ports."""
    options = job.options
    run_id = uuid.uuid4().hex

    def start(restart_count: int) -> WorkerGroup:
        make_room_for_descriptors(_descriptors_per_rank(options) * job.nprocs)
        ports = hold_ports(job)
        try:
            plan = make_plan(job, ports.ports, run_id=run_id, restart_count=restart_count)
            if options.print_config:
                print(describe(plan), flush=True)  # noqa: T201 - what the option is for
        except BaseException:
            ports.close()
            raise
        return start_group(
            task,
            [spec.env for spec in plan.ranks],
            settings,
            grace=options.grace_period,
            resources=[ports],
            first_rank=plan.ranks[0].rank,
            is_restart=restart_count > 0,
        )

    return start


def _descriptors_per_rank(options: SpawnOptions) -> int:
    """How many this process has open for each rank."""
    if _wanted(options):  # also its output, and copies of that and of the outcome
        return 6
    # A port, a sentinel and an outcome; a log while it is being started.
    return 3 if options.log_dir is None else 4


def _policy(options: SpawnOptions) -> Policy:
    return Policy(
        options.grace_period,
        options.timeout,
        options.max_restarts,
        interrupts_reach_workers=options.debug is None,
    )
