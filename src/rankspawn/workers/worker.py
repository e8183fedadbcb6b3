"""One started worker: what it is called, what it reports, and how its outcome is decided.

A worker that runs a function reports in a file before it ends. A program that is executed has
its exit code, and nothing else.
"""

from __future__ import annotations

import os

from rankspawn.descriptors import Owned
from rankspawn.supervise.outcome import STATUS_LOST, End, Outcome
from rankspawn.values import dataclass, field, replace
from rankspawn.workers.logs import describe_capture, describe_tail
from rankspawn.workers.outcome_file import (
    EMPTY_REPORT,
    NO_REPORT,
    Header,
    TakenReport,
    find_damage,
    read_header,
    read_steps,
    seal,
    take_report,
)
from rankspawn.workers.popen import WorkerPopen, is_readable
from rankspawn.workers.report import (
    EXITED,
    FAILING,
    FOLLOWING,
    IN_FUNCTION,
    NO_ROOM,
    RAISED,
    REPORT_LOST,
    RETURNED,
)

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.supervise.context import RankProcess
    from rankspawn.supervise.group import RankOutput

_REPORT_LOST = (
    "it could not report: its program closed descriptors that are not its own, and the one of the "
    f"report cannot be opened again (unless something called os._exit({REPORT_LOST}))"
)
_NO_ROOM = (
    "it could not report: its limit on the size of files (RLIMIT_FSIZE, see `ulimit -f`) leaves no "
    f"room for that; raise it (unless something called os._exit({NO_ROOM}))"
)
_NEVER_BEGAN = (
    "it ended before it began: its interpreter could not start, or something in it exited at once. "
    "It says why on standard error; usual causes are PYTHONHOME, PYTHONPATH, PYTHONHASHSEED, and "
    "a sys.executable that is no Python"
)


def classify(
    rank: int,
    pid: int,
    header: Header,
    exit_code: int | None,
    *,
    seen_ns: int,
    stopped_ns: int | None,
    evidence: str | None = None,
) -> Outcome:
    """How a rank ended, as the table in ``docs/reference.md`` has it.

    Args:
        rank: Whose outcome.
        pid: Of which process.
        header: Its report.
        exit_code: None if it is not known: it still runs, or somebody else collected it.
        seen_ns: When its end was noticed, for those who could not report one.
        stopped_ns: When we began to stop it, if we did before its end was noticed.
        evidence: What the system knows about a death by SIGKILL.
    """
    when = header.when_ns if header.kind else seen_ns
    victim = stopped_ns is not None and when >= stopped_ns
    returned = header.kind == RETURNED
    if header.kind in (0, FAILING) and exit_code == NO_ROOM:
        evidence = evidence or _NO_ROOM
    if returned and (exit_code in (0, None) or stopped_ns is not None):
        end = End.RETURNED
    elif victim:
        end = End.STOPPED
    elif header.kind == FAILING and evidence is not None:
        end = End.DIED  # of the same cause, as a rule: out of memory
    elif header.kind in (RAISED, FAILING):
        end = End.RAISED
    elif header.kind == EXITED:
        end = End.EXITED
    else:
        end = End.DIED
        evidence = evidence or _explain_silence(header, exit_code)
    # What the worker reported counts; the process may have been stopped on its way out.
    if end is End.DIED and exit_code is None:
        code = STATUS_LOST
    else:
        reported = header.is_failure and end is not End.DIED
        code = header.exit_code if reported or exit_code is None else exit_code
    reached = header.stage >= IN_FUNCTION
    follows = header.stage == FOLLOWING
    return Outcome(rank, pid, end, code, when, reached, returned, evidence, follows)


def _explain_silence(header: Header, exit_code: int | None) -> str | None:
    """Why a rank ended without a report, where that can be known."""
    if exit_code == REPORT_LOST:
        return _REPORT_LOST
    # By a signal it may have been ended from outside at any time.
    never_began = header.stage == 0 and exit_code is not None and exit_code >= 0
    return _NEVER_BEGAN if never_began else None


