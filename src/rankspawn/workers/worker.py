"""One started worker: what it is called, and how its end is judged.

A worker that runs a function reports in a file before it ends. A program that is executed has
its exit code, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankspawn.workers.logs import describe_capture, describe_tail
from rankspawn.workers.outcome import (
    NO_REMAINS,
    NO_REPORT,
    Header,
    Outcome,
    Remains,
    classify,
    classify_program,
    read_header,
    take_remains,
)
from rankspawn.workers.popen import WorkerPopen
from rankspawn.workers.report import FAILING, RAISED

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.descriptors import Owned
    from rankspawn.workers.process import RankProcess


@dataclass(frozen=True, slots=True)
class Worker:
    """A started process of a group, without a report: a program.

    Attributes:
        rank: Its rank, within its role if there are several.
        name: What messages call it.
        popen: The process.
        log: The path of its log, if it has one.
    """

    rank: int
    name: str
    popen: WorkerPopen
    log: str | None

    def describe_output(self) -> str:
        """Its last lines, for an error."""
        return "" if self.log is None else describe_tail(self.log)

    def header(self) -> Header:
        """Its report so far; empty if it writes none."""
        return NO_REPORT

    @property
    def is_writing(self) -> bool:
        """It is in the middle of its report on a failure."""
        header = self.header()
        return header.kind == FAILING or (header.kind == RAISED and not header.is_complete)

    def reap(self) -> int | None:
        """Its exit code, once it ended; None if somebody else collected that."""
        code = self.popen.wait()
        return None if self.popen.status_lost else code

    def judge(
        self,
        exit_code: int | None,
        *,
        seen_ns: int,
        stopped_ns: int | None,
        evidence: str | None,
    ) -> Outcome:
        """What became of it; see :func:`rankspawn.workers.outcome.classify`."""
        return classify_program(
            self.rank,
            self.popen.pid,
            exit_code,
            seen_ns=seen_ns,
            stopped_ns=stopped_ns,
            evidence=evidence,
        )

    def take_remains(self) -> Remains:
        """What it left; may be called again as long as it is not closed."""
        return NO_REMAINS

    def close(self) -> None:
        """Let go of its report."""

    def close_output(self) -> None:
        """Let go of what it printed."""


@dataclass(frozen=True, slots=True)
class FunctionWorker(Worker):
    """A worker that runs a function.

    Attributes:
        process: The same process, as multiprocessing has it.
        report: The file in which it reports.
        captured: The file that has its output, if that is kept without a log.
        log_start: Where its output begins in its log; what is before is an earlier try's.
    """

    process: RankProcess
    report: Owned
    captured: Owned | None = None
    log_start: int = 0

    def describe_output(self) -> str:
        """Its last lines, for an error."""
        if self.captured is not None:
            return describe_capture(self.captured)
        return "" if self.log is None else describe_tail(self.log, start=self.log_start)

    def header(self) -> Header:
        """Its report so far."""
        return read_header(self.report.fileno())

    def reap(self) -> int | None:
        """Its exit code; multiprocessing takes it off its list of children."""
        self.process.join()
        return None if self.popen.status_lost else self.process.exitcode

    def judge(
        self,
        exit_code: int | None,
        *,
        seen_ns: int,
        stopped_ns: int | None,
        evidence: str | None,
    ) -> Outcome:
        """What became of it, by its report and its exit code."""
        return classify(
            self.rank,
            self.popen.pid,
            self.header(),
            exit_code,
            seen_ns=seen_ns,
            stopped_ns=stopped_ns,
            evidence=evidence,
        )

    def take_remains(self) -> Remains:
        """Its result or its traceback."""
        return take_remains(self.report.fileno())

    def close(self) -> None:
        """Let go of its report."""
        self.report.close()

    def close_output(self) -> None:
        """Let go of what it printed."""
        if self.captured is not None:
            self.captured.close()


def kill_started(started: Sequence[Worker]) -> None:
    """End the workers of a start that failed half-way."""
    for worker in started:
        worker.popen.kill()
    for worker in started:
        worker.popen.wait()
        worker.popen.close()
        worker.close()
        worker.close_output()
