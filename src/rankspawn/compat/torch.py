"""The names of ``torch.multiprocessing.spawn``; torch itself is not imported.

As there, the function gets the worker's index first, the environment is the parent's own, and
joining returns None. What differs is what does not work there: results and tracebacks of any
size, functions that plain pickle refuses, and workers that vanish without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rankspawn.errors import ProcessException, ProcessExitedException, ProcessRaisedException
from rankspawn.options import check_args, check_nprocs, read_options
from rankspawn.spawning import refuse_while_loading
from rankspawn.warned import warn_caller
from rankspawn.workers.context import MultiprocessContext, start_context
from rankspawn.workers.failures import Wording
from rankspawn.workers.group import WorkerGroup
from rankspawn.workers.limits import make_room_for_descriptors
from rankspawn.workers.orders import StartSettings, Task
from rankspawn.workers.start import start_group, warn_about_threads
from rankspawn.workers.supervisor import Policy

__all__ = [
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "spawn",
    "start_processes",
]

ProcessContext = MultiprocessContext
SpawnContext = MultiprocessContext

# torch gives SIGTERM 30 seconds.
_GRACE_SECONDS = 30.0
_WORDING = Wording(
    raised="\n\n-- Process {rank} terminated with the following error:\n",
    signalled="process {rank} terminated with signal {signal}",
    exited="process {rank} terminated with exit code {code}",
    explains=False,
)


class IndexFirst:
    """Runs in the worker: calls ``fn(index, *args)``; the index arrives last."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def __call__(self, *arguments: Any) -> Any:
        *args, index = arguments
        return self.fn(index, *args)


def start_processes(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> MultiprocessContext | None:
    """Run ``fn(i, *args)`` in ``nprocs`` processes, i from 0.

    Args:
        fn: What to run.
        args: Its arguments after the index.
        nprocs: How many.
        join: Wait for them.
        daemon: Their daemon flag.
        start_method: ``spawn``, ``fork`` or ``forkserver``.

    Returns:
        None if joined, else the context.

    Raises:
        ProcessRaisedException: ``fn`` raised.
        ProcessExitedException: A process ended in another way.
    """
    refuse_while_loading()
    count = check_nprocs(nprocs)
    if count < 1:
        raise ValueError(f"nprocs must be at least 1, not {nprocs}")
    task = Task(IndexFirst(fn), check_args(args), {}, [(index,) for index in range(count)])
    options = read_options({"start_method": start_method})
    settings = StartSettings(options.start_method, daemon, shares_tensors=True)
    warn_about_threads(settings)

    def start(_: int) -> WorkerGroup:
        make_room_for_descriptors(2 * count)
        return start_group(task, [{}] * count, settings, grace=_GRACE_SECONDS)

    policy = Policy(grace_period=_GRACE_SECONDS, wording=_WORDING)
    context = start_context(start, policy, join=bool(join))
    return None if join else context


def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> MultiprocessContext | None:
    """:func:`start_processes` with the start method spawn; another one gets a warning."""
    if start_method != "spawn":
        warn_caller(
            f"spawn() starts with 'spawn' only, as torch's does; call "
            f"start_processes(start_method={start_method!r}) for the other",
            FutureWarning,
        )
    return start_processes(fn, args, nprocs, join, daemon, "spawn")
