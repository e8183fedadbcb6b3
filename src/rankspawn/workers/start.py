"""Starting the workers of a group, all or none; and the start method ``spawn``.

A launcher is made once for a group, and gives a process for each worker that is described to it::

    spawn       a fresh interpreter, with its environment in place before it starts
    fork        a copy of this process; nothing is pickled                        (forked.py)
    forkserver  a copy of a clean server process with ``preload`` modules         (forkserver.py)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from multiprocessing import process as mp_process
from typing import Any, Protocol

from rankspawn.descriptors import Owned
from rankspawn.functions import name_of
from rankspawn.handlers import is_from_handler
from rankspawn.interrupts import sigint_let_through
from rankspawn.portable import is_portable
from rankspawn.supervise.context import RankProcess
from rankspawn.values import dataclass, field
from rankspawn.workers.assembling import assemble
from rankspawn.workers.child import Boot, current_folder
from rankspawn.workers.group import WorkerGroup
from rankspawn.workers.logs import Output, open_output
from rankspawn.workers.marker import VARIABLE, variable_value
from rankspawn.workers.meeting import MEETING_VARIABLE, rank_name
from rankspawn.workers.outcome_file import make_outcome_file
from rankspawn.workers.own_children import chosen_method
from rankspawn.workers.payload import Inheritance, Payload, write_payload
from rankspawn.workers.popen import (
    WorkerPopen,
    adopt_child,
    command,
    explain_start_failure,
    whole_environment,
)
from rankspawn.workers.report import DEAF_TO_INTERRUPTS, LOOKED_AT, read_event_number
from rankspawn.workers.running import settle_at_exit
from rankspawn.workers.tracker import tracker_fd
from rankspawn.workers.worker import FunctionWorker, Worker

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.descriptors import Closable
    from rankspawn.workers.agent_store import AgentStore


@dataclass(frozen=True, slots=True)
class Task:
    """What every worker calls: ``func(*args, *rank_args[i], **kwargs, **rank_kwargs[i])``."""

    func: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    rank_args: Sequence[Sequence[Any]] | None = None
    rank_kwargs: Sequence[Mapping[str, Any]] | None = None

    def bind(self, index: int) -> Callable[[], Any]:
        """The call of the worker with this index, where nothing has to be sent."""
        own = self.rank_args[index] if self.rank_args is not None else ()
        named = self.rank_kwargs[index] if self.rank_kwargs is not None else {}
        kwargs = {**self.kwargs, **named}
        return lambda: self.func(*self.args, *own, **kwargs)

    def rows(self) -> list[tuple[Sequence[Any], Mapping[str, Any]]]:
        """What each worker alone is called with; nothing if all are called alike."""
        count = len(self.rank_args or self.rank_kwargs or ())
        own, named = self.rank_args or [()] * count, self.rank_kwargs or [{}] * count
        return list(zip(own, named, strict=True))

    def write(self, inheritance: Inheritance, settings: StartSettings) -> tuple[Payload, int]:
        """All of it in a file, where it has to be sent, and there the table of the setting."""
        payload = write_payload(self.func, self.args, self.kwargs, self.rows(), inheritance)
        return payload, payload.add(setting_of_parent(payload, settings))


@dataclass(frozen=True, slots=True)
class StartSettings:
    """How the workers of a group are started."""

    start_method: str = "spawn"
    daemon: bool = False
    preload: tuple[str, ...] = ()
    deadline: float | None = None  # when `timeout` is over, on the monotonic clock
    log_dir: str | None = None
    # Output goes to files without a name, for somebody to show it.
    captures: bool = False
    looked_at: bool = False  # somebody looks at what workers say with rankspawn.report()
    # The rank that gets this process's terminal.
    debug_rank: int | None = None
    logging: bytes | None = None  # how it is set up here, if workers are to have the same
    # Tensors among the arguments are put into shared memory, as torch's own spawn does.
    shares_tensors: bool = False


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What one worker is started with, and what to let go of if it is not."""

    rank: int
    index: int
    changes: Mapping[str, str | None]
    outcome_file: Owned
    output: Output
    process: RankProcess
    # This rank reads and writes the terminal of the parent.
    has_terminal: bool = False

    def environment(self) -> dict[str, str]:
        """All of its environment."""
        return whole_environment(self.changes, has_log=self.output.target is not None)

    def close(self) -> None:
        """Let go of it, if the worker is not started."""
        for file in (self.outcome_file, self.output.target, self.output.captured):
            if file is not None:
                file.close()


