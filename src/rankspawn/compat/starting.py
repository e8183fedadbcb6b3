"""How ``compat.torch`` starts workers: in the parent's environment, and in torch's words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rankspawn.option_values import read_count
from rankspawn.options import check_args, read_options
from rankspawn.spawning import refuse_while_loading
from rankspawn.workers.context import MultiprocessContext, start_context
from rankspawn.workers.failures import Wording
from rankspawn.workers.group import WorkerGroup
from rankspawn.workers.limits import make_room_for_descriptors
from rankspawn.workers.orders import StartSettings, Task
from rankspawn.workers.start import start_group, warn_about_threads
from rankspawn.workers.supervisor import Policy

# torch gives SIGTERM 30 seconds.
_GRACE_SECONDS = 30.0
_WORDING = Wording(
    raised="\n\n-- Process {rank} terminated with the following error:\n",
    signalled="process {rank} terminated with signal {signal}",
    exited="process {rank} terminated with exit code {code}",
    explains=False,
)


def start_indexed(
    fn: Callable[..., Any],
    args: Sequence[Any],
    nprocs: int,
    join: bool,
    daemon: bool,
    start_method: str,
) -> MultiprocessContext:
    """Start workers that call ``fn(*args, index)``; see ``start_processes`` for the rest."""
    refuse_while_loading()
    count = read_count("nprocs", nprocs, least=1)
    task = Task(fn, check_args(args), {}, [(index,) for index in range(count)])
    options = read_options({"start_method": start_method})
    settings = StartSettings(options.start_method, daemon, shares_tensors=True)
    warn_about_threads(settings)

    def start(_: int) -> WorkerGroup:
        make_room_for_descriptors(2 * count)
        return start_group(task, [{}] * count, settings, grace=_GRACE_SECONDS)

    policy = Policy(grace_period=_GRACE_SECONDS, wording=_WORDING)
    return start_context(start, policy, join=bool(join))
