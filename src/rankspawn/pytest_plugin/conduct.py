"""Running the ranks of a test, and hearing from them until all ended or time is over."""

from __future__ import annotations

import os
import pickle
import time
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from rankspawn import MultiprocessContext, spawn
from rankspawn.pytest_plugin.in_worker import BROKEN, EXIT, REPORT, STARTED, WARNING, run_test
from rankspawn.pytest_plugin.orders import Orders
from rankspawn.pytest_plugin.request import RanksRequest, StartError
from rankspawn.pytest_plugin.warned import unpack_warning
from rankspawn.workers.exceptions import unpack
from rankspawn.workers.logs import log_path

__all__ = ["Run", "Story", "conduct"]

# Ranks that fail the same assertion do so at about the same time; those that wait for a
# failed one will not get any further.
LINGER_SECONDS = 2.0
# Ranks that have not begun when another one fails are waited for, to tell where they get; a slow
# import should not hide that they fail as well.
BEGIN_SECONDS = 10.0
# More of one rank's output than anybody reads; the end of it is what counts.
_MOST_OUTPUT = 1_000_000
# What plugins chose once for the whole run.
_CHOSEN_ONCE = ("randomly_seed",)


@dataclass(slots=True)
class Story:
    """What is known about one rank.

    Attributes:
        rank: Which one.
        reports: Its phases as pytest reports them: setup, call, teardown.
        exception: The first exception that failed a phase.
        broken: Why there is no report, or not all of them.
        failed_at: When it failed, as ``time.time`` has it.
        exit: What it gave to ``pytest.exit``.
        stacks: Where it was when it was stopped.
        output: What it printed.
        output_start: Where in its log the test began.
        heard: Bytes of its messages that were read.
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
    heard: int = 0
    begun_at: float | None = None

    @property
    def failure(self) -> pytest.TestReport | None:
        """The first phase that failed."""
        return next((report for report in self.reports if report.failed), None)

    @property
    def has_failed(self) -> bool:
        """It failed by itself."""
        return self.failure is not None or self.broken is not None


@dataclass(slots=True)
class Run:
    """All ranks of a test.

    Attributes:
        stories: By rank.
        failed: Those that failed, by time.
        timeout: The limit, if it was reached.
        uses_pdb: Somebody wants a debugger.
    """

    stories: list[Story]
    failed: list[Story] = field(default_factory=list)
    timeout: float | None = None
    uses_pdb: bool = False

    @property
    def wants_exit(self) -> bool:
        """A rank asked for the end of the whole run."""
        return any(story.exit is not None for story in self.stories)


def conduct(item: pytest.Function, request: RanksRequest) -> Run:
    """Run a test's ranks; none of them is left when it returns or raises.

    Raises:
        pytest.exit.Exception: A rank called ``pytest.exit``.
        StartError: The options are impossible, or a process cannot be started.
    """
    factory: Any = item.funcargs["tmp_path_factory"]
    folder: Path = factory.mktemp("ranks")
    orders = _orders(item, folder)
    live = item.config.getoption("capture", "fd") == "no"
    pipes = [get_context("spawn").Pipe(duplex=False) for _ in range(request.ranks)]
    run = Run([Story(rank) for rank in range(request.ranks)])
    run.uses_pdb = bool(item.config.getoption("usepdb", False))
    try:
        log_dir = None if live else str(folder / "output")
        with _start(orders, [writer for _, writer in pipes], request, log_dir) as context:
            for _, writer in pipes:
                writer.close()
            readers = [reader for reader, _ in pipes]
            Listener(run, context, readers, orders, item.config).listen(request.timeout)
    finally:
        for ends in pipes:
            for end in ends:
                end.close()
    for story in run.stories:
        if not live:
            path = log_path(str(folder / "output"), story.rank)
            story.output = _read_output(path, story.output_start)
        if story.exit is not None:
            pytest.exit(f"rank {story.rank}: {story.exit}")
    return run


def _start(
    orders: Orders, writers: list[Connection], request: RanksRequest, log_dir: str | None
) -> MultiprocessContext:
    try:
        return spawn(
            run_test,
            args=(orders,),
            nprocs=request.ranks,
            join=False,
            rank_args=[(writer,) for writer in writers],
            log_dir=log_dir,
            **request.options,
        )
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        raise StartError(f"the ranks cannot be started: {error}{notes}") from error


def _orders(item: pytest.Function, folder: Path) -> Orders:
    config = item.config
    shared = folder / "shared"
    shared.mkdir()
    _, _, name = item.nodeid.partition("::")
    args = [str(arg) for arg in config.invocation_params.args]
    if config.pluginmanager.hasplugin("_cov"):
        # Its workers talk to a controller that is not there; see the page on testing.
        args.append("--no-cov")
    return Orders(
        target=f"{item.path}::{name}",
        args=tuple(args),
        folder=str(config.invocation_params.dir),
        temporary=str(folder),
        shared_folder=str(shared),
        options={
            name: config.getoption(name) for name in _CHOSEN_ONCE if hasattr(config.option, name)
        },
    )


class Listener:
    """Hears what the ranks of a run have to say, and how they end."""

    def __init__(
        self,
        run: Run,
        context: MultiprocessContext,
        readers: list[Connection],
        orders: Orders,
        config: pytest.Config,
    ) -> None:
        self._run = run
        self._context = context
        self._orders = orders
        self._config = config
        self._readers = dict(zip(readers, run.stories, strict=True))

    def listen(self, timeout: float | None) -> None:
        """Until all ended, or one failed and the rest had a moment, or the time is over."""
        run = self._run
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        first_failure: float | None = None
        ends = dict(self._context.sentinels)
        while ends:
            running = [run.stories[rank] for rank in ends.values()]
            limit = min(deadline, _patience(first_failure, running))
            left = None if limit == float("inf") else max(0.0, limit - time.monotonic())
            ready = connection.wait([*self._readers, *ends], left)
            if not ready:
                break
            # What a rank said comes before the news of its end.
            for reader in [one for one in ready if isinstance(one, Connection)]:
                self._hear(reader)
            for sentinel in [one for one in ready if isinstance(one, int)]:
                self._note_end(run.stories[ends.pop(sentinel)])
            self._note_failures()
            if first_failure is None and (run.failed or run.wants_exit):
                first_failure = time.monotonic()
        if ends:
            run.timeout = timeout if first_failure is None else None
            for rank, text in self._context.dump_stacks().items():
                run.stories[rank].stacks = text

    def _note_failures(self) -> None:
        """By the ranks' own time: one that lost its peer is heard at the same moment as it."""
        failed = [story for story in self._run.stories if story.has_failed]
        for story in failed:
            if not story.failed_at:
                story.failed_at = getattr(story.failure, "stop", None) or time.time()
        self._run.failed = sorted(failed, key=lambda story: story.failed_at)

    def _hear(self, reader: Connection) -> None:
        """Take one message."""
        story = self._readers[reader]
        try:
            length = int(reader.recv_bytes())
        except (EOFError, OSError):
            del self._readers[reader]
            return
        kind, content, exception = self._read_message(story, length)
        if kind == STARTED:
            story.output_start, story.begun_at = content, time.monotonic()
        elif kind == WARNING:
            self._config.hook.pytest_warning_recorded.call_historic(
                kwargs={**content, "warning_message": unpack_warning(content["warning_message"])}
            )
        elif kind == REPORT:
            story.reports.append(
                self._config.hook.pytest_report_from_serializable(config=self._config, data=content)
            )
        elif kind == EXIT:
            story.exit = content
        elif kind == BROKEN and story.broken is None:
            story.broken = content
        if exception is not None and story.exception is None:
            story.exception = unpack(exception)

    def _read_message(self, story: Story, length: int) -> tuple[str, Any, Any]:
        """The next message of a rank; written before its length was told."""
        with open(self._orders.message_file(story.rank), "rb") as file:
            file.seek(story.heard)
            story.heard += length
            message: tuple[str, Any, Any] = pickle.loads(file.read(length))
            return message

    def _note_end(self, story: Story) -> None:
        """A process is gone: take what it still said, and how it ended if that was not well."""
        for reader in [one for one, whose in self._readers.items() if whose is story]:
            while reader in self._readers and reader.poll():
                self._hear(reader)
            self._readers.pop(reader, None)
        errors = self._context.error_queues[story.rank]
        if story.broken is None and not errors.empty():
            story.broken = _without_output(errors.get())
        elif not (story.has_failed or story.exit is not None or _is_complete(story)):
            story.broken = "its process ended before the test did"


def _patience(first_failure: float | None, running: list[Story]) -> float:
    """Until when to wait for the ranks that run, once one has failed."""
    if first_failure is None:
        return float("inf")
    begun = [story.begun_at for story in running if story.begun_at is not None]
    if len(begun) < len(running):
        return first_failure + BEGIN_SECONDS
    return max([first_failure, *begun]) + LINGER_SECONDS


def _without_output(error: str) -> str:
    """A traceback, or how a process ended; its last lines are shown with the rest of them."""
    return error if error.startswith("Traceback") else error.partition("\n")[0]


def _is_complete(story: Story) -> bool:
    return any(report.when == "teardown" for report in story.reports)


def _read_output(path: str, start: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - _MOST_OUTPUT))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
