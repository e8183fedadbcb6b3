"""How ``compat.torch`` starts workers: in the parent's environment, and in torch's words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rankspawn.caller import at_users_line
from rankspawn.descriptors import make_room_for_descriptors
from rankspawn.option_values import read_count
from rankspawn.options import check_args, read_options
from rankspawn.spawning import refuse_while_loading
from rankspawn.supervise.context import MultiprocessContext, start_context
from rankspawn.supervise.failures import Wording
from rankspawn.supervise.supervisor import SupervisionPolicy
from rankspawn.workers.group import WorkerGroup
from rankspawn.workers.start import StartSettings, Task, start_group

# torch gives SIGTERM 30 seconds.
_GRACE_SECONDS = 30.0
_WORDING = Wording(
    raised="\n\n-- Process {rank} terminated with the following error:\n",
    signalled="process {rank} terminated with signal {signal}",
    exited="process {rank} terminated with exit code {code}",
    explains=False,
)


@at_users_line
def start_indexed(
    fn: Callable[..., Any],
    args: Sequence[Any],
    nprocs: int,
    join: bool,
    daemon: bool,
    start_method: str,
) -> MultiprocessContext[Any]:
    """The context of new workers that call ``fn(*args, index)``; see ``start_processes``."""
    refuse_while_loading()
    count = read_count("nprocs", nprocs, least=1)
    task = Task(fn, check_args(args), {}, [(index,) for index in range(count)])
    options = read_options({"start_method": start_method})
    settings = StartSettings(options.start_method, daemon, shares_tensors=True)
    if settings.start_method == "fork":
        from rankspawn.workers.forked import warn_about_threads

        warn_about_threads()

    def start(_: int) -> WorkerGroup:
        make_room_for_descriptors(2 * count)
        return start_group(task, [{}] * count, settings, grace=_GRACE_SECONDS)

    policy = SupervisionPolicy(grace_period=_GRACE_SECONDS, wording=_WORDING)
    return start_context(start, policy, join=bool(join))
