"""``spawn()``: from what was asked to a running, supervised group."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rankspawn.machine import RealMachine
from rankspawn.options import SpawnOptions, check_args, check_nprocs, check_rank_args, read_options
from rankspawn.plan.describe import describe
from rankspawn.plan.job import Job, make_plan, resolve
from rankspawn.plan.ports import hold_ports
from rankspawn.warned import warn_caller
from rankspawn.workers import child
from rankspawn.workers.context import MultiprocessContext, start_context
from rankspawn.workers.group import WorkerGroup
from rankspawn.workers.limits import make_room_for_descriptors
from rankspawn.workers.orders import StartSettings, Task
from rankspawn.workers.start import start_group, warn_about_threads
from rankspawn.workers.supervisor import Policy


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
    refuse_while_importing_main()
    if not callable(func):
        raise TypeError(f"func must be callable, not {type(func).__name__}: {func!r}")
    options = read_options(given)
    if options.tee or options.prefix is not None:
        raise NotImplementedError("tee and prefix are planned; log_dir keeps each rank's output")
    arguments = check_args(args)
    job = resolve(check_nprocs(nprocs), options, os.environ, RealMachine())
    check_rank_args(options.rank_args, job.nprocs)
    if job.warning:
        warn_caller(job.warning, UserWarning)
    task = Task(func, arguments, options.kwargs, options.rank_args)
    settings = _settings(options, daemon=bool(daemon))
    warn_about_threads(settings)
    return start_context(_starter(task, job, settings), _policy(options), join=bool(join))


def refuse_while_importing_main() -> None:
    """Stop a script without ``__main__`` guard from starting workers in its workers."""
    if child.importing_main is not None:
        raise child.MissingGuardError(child.importing_main)


def _settings(options: SpawnOptions, *, daemon: bool) -> StartSettings:
    log_dir = None if options.log_dir is None else os.path.abspath(options.log_dir)
    return StartSettings(options.start_method, daemon, options.preload, log_dir)


def _starter(task: Task, job: Job, settings: StartSettings) -> Callable[[int], WorkerGroup]:
    """A function that starts the group, each time on fresh ports."""
    options = job.options
    run_id = uuid.uuid4().hex

    def start(restart_count: int) -> WorkerGroup:
        # For each rank a port, a sentinel and an outcome; a log while it is being started.
        make_room_for_descriptors(3 * job.nprocs)
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


def _policy(options: SpawnOptions) -> Policy:
    return Policy(options.grace_period, options.timeout, options.max_restarts)
