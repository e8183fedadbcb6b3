"""``spawn()``: from what was asked to a running, supervised group."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from rankspawn.caller import file_of_caller, in_notebook, warn_caller
from rankspawn.compat.peers import also
from rankspawn.descriptors import make_room_for_descriptors
from rankspawn.functions import check_callable, check_func
from rankspawn.handlers import handlers_held
from rankspawn.machine import RealMachine
from rankspawn.options import (
    SpawnOptions,
    check_args,
    check_counts,
    check_nprocs,
    check_rank_args,
    read_options,
)
from rankspawn.plan.environ import DEBUG_VARIABLE
from rankspawn.plan.job import Job, describe, make_plan, resolve
from rankspawn.plan.ports import HeldPorts, hold_ports
from rankspawn.plan.topology import ignored_ips
from rankspawn.supervise.context import MultiprocessContext, start_context
from rankspawn.supervise.on_quit import StacksOnQuit
from rankspawn.supervise.supervisor import SupervisionPolicy
from rankspawn.workers import child
from rankspawn.workers.group import WorkerGroup
from rankspawn.workers.start import StartSettings, Task, start_group

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.plan.topology import Topology
    from rankspawn.supervise.group import Spectator
    from rankspawn.trace.recorder import Recorder
    from rankspawn.view.relay import LogRelay
    from rankspawn.view.request import ShowRequest
    from rankspawn.view.sources import Place
    from rankspawn.workers.agent_store import AgentStore


def spawn_ranks(
    func: Callable[..., Any],
    args: Sequence[Any],
    nprocs: int | Sequence[int],
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
    check_callable(func)
    options = read_options(given)
    arguments = check_args(args)
    # Of this option alone, None is something else than nothing.
    inherits = given.get("logging", "auto") is not None
    if options.cluster is not None:
        func = check_func(func, arguments, options)
        task = Task(func, arguments, options.kwargs, options.rank_args, options.rank_kwargs)
        logging = _captured_logging(options, wanted=inherits)
        return _spawn_on_cluster(task, nprocs, join, daemon, options, logging)
    job = resolve(check_nprocs(nprocs), options, os.environ, RealMachine())
    check_rank_args(options, job.resources.nprocs)
    func = check_func(func, arguments, options)
    spectators = _spectators(job)
    recorder = None
    if options.trace is not None:
        recorder = _recorder(func, options.trace, _places(job), job.topology.node_rank)
    if recorder is not None:
        spectators.append(recorder)
    if job.resources.warning:
        warn_caller(job.resources.warning, UserWarning)
    if (ignored := ignored_ips(options, os.environ)) is not None:
        warn_caller(ignored, UserWarning)
    task = Task(func, arguments, options.kwargs, options.rank_args, options.rank_kwargs)
    settings = _settings(options, daemon=bool(daemon), inherits_logging=inherits)
    if settings.log_dir is not None:
        from rankspawn.file_systems import check_answers

        check_answers(settings.log_dir)
    if settings.start_method == "fork":
        with handlers_held():
            from rankspawn.workers.forked import warn_about_threads

        warn_about_threads()
    if options.agent_store:
        from rankspawn.workers.agent_store import check_torch

        check_torch()
    relay = _log_relay(job)
    if relay is not None:
        spectators.append(relay)
    start = _starter(task, job, settings, relay)
    # Who asks whether it is one of Paddle's is told so.
    make = also(MultiprocessContext, "paddle.distributed.spawn", "MultiprocessContext")
    return start_context(
        start, _policy(options, recorder), join=bool(join), spectators=spectators, make=make
    )


def _spawn_on_cluster(
    task: Task,
    nprocs: Any,
    join: bool,
    daemon: bool,
    options: SpawnOptions,
    logging: bytes | None,
) -> MultiprocessContext:
    """The same with agents on nodes that an engine starts."""
    from rankspawn.cluster.starting import make_starter

    counts = check_counts(nprocs)
    recorder = None if options.trace is None else _recorder(task.func, options.trace, [])
    starter = make_starter(
        options.cluster,
        task,
        options,
        counts,
        daemon=bool(daemon),
        logging=logging,
        recorder=recorder,
    )
    spectators = starter.spectators()
    make = also(MultiprocessContext, "paddle.distributed.spawn", "MultiprocessContext")
    return start_context(
        starter.start,
        _policy(starter.supervised, recorder),
        join=bool(join),
        spectators=spectators,
        make=make,
    )


def refuse_while_loading() -> None:
    """Stop a module without ``__main__`` guard from starting workers in its workers."""
    if child.is_loading:
        from rankspawn.workers.exceptions import MissingGuardError

        raise MissingGuardError(file_of_caller())


def _settings(options: SpawnOptions, *, daemon: bool, inherits_logging: bool) -> StartSettings:
    log_dir = None if options.log_dir is None else os.path.abspath(options.log_dir)
    deadline = None if options.timeout is None else time.monotonic() + options.timeout
    shown = _show_request(options)
    return StartSettings(
        options.start_method,
        daemon,
        options.preload,
        deadline,
        log_dir,
        captures=shown is not None and shown.captures,
        looked_at=options.progress
        or (options.on_report, options.trace, options.stall_timeout) != (None, None, None),
        logging=_captured_logging(options, wanted=inherits_logging),
        debug_rank=None if options.debug is None else options.debug.rank,
    )


def _captured_logging(options: SpawnOptions, *, wanted: bool) -> bytes | None:
    """How ``logging`` is set up here, if ranks are to have the same."""
    if (
        not wanted
        or options.logging == "relay"
        or (options.logging == "auto" and "logging" not in sys.modules)
    ):
        return None
    from rankspawn.workers.log_capture import capture, is_configured

    return capture() if options.logging == "inherit" or is_configured() else None


def _show_request(options: SpawnOptions) -> ShowRequest | None:
    """What is to be shown; whoever asks for nothing does not even load what decides."""
    asked = (options.tee, options.stall_timeout) != (None, None)
    asked = asked or options.progress or in_notebook()
    if not asked and options.prefix is None:
        return None
    from rankspawn.view.request import read_show_request

    return read_show_request(options, in_notebook=in_notebook())


def _spectators(job: Job) -> list[Spectator]:
    """Who shows what the ranks do, or lends one of them the terminal."""
    options = job.options
    spectators: list[Spectator] = []
    world_size = job.topology.world_size
    shown = _show_request(options)
    if (options.tee, options.prefix, options.debug) != (None, None, None):
        from rankspawn.view.request import check_show_request

        check_show_request(options, shown, world_size)
    if shown is not None:
        from rankspawn.view.viewer import View

        spectators.append(View(shown, _places(job)))
    if options.debug is not None:
        from rankspawn.view.terminal import LentTerminal, check_terminal

        check_terminal(f"debug={options.debug}", in_notebook=in_notebook())
        spectators.append(LentTerminal(options.debug.rank))
    if options.debugpy is not None:
        from rankspawn.plan.debuggers import check_debugged_rank, check_debugpy

        other = "" if options.debug is None else f"debug={options.debug}"
        check_debugpy(f"debugpy={options.debugpy}", other=other)
        check_debugged_rank(f"debugpy={options.debugpy}", options.debugpy.rank, world_size)
    spectators.append(StacksOnQuit())
    return spectators


def _recorder(
    func: Callable[..., Any], trace: str, places: Sequence[Place], node_rank: int = 0
) -> Recorder:
    """Who writes the trace that was asked for."""
    from rankspawn.trace.recorder import Recorder
    from rankspawn.trace.request import describe_run, place_trace

    path = place_trace(trace, node_rank=node_rank)
    name = getattr(func, "__qualname__", type(func).__name__)
    return Recorder(path, places, describe_run(str(name)))


def _places(job: Job) -> list[Place]:
    """What the view calls each rank of this node."""
    from rankspawn.view.sources import Place

    resources, topology = job.resources, job.topology
    kind = resources.device_type
    places = []
    for index in range(resources.nprocs):
        device = resources.devices[index].id if resources.devices else None
        name = kind if device is None else f"{kind} {device}"
        gpu = device if kind == "gpu" else None
        rank = topology.first_rank + index
        where = (topology.node_rank, os.uname().nodename)
        places.append(Place(rank, index, topology.world_size, name, gpu, *where))
    return places


def _log_relay(job: Job) -> LogRelay | None:
    """Who hands what ranks log to this program's handlers, if that was asked for."""
    if job.options.logging != "relay":
        return None
    from rankspawn.view.relay import LogRelay, check_relay

    check_relay()
    return LogRelay(_places(job))


