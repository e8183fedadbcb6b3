"""What became of a rank, read by the parent from the file in which the worker reports.

``Outcome`` is plain data; :func:`classify` decides what counts as success, as the table in
``docs/reference.md`` has it: from the report, the exit code, and whether we stopped the worker.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum

from rankspawn.workers.parcel import WORD, open_parcel, unpack_words
from rankspawn.workers.popen import STATUS_LOST
from rankspawn.workers.report import EXITED, FAILING, HEADER_WORDS, IN_FUNCTION, RAISED, RETURNED

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import Any


class End(Enum):
    """How a rank ended."""

    RETURNED = "returned"
    RAISED = "raised"
    EXITED = "called sys.exit"
    DIED = "died"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Header:
    """The words of the report; all zero before the worker wrote any."""

    stage: int
    kind: int
    when_ns: int
    exit_code: int
    table: int
    text_offset: int
    text_length: int
    is_complete: int

    @property
    def is_failure(self) -> bool:
        """The worker itself reported a failure."""
        return self.kind in (RAISED, EXITED, FAILING)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one rank."""

    rank: int
    pid: int
    end: End
    exit_code: int
    when_ns: int
    reached_function: bool
    # The worker reported a result, whatever happened to it afterwards.
    had_returned: bool = False
    # What the system knows about a death by SIGKILL.
    evidence: str | None = None

    @property
    def is_failure(self) -> bool:
        """True for a failure of its own; a rank that we stopped is a victim."""
        return self.end not in (End.RETURNED, End.STOPPED)


# Of a program, and of a worker that wrote nothing yet.
NO_REPORT = Header(0, 0, 0, 0, 0, 0, 0, 0)


def read_header(fd: int) -> Header:
    """The report so far."""
    words = unpack_words(os.pread(fd, HEADER_WORDS * WORD, 0))
    return Header(*words, *[0] * (HEADER_WORDS - len(words)))


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
    """Decide how a rank ended.

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
    # What the worker reported counts; the process may have been stopped on its way out.
    if end is End.DIED and exit_code is None:
        code = STATUS_LOST
    else:
        reported = header.is_failure and end is not End.DIED
        code = header.exit_code if reported or exit_code is None else exit_code
    reached = header.stage >= IN_FUNCTION
    return Outcome(rank, pid, end, code, when, reached, returned, evidence)


def classify_program(
    rank: int,
    pid: int,
    exit_code: int | None,
    *,
    seen_ns: int,
    stopped_ns: int | None,
    evidence: str | None = None,
) -> Outcome:
    """Decide how a program ended, which its exit code alone says; see :func:`classify`."""
    code = STATUS_LOST if exit_code is None else exit_code
    if stopped_ns is not None and seen_ns >= stopped_ns:
        end = End.STOPPED
    else:
        end = End.RETURNED if code == 0 else End.DIED
    return Outcome(rank, pid, end, code, seen_ns, reached_function=True, evidence=evidence)


@dataclass(frozen=True, slots=True)
class Remains:
    """What a worker left in its file, taken out of it so that the file can be closed.

    Nothing is unpickled before somebody asks: that runs code of users' classes, and may fail.
    """

    text: str
    pickled: tuple[bytes | memoryview, list[memoryview]] | None

    def result(self) -> Any:
        """The returned value; raises whatever unpickling raises."""
        return self._load()

    def exception(self) -> BaseException:
        """The exception, or the nearest thing to it."""
        if self.pickled is None:
            return RuntimeError(self.text)
        from rankspawn.workers.exceptions import unpack

        return unpack(self._load())

    def _load(self) -> Any:
        if self.pickled is None:
            return None
        import pickle  # programs leave nothing to unpickle

        stream, buffers = self.pickled
        return pickle.loads(stream, buffers=buffers)


NO_REMAINS = Remains("", None)
_UNWRITTEN = "an exception, but the process ended, or had to be ended, before it wrote which one\n"


def take_remains(fd: int) -> Remains:
    """Read the traceback (or the text given to ``sys.exit``), and map what was pickled."""
    header = read_header(fd)
    if header.kind == FAILING:
        return Remains(_UNWRITTEN, None)
    text = bytearray()
    while header.kind and len(text) < header.text_length:
        chunk = os.pread(fd, header.text_length - len(text), header.text_offset + len(text))
        if not chunk:
            break
        text += chunk
    told = text.decode("utf-8", "replace")
    if header.kind == RAISED:
        from rankspawn.workers.cells import add_lines_of_cells  # on the way to an error only

        told = add_lines_of_cells(told)
    return Remains(
        told,
        open_parcel(fd, header.table) if header.kind and header.table else None,
    )
