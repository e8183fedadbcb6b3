"""Running the ranks of a test, and hearing from them until all ended or time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from rankspawn import MultiprocessContext, spawn
from rankspawn.pytest_plugin import WARM_PROCESS
from rankspawn.pytest_plugin.in_worker import run_test
from rankspawn.pytest_plugin.messages import (
    BROKEN,
    EXIT,
    REPORT,
    STARTED,
    WARNING,
    Assignment,
    read_message,
    unpack_warning,
)
from rankspawn.pytest_plugin.request import RanksRequest, StartError
from rankspawn.pytest_plugin.warm_process import PRELOADED, WarmProcess, arguments_of
from rankspawn.workers.exceptions import unpack
from rankspawn.workers.logs import log_path, read_end

# Ranks that fail the same assertion do so at about the same time; those that wait for a
# failed one will not get any further.
_LINGER_SECONDS = 2.0
# Ranks that have not begun when another one fails are waited for, to tell how far they get; a slow
# import should not hide that they fail as well.
_BEGIN_SECONDS = 10.0
# More of one rank's output than anybody reads; the end of it is what counts.
_MOST_OUTPUT = 1_000_000
# Options whose value a plugin chose once for the whole run, so that a rank must not choose again.
_CHOSEN_ONCE = ("randomly_seed",)


@dataclass(slots=True)
class RankHistory:
    """What a rank has told so far, and how it ended.

    Attributes:
        rank: The rank.
        reports: Its phases as pytest reports them: setup, call, teardown.
        exception: The first exception that failed a phase.
        broken: Why there is no report, or not all of them.
        failed_at: When it failed, as ``time.time`` has it; 0 before.
        exit: What it gave to ``pytest.exit``.
        stacks: Where it was when it was stopped.
        output: What it printed.
        output_start: The byte of its log at which the test began.
        bytes_heard: How much of its file of messages was read.
        begun_at: When it began the test, on the monotonic clock; None before.
    """

    rank: int
    reports: list[pytest.TestReport] = field(default_factory=list)
    exception: BaseException | None = None
    broken: str | None = None
    failed_at: float = 0.0
    exit: str | None = None
    stacks: str | None = None
    output: str = ""
    output_start: int = 0
    bytes_heard: int = 0
    begun_at: float | None = None

    @property
    def failure(self) -> pytest.TestReport | None:
        """The report of the first phase that failed."""
        return self.first(lambda report: report.failed)

    @property
    def has_failed(self) -> bool:
        """Whether it failed by itself, rather than being stopped because of another one."""
        return self.failure is not None or self.broken is not None

    def first(self, matches: Callable[[pytest.TestReport], bool]) -> pytest.TestReport | None:
        """The first of its reports that matches."""
        return next(filter(matches, self.reports), None)


@dataclass(slots=True)
class Run:
    """What is known about all ranks of a test.

    Attributes:
        histories: Of each rank, by rank.
        failed: Of the ranks that failed, by the time of the failure.
        timeout: The limit in seconds, if it was reached.
        uses_pdb: Whether pytest was called with ``--pdb``.
    """

    histories: list[RankHistory]
    failed: list[RankHistory] = field(default_factory=list)
    timeout: float | None = None
    uses_pdb: bool = False

    @property
    def wants_exit(self) -> bool:
        """Whether a rank asked for the end of the whole run of pytest."""
        return any(history.exit is not None for history in self.histories)


def run_ranks(item: pytest.Function, request: RanksRequest) -> Run:
    """Run a test's ranks and hear what they tell; none is left when this returns or raises.

    Raises:
        pytest.exit.Exception: A rank called ``pytest.exit``.
        StartError: The options are impossible, or a process cannot be started.
    """
    factory: Any = item.funcargs["tmp_path_factory"]
    folder: Path = factory.mktemp("ranks")
    assignment = _assign(item, folder)
    started_at = time.monotonic()
    options = _how_to_start(item, request)
    spent = time.monotonic() - started_at
    captures = item.config.getoption("capture", "fd") != "no"
    log_dir = str(folder / "output") if captures else None
    pipes = [get_context("spawn").Pipe(duplex=False) for _ in range(request.ranks)]
    run = Run([RankHistory(rank) for rank in range(request.ranks)])
    run.uses_pdb = bool(item.config.getoption("usepdb", False))
    try:
        with _start(assignment, [writer for _, writer in pipes], options, log_dir) as context:
            # The ranks have copies; with ours open no pipe would ever end.
            for _, writer in pipes:
                writer.close()
            readers = [reader for reader, _ in pipes]
            Listener(run, context, readers, assignment, item.config).listen(request.timeout, spent)
    finally:
        for ends in pipes:
            for end in ends:
                end.close()
    for history in run.histories:
        if log_dir is not None:
            path = log_path(log_dir, history.rank)
            output = read_end(path, start=history.output_start, most=_MOST_OUTPUT)
            history.output = output.decode("utf-8", "replace")
        if history.exit is not None:
            pytest.exit(f"rank {history.rank}: {history.exit}")
    return run


def _start(
    assignment: Assignment,
    writers: list[Connection],
    options: Mapping[str, Any],
    log_dir: str | None,
) -> MultiprocessContext:
    """The started ranks; StartError if there cannot be any."""
    try:
        return spawn(
            run_test,
            args=(assignment,),
            nprocs=len(writers),
            join=False,
            rank_args=[(writer,) for writer in writers],
            log_dir=log_dir,
            **options,
        )
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        raise StartError(f"the ranks cannot be started: {error}{notes}") from error


def _assign(item: pytest.Function, folder: Path) -> Assignment:
    """What the ranks of a test are told; makes the folder that they share."""
    config = item.config
    shared = folder / "shared"
    shared.mkdir()
    _, _, name = item.nodeid.partition("::")
    return Assignment(
        target=f"{item.path}::{name}",
        args=tuple(arguments_of(config)),
        folder=str(config.invocation_params.dir),
        temporary=str(folder),
        shared_folder=str(shared),
        options=_chosen_once(config),
    )


def _chosen_once(config: pytest.Config) -> dict[str, Any]:
    return {name: config.getoption(name) for name in _CHOSEN_ONCE if hasattr(config.option, name)}


def _how_to_start(item: pytest.Function, request: RanksRequest) -> dict[str, Any]:
    """The options of ``spawn``: copies of the warm process if that can be."""
    options = dict(request.options)
    if not request.is_warm:
        return options
    stash = item.session.config.stash
    warm = stash.get(WARM_PROCESS, None)
    if warm is None:
        warm = stash[WARM_PROCESS] = WarmProcess(item.session, _chosen_once(item.config))
    if warm.has_collected(item, request.ranks, request.timeout):
        options |= {"start_method": "forkserver", "preload": PRELOADED}
    return options


class Listener:
    """Hears what the ranks of a run have to say, and how they end."""

    def __init__(
        self,
        run: Run,
        context: MultiprocessContext,
        readers: list[Connection],
        assignment: Assignment,
        config: pytest.Config,
    ) -> None:
        self._run = run
        self._context = context
        self._assignment = assignment
        self._config = config
        self._readers = dict(zip(readers, run.histories, strict=True))

    def listen(self, timeout: float | None, spent: float) -> None:
        """Listen until all ended, or one failed and the rest had a moment, or the time is over.

        Args:
            timeout: Seconds for the test; None for no limit.
            spent: How many of them have gone by.
        """
        run = self._run
        deadline = float("inf") if timeout is None else time.monotonic() + timeout - spent
        first_failure: float | None = None
        ends = dict(self._context.sentinels)
        while ends:
            running = [run.histories[rank] for rank in ends.values()]
            limit = min(deadline, _deadline_after(first_failure, running))
            left = None if limit == float("inf") else max(0.0, limit - time.monotonic())
            ready = connection.wait([*self._readers, *ends], left)
            if not ready:
                break
            # What a rank said comes before the news of its end.
            for reader in [source for source in ready if isinstance(source, Connection)]:
                self._hear(reader)
            for sentinel in [source for source in ready if isinstance(source, int)]:
                self._note_end(run.histories[ends.pop(sentinel)])
            self._note_failures()
            if first_failure is None and (run.failed or run.wants_exit):
                first_failure = time.monotonic()
        if ends:
            run.timeout = timeout if first_failure is None else None
            for rank, text in self._context.dump_stacks().items():
                run.histories[rank].stacks = text

    def _note_failures(self) -> None:
        """Sort the ranks that failed by their own time of it.

        Not by when we heard: a rank that fails because it lost its peer is heard in the same
        moment as that one.
        """
        failed = [history for history in self._run.histories if history.has_failed]
        for history in failed:
            if not history.failed_at:
                history.failed_at = getattr(history.failure, "stop", None) or time.time()
        self._run.failed = sorted(failed, key=lambda history: history.failed_at)

    def _hear(self, reader: Connection) -> None:
        """Take a message from a pipe; forget the pipe at its end."""
        history = self._readers[reader]
        try:
            length = int(reader.recv_bytes())
        except (EOFError, OSError):
            del self._readers[reader]
            return
        path = self._assignment.message_file(history.rank)
        kind, content, exception = read_message(path, history.bytes_heard, length)
        history.bytes_heard += length
        if kind == STARTED:
            history.output_start, history.begun_at = content, time.monotonic()
        elif kind == WARNING:
            self._config.hook.pytest_warning_recorded.call_historic(
                kwargs={**content, "warning_message": unpack_warning(content["warning_message"])}
            )
        elif kind == REPORT:
            history.reports.append(
                self._config.hook.pytest_report_from_serializable(config=self._config, data=content)
            )
        elif kind == EXIT:
            history.exit = content
        elif kind == BROKEN and history.broken is None:
            history.broken = content
        if exception is not None and history.exception is None:
            history.exception = unpack(exception)

    def _note_end(self, history: RankHistory) -> None:
        """Take what a rank said before its process ended, and how it ended if not well."""
        for reader in [reader for reader, whose in self._readers.items() if whose is history]:
            # Not until the end of the pipe, which another rank may hold open: a fork copies it.
            while reader in self._readers and reader.poll():
                self._hear(reader)
            self._readers.pop(reader, None)
        errors = self._context.error_queues[history.rank]
        if history.broken is None and not errors.empty():
            history.broken = _without_output(errors.get())
        elif not (history.has_failed or history.exit is not None or _is_complete(history)):
            history.broken = "its process ended before the test did"


def _deadline_after(first_failure: float | None, running: list[RankHistory]) -> float:
    """Until when the ranks that run are waited for, once one has failed."""
    if first_failure is None:
        return float("inf")
    begun = [history.begun_at for history in running if history.begun_at is not None]
    if len(begun) < len(running):
        return first_failure + _BEGIN_SECONDS
    return max([first_failure, *begun]) + _LINGER_SECONDS


def _without_output(error: str) -> str:
    """The error without the last lines of output, which are shown with the rest of them."""
    return error if error.startswith("Traceback") else error.partition("\n")[0]


def _is_complete(history: RankHistory) -> bool:
    """Whether the rank has told of the last phase of its test."""
    return any(report.when == "teardown" for report in history.reports)