def _starter(
    task: Task, job: Job, settings: StartSettings, relay: LogRelay | None
) -> Callable[[int], WorkerGroup]:
    """A function that starts the group, each time on fresh ports."""
    options = job.options
    run_id = os.urandom(16).hex()

    def start(restart_count: int) -> WorkerGroup:
        make_room_for_descriptors(_descriptors_per_rank(options) * job.resources.nprocs)
        with nullcontext(settings) if relay is None else relay.opened(settings) as own:
            ports = hold_ports(job.topology)
            group = start_planned(
                task, job, ports, own, show=_show, run_id=run_id, restart_count=restart_count
            )
        group.stops_on_failure = options.on_failure == "stop"
        return group

    return start


def _with_debugged(env: Mapping[str, str | None], options: SpawnOptions) -> dict[str, str | None]:
    """These changes, and which rank is debugged; not the one of a group that this rank is in."""
    debugged = None if options.debug is None else str(options.debug)
    is_new = debugged is not None or DEBUG_VARIABLE in os.environ
    return {**env, DEBUG_VARIABLE: debugged} if is_new else dict(env)


def _show(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - what print_config is for


def start_planned(
    task: Task,
    job: Job,
    ports: HeldPorts,
    settings: StartSettings,
    *,
    show: Callable[[str], None],
    run_id: str,
    restart_count: int,
) -> WorkerGroup:
    """Start this node's ranks of a job.

    Args:
        task: What they run.
        job: What was decided.
        ports: Theirs; they belong to the group, or are let go of if there is none.
        settings: How to start.
        show: Gets the plan, if somebody wants to see it.
        run_id: A name for the job that no other one has.
        restart_count: How often it was started before.
    """
    options = job.options
    store: AgentStore | None = None
    resources = [ports]
    try:
        plan = make_plan(job, ports.ports, run_id=run_id, restart_count=restart_count)
        if options.numa is not None:
            from rankspawn.plan.numa import bound

            plan = bound(plan, options.numa, job.resources)
        if options.print_config:
            show(describe(plan))
        if options.agent_store:
            store = _make_store(job.topology, ports.ports[0])
        environments = [_with_debugged(spec.env, options) for spec in plan.ranks]
        if options.debugpy is not None:
            from rankspawn.plan.debuggers import DEBUGPY_VARIABLE, hold_debug_ports

            ranks = [spec.rank for spec in plan.ranks]
            held, told = hold_debug_ports(options.debugpy, ranks)
            resources.append(held)
            for changes, value in zip(environments, told, strict=True):
                changes[DEBUGPY_VARIABLE] = value
    except BaseException:
        for each in resources:
            each.close()
        raise
    return start_group(
        task,
        environments,
        settings,
        grace=options.grace_period,
        resources=resources,
        first_rank=plan.ranks[0].rank,
        is_restart=restart_count > 0,
        store=store,
    )


def _make_store(topology: Topology, port: int) -> AgentStore | None:
    """What hosts torch's store; None on other nodes than the first."""
    from rankspawn.workers.agent_store import AgentStore

    if topology.node_rank != 0:
        return None
    return AgentStore(topology.bind_host, port, is_shared=len(topology.nodes) > 1)


def _descriptors_per_rank(options: SpawnOptions) -> int:
    """How many this process has open for each rank."""
    if _show_request(options):  # also its output, and a copy of that
        return 5 if options.trace is None else 6
    # A port, a sentinel and an outcome; a log while it is being started.
    return 3 if options.log_dir is None else 4 if options.trace is None else 5


def _policy(options: SpawnOptions, recorder: Recorder | None) -> SupervisionPolicy:
    return SupervisionPolicy(
        options.grace_period,
        options.timeout,
        options.max_restarts,
        interrupts_reach_workers=options.debug is None,
        on_report=options.on_report,
        stops_on_failure=options.on_failure == "stop",
        takes_stacks=options.stacks,
        keeps_alive=options.keep_alive_on_failure,
        stall_timeout=options.stall_timeout,
        on_answer=None if recorder is None else recorder.note_answer,
    )