def classify_program(
    rank: int,
    pid: int,
    exit_code: int | None,
    *,
    seen_ns: int,
    stopped_ns: int | None,
    evidence: str | None = None,
) -> Outcome:
    """How a program ended, which its exit code alone says; see :func:`classify`."""
    code = STATUS_LOST if exit_code is None else exit_code
    if stopped_ns is not None and seen_ns >= stopped_ns:
        end = End.STOPPED
    else:
        end = End.RETURNED if code == 0 else End.DIED
    return Outcome(rank, pid, end, code, seen_ns, reached_function=True, evidence=evidence)


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

    def state(self) -> str:
        """One word for what it does, without waiting: ``exited`` if it is gone."""
        state = self.header().state
        has_ended = state in ("done", "failed")
        return state if has_ended or not is_readable(self.popen.sentinel, 0) else "exited"

    def reap(self) -> int | None:
        """Its exit code, once it ended; None if somebody else collected that."""
        code = self.popen.wait()
        return None if self.popen.status_lost else code

    def decide_outcome(
        self,
        exit_code: int | None,
        *,
        seen_ns: int,
        stopped_ns: int | None,
        evidence: str | None,
    ) -> Outcome:
        """What became of it; see :func:`classify`."""
        return classify_program(
            self.rank,
            self.popen.pid,
            exit_code,
            seen_ns=seen_ns,
            stopped_ns=stopped_ns,
            evidence=evidence,
        )

    def take_report(self) -> TakenReport:
        """What it said at its end; may be called again as long as it is not closed."""
        return EMPTY_REPORT

    @property
    def is_daemonic(self) -> bool:
        """Multiprocessing ends it at the exit of this process."""
        return False

    def copy_outcome_file(self) -> int | None:
        """A descriptor of its own of the file in which it reports; None if there is none."""
        return None

    def steps(self) -> bytes:
        """What it said last with ``rankspawn.report``, as a record."""
        return b""

    def open_output(self) -> RankOutput | None:
        """Where what it prints can be read, after the end of the group, too."""
        return None

    def close(self) -> None:
        """Let go of its report."""

    def close_output(self) -> None:
        """Let go of what it printed."""


@dataclass(frozen=True, slots=True)
class FunctionWorker(Worker):
    """A worker that runs a function.

    Attributes:
        process: The same process, as multiprocessing has it.
        outcome_file: The file in which it reports.
        captured: The file that has its output, if that is kept without a log.
        log_start: Where its output begins in its log; what is before is an earlier try's.
    """

    process: RankProcess
    outcome_file: Owned
    captured: Owned | None = None
    log_start: int = 0
    _whole: list[Header] = field(default_factory=list)

    def describe_output(self) -> str:
        """Its last lines, for an error."""
        if self.captured is not None:
            return describe_capture(self.captured)
        return "" if self.log is None else describe_tail(self.log, start=self.log_start)

    def header(self) -> Header:
        """Its report so far."""
        return read_header(self.outcome_file.fileno())

    @property
    def is_daemonic(self) -> bool:
        """Multiprocessing ends it at the exit of this process."""
        return self.process.daemon

    def copy_outcome_file(self) -> int:
        """A descriptor of its own of the file in which it reports."""
        return os.dup(self.outcome_file.fileno())

    def steps(self) -> bytes:
        """What it said last with ``rankspawn.report``, as a record."""
        return read_steps(self.outcome_file.fileno())

    def open_output(self) -> RankOutput | None:
        """Where what it prints can be read, after the end of the group, too."""
        from rankspawn.supervise.group import RankOutput  # with a view only

        if self.captured is not None:
            return RankOutput(Owned(os.dup(self.captured.fileno())), is_captured=True)
        if self.log is None:  # it has the terminal
            return None
        try:
            file = Owned(os.open(self.log, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:  # somebody removed it already
            return None
        return RankOutput(file, self.log_start)

    def reap(self) -> int | None:
        """Its exit code; multiprocessing takes it off its list of children."""
        self.process.join()
        seal(self.outcome_file.fileno())
        return None if self.popen.status_lost else self.process.exitcode

    def decide_outcome(
        self,
        exit_code: int | None,
        *,
        seen_ns: int,
        stopped_ns: int | None,
        evidence: str | None,
    ) -> Outcome:
        """What became of it, by its report and its exit code."""
        header = self.header()
        damage = find_damage(self.outcome_file.fileno(), header)
        if damage is None:
            self._whole[:] = [header]
        else:  # that it failed may have been read before
            header = self._whole[0] if self._whole else replace(header, kind=0)
            evidence = damage
        return classify(
            self.rank,
            self.popen.pid,
            header,
            exit_code,
            seen_ns=seen_ns,
            stopped_ns=stopped_ns,
            evidence=evidence,
        )

    def take_report(self) -> TakenReport:
        """Its result or its traceback."""
        return take_report(self.outcome_file.fileno())

    def close(self) -> None:
        """Let go of its report."""
        self.outcome_file.close()

    def close_output(self) -> None:
        """Let go of what it printed."""
        if self.captured is not None:
            self.captured.close()