class Launcher(Protocol):
    """One way to start the workers of a group."""

    def __init__(
        self, task: Task, settings: StartSettings, failure_event: Owned, mark: str, /
    ) -> None: ...

    def launch(self, specs: Sequence[WorkerSpec], /) -> Generator[WorkerPopen, None, None]:
        """Start one worker for each spec, in their order.

        If one cannot be started, those are ended that were started and not yet given out.
        """

    def close(self) -> None:
        """Let go of what was needed for the start."""


class SpawnLauncher:
    """A fresh interpreter, with its environment in place before it starts."""

    by_place = False

    def __init__(self, task: Task, settings: StartSettings, failure_event: Owned, _: str) -> None:
        self._failure_event = failure_event.fileno()
        inheritance = Inheritance(by_place=self.by_place, shares_tensors=settings.shares_tensors)
        self._payload, self._setting = task.write(inheritance, settings)
        self._tracker = tracker_fd()

    def launch(self, specs: Sequence[WorkerSpec]) -> Generator[WorkerPopen, None, None]:
        """Start one worker for each; see :class:`Launcher`."""
        for spec in specs:
            yield self._launch(spec)

    def _launch(self, spec: WorkerSpec) -> WorkerPopen:
        boot = self._boot_record(spec)
        log = None if spec.output.target is None else spec.output.target.fileno()
        child = subprocess.Popen(
            command("rankspawn.workers.child", [f"rankspawn-worker-{spec.rank}", *boot.to_argv()]),
            env=spec.environment(),
            # The parent's input is not theirs to read.
            stdin=None if spec.has_terminal else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=boot.descriptors(),
        )
        # It is reaped through WorkerPopen; this keeps subprocess from waiting for it as well.
        child.returncode = 0
        return adopt_child(child.pid)

    def _boot_record(
        self,
        spec: WorkerSpec,
        *,
        environ: int = 0,
        mark: Sequence[int] = (),
        streams: Sequence[int] = (),
    ) -> Boot:
        """What one worker is told; the options are for those that are not executed."""
        own = self._payload.part_of(spec.index)
        return Boot(
            rank=spec.rank,
            parent=os.getpid(),
            setting=self._setting,
            task=self._payload.task.table,
            own=own.table,
            environ=environ,
            outcome_file=spec.outcome_file.fileno(),
            failure_event=self._failure_event,
            payload=self._payload.file.fileno(),
            tracker=self._tracker,
            mark=mark,
            streams=streams,
            brought=(*self._payload.task.fds, *own.fds),
        )

    def close(self) -> None:
        """Let go of what was needed for the start."""
        self._payload.close()


def _launcher_class(start_method: str) -> type[Launcher]:
    """The class of a start method; loaded when it is first used."""
    if start_method == "fork":
        from rankspawn.workers.forked import ForkLauncher

        return ForkLauncher
    # What a fork server forks are children of the server, which needs a pidfd to hand them over.
    if start_method == "forkserver" and not is_portable():
        from rankspawn.workers.forkserver import ForkserverLauncher

        return ForkserverLauncher
    return SpawnLauncher


def start_group(
    task: Task,
    environments: Sequence[Mapping[str, str | None]],
    settings: StartSettings,
    *,
    grace: float,
    resources: Sequence[Closable] = (),
    first_rank: int = 0,
    is_restart: bool = False,
    store: AgentStore | None = None,
) -> WorkerGroup:
    """Start one worker per environment, watched over in case this process dies.

    Args:
        task: What they run.
        environments: For each rank the changes to this process's environment; None removes.
        settings: How to start.
        grace: Seconds that they get to end, if this process dies.
        resources: What they need while they run; closed with the group.
        first_rank: The rank of the first one; others follow.
        is_restart: Then logs go on where they ended.
        store: Hosts torch's store; started before them, closed with the group.

    Raises:
        TypeError: The task cannot be sent to a worker; nothing was started.
        OSError: A process could not be started; those before it were killed.
    """

    def start(mark: str, place: str, failure_event: Owned, started: list[Worker]) -> None:
        common = {VARIABLE: variable_value(mark), MEETING_VARIABLE: place}
        marked = [{**changes, **common} for changes in environments]
        start_workers(
            task,
            marked,
            settings,
            failure_event,
            mark,
            started,
            first_rank=first_rank,
            is_restart=is_restart,
        )

    # Before the start: a worker may fail, and this process leave, before anybody joins.
    settle_at_exit()
    what = name_of(task.func)
    return assemble(start, grace=grace, what=what, resources=resources, store=store)


