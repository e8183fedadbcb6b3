"""How ``compat.torch`` starts workers: in the parent's environment, and in torch's words."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Iterable
from typing import Any

from rankspawn.caller import at_users_line
from rankspawn.compat.torch_context import ProcessContext, context_class
from rankspawn.compat.torch_errors import class_for
from rankspawn.descriptors import make_room_for_descriptors
from rankspawn.handlers import handlers_held
from rankspawn.option_values import read_count, shown
from rankspawn.options import read_options
from rankspawn.spawning import refuse_while_loading
from rankspawn.supervise.context import start_context
from rankspawn.supervise.failures import Wording
from rankspawn.supervise.supervisor import SupervisionPolicy
from rankspawn.workers.group import WorkerGroup
from rankspawn.workers.start import StartSettings, Task, start_group

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.supervise.group import Group

logger: logging.Logger = logging.getLogger("rankspawn.compat.torch")

# torch gives SIGTERM 30 seconds.
_GRACE_SECONDS = 30.0
WORDING = Wording(
    raised="\n\n-- Process {rank} terminated with the following error:\n",
    signalled="process {rank} terminated with signal {signal}",
    exited="process {rank} terminated with exit code {code}",
    explains=False,
    class_for=class_for,
)


@at_users_line
def start_indexed(
    fn: Callable[..., Any],
    args: Iterable[Any],
    nprocs: int,
    join: bool,
    daemon: bool,
    start_method: str | None,
) -> ProcessContext[Any]:
    """The context of new workers that call ``fn(*args, index)``; see ``start_processes``."""
    refuse_while_loading()
    count = read_count("nprocs", nprocs, least=1)
    if not isinstance(args, Iterable):
        raise TypeError(f"args must be a tuple or another iterable, not {shown(args)}")
    task = Task(fn, tuple(args), {}, [(index,) for index in range(count)])
    options = read_options({"start_method": start_method or _default_method()})
    settings = StartSettings(options.start_method, daemon, shares_tensors=True)
    if settings.start_method == "fork":
        with handlers_held():
            from rankspawn.workers.forked import warn_about_threads

        warn_about_threads()

    def start(_: int) -> WorkerGroup:
        make_room_for_descriptors(2 * count)
        return start_group(task, [{}] * count, settings, grace=_GRACE_SECONDS)

    context = start_context(start, make_policy(), join=bool(join), make=context_class().over)
    assert isinstance(context, ProcessContext), "that is what makes it"
    return context


def make_policy() -> SupervisionPolicy:
    """How torch supervises."""
    return SupervisionPolicy(
        grace_period=_GRACE_SECONDS, wording=WORDING, before_stop=_tell_who_is_terminated
    )


def _default_method() -> str:
    """multiprocessing's; asking for it does not settle it, as its own question would."""
    set_method = multiprocessing.get_start_method(allow_none=True)
    return set_method or multiprocessing.get_all_start_methods()[0]


def _tell_who_is_terminated(group: Group) -> None:
    for index in sorted(group.sentinels.values()):
        if index not in group.outcomes:
            pid = group.processes[index].pid
            logger.warning("Terminating process %s via signal SIGTERM", pid)