def start_workers(
    task: Task,
    environments: Sequence[Mapping[str, str | None]],
    settings: StartSettings,
    failure_event: Owned,
    mark: str,
    started: list[Worker],
    *,
    first_rank: int,
    is_restart: bool,
) -> None:
    """Start one worker per environment; after an exception the caller ends those started.

    Args:
        task: What they run.
        environments: For each rank the changes to this process's environment; None removes.
        settings: How to start.
        failure_event: An eventfd that a failing worker writes to.
        mark: What tells processes of this group from all others.
        started: Gets each worker as soon as it runs.
        first_rank: The rank of the first one; others follow.
        is_restart: Then logs go on where they ended.

    Raises:
        TypeError: The task cannot be sent to a worker; nothing was started.
        OSError: A process could not be started.
    """
    launcher: Launcher | None = None
    waiting: deque[WorkerSpec] = deque()
    environ: Mapping[str, str] = os.environ
    try:
        # Pickles what may be large, and may wait for a fork server that imports a framework.
        make_launcher = _launcher_class(settings.start_method)
        with sigint_let_through():
            launcher = make_launcher(task, settings, failure_event, mark)
        # Before the first start: what this process touches between two forks is copied.
        make_spec = partial(
            _make_spec,
            settings,
            mark,
            event_number=read_event_number(failure_event.fileno()),
            is_restart=is_restart,
        )
        for index, changes in enumerate(environments):
            waiting.append(make_spec(first_rank + index, index, changes))
        environ = waiting[-1].environment()
        with closing(launcher.launch(tuple(waiting))) as popens:
            for popen in popens:
                try:
                    started.append(_adopt(waiting.popleft(), popen))
                except BaseException:  # from a handler: nobody else knows this one yet
                    popen.kill()
                    popen.wait()
                    raise
    except OSError as error:
        if not is_from_handler(error):  # whose TimeoutError is one, too
            error.add_note(explain_start_failure(error, environ, len(started), len(environments)))
        raise
    finally:
        for spec in waiting:
            spec.close()
        if launcher is not None:
            launcher.close()


def _make_spec(
    settings: StartSettings,
    mark: str,
    rank: int,
    index: int,
    changes: Mapping[str, str | None],
    *,
    event_number: int,
    is_restart: bool,
) -> WorkerSpec:
    name = rank_name(mark, index, rank, changes)
    outcome_file = make_outcome_file(name, _flags(settings, rank), event_number)
    has_terminal = rank == settings.debug_rank
    if has_terminal or (settings.log_dir is None and not settings.captures):
        output = Output()  # to where this process's own goes
    else:
        output = open_output(rank, log_dir=settings.log_dir, keep=is_restart)
    process = RankProcess(rank, settings.daemon)
    return WorkerSpec(rank, index, changes, outcome_file, output, process, has_terminal)


def _adopt(spec: WorkerSpec, popen: WorkerPopen) -> FunctionWorker:
    """The worker that was started for an spec."""
    spec.process.has_started(popen)
    if spec.output.target is not None:
        spec.output.target.close()
    return FunctionWorker(
        spec.rank,
        f"rank {spec.rank}",
        popen,
        spec.output.path,
        spec.process,
        spec.outcome_file,
        spec.output.captured,
        spec.output.start,
    )


def _flags(settings: StartSettings, rank: int) -> int:
    """What one worker is told in its outcome file."""
    is_bystander = settings.debug_rank not in (None, rank)
    looked_at = LOOKED_AT if settings.looked_at else 0
    return looked_at | (DEAF_TO_INTERRUPTS if is_bystander else 0)


def setting_of_parent(payload: Payload, settings: StartSettings) -> dict[str, Any]:
    """What ``child.prepare`` takes over of this process in a worker."""
    current = mp_process.current_process()
    main = payload.main
    folder = current_folder()
    return {
        "path": [entry or folder for entry in sys.path],
        "argv": list(sys.argv),
        "folder": folder,
        "logging": settings.logging,
        "main": None if main is None else (main.name, main.path),
        "multiprocessing": {
            "name": "rank-{rank}",
            "authkey": bytes(current.authkey),
            "daemon": settings.daemon,
            "parent_pid": os.getpid(),
            "parent_name": current.name,
            "start_method": (chosen := chosen_method()) or settings.start_method,
        },
        "given_method": None if chosen else settings.start_method,
    }
