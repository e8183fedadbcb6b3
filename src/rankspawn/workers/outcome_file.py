"""The parent's side of the file in which a rank reports: made before the start, read at the end.

See ``report`` for what is in it. Who wrote it is gone by then, but what that has started may still
have it open: nothing in it is believed before it was looked at.
"""

from __future__ import annotations

import fcntl
import os

from rankspawn.descriptors import Owned, anonymous_file
from rankspawn.values import dataclass
from rankspawn.workers.parcel import PAGE, WORD, pack_words, unpack_words
from rankspawn.workers.report import (
    EXITED,
    FAILING,
    HEADER_WORDS,
    IN_FUNCTION,
    PARENT_WORDS,
    RAISED,
    RETURNED,
    STACKS_AT,
    STARTED,
    STEPS_AT,
)

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Pickled(Protocol):
        """A pickle and its buffers."""

        pieces: list[memoryview]

        def free_the_rest(self) -> None:
            """Give back what is not needed, once somebody wants the pieces."""

    from rankspawn.workers.kept import Kept

# What people are told of a rank that has not ended.
_STAGES = {0: "starting", STARTED: "loading", IN_FUNCTION: "running"}


@dataclass(frozen=True, slots=True)
class Header:
    """The first numbers of an outcome file; all zero before the worker wrote any."""

    stage: int
    kind: int
    when_ns: int
    exit_code: int
    table: int
    text_offset: int
    text_length: int
    is_complete: int
    stacks_fd: int

    @property
    def is_failure(self) -> bool:
        """The worker itself reported a failure."""
        return self.kind in (RAISED, EXITED, FAILING)

    @property
    def state(self) -> str:
        """One word for what the worker does, or how it says it ended."""
        if self.kind:
            return "done" if self.kind == RETURNED else "failed"
        return _STAGES.get(self.stage, "running")


_KINDS = (RETURNED, RAISED, EXITED, FAILING)
_HIGHEST_CODE = 255
# Of a program, and of a worker that wrote nothing yet.
NO_REPORT = Header(0, 0, 0, 0, 0, 0, 0, 0, 0)


def make_outcome_file(name: str, flags: int, event_number: int) -> Owned:
    """A new file, with what the worker has to know from it.

    Args:
        name: What it is called; see ``meeting.rank_name``.
        flags: What is to be different from usual.
        event_number: What tells the failure event from others.
    """
    file = Owned(anonymous_file(name))
    words = [flags, event_number, file.fileno(), os.getpid()]
    os.pwrite(file.fileno(), pack_words(words), HEADER_WORDS * WORD)
    return file


def read_header(fd: int) -> Header:
    """The report so far."""
    # One read, while the worker may be writing: it writes `kind` last, so that a header with one
    # has all that belongs to it. The file is shorter before the first write reached its end.
    numbers = unpack_words(os.pread(fd, HEADER_WORDS * WORD, 0))
    return Header(*numbers, *[0] * (HEADER_WORDS - len(numbers)))


def seal(fd: int) -> None:
    """The file does not get smaller any more, whoever still has it open.

    Where a system cannot do that, nothing of it is mapped.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except (OSError, AttributeError):
        return


def _is_sealed(fd: int) -> bool:
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except (OSError, AttributeError):
        return False


def _places(fd: int, table: int) -> list[tuple[int, int]]:
    """Where the pickle is, and its buffers; ValueError if the table is none."""
    size = os.fstat(fd).st_size
    if table >= size:
        raise ValueError("it is beyond the end")
    offset, length, count = unpack_words(os.pread(fd, 3 * WORD, table))
    if count > size // WORD:
        raise ValueError("there cannot be so many")
    words = unpack_words(os.pread(fd, 2 * count * WORD, table + 3 * WORD))
    return [(offset, length), *zip(words[::2], words[1::2], strict=True)]


def find_damage(fd: int, header: Header) -> str | None:
    """What is wrong with a report; None if all of it is there.

    What a rank has started may have the file open, and cut it off or write to it.
    """
    size = os.fstat(fd).st_size
    if size < (HEADER_WORDS + PARENT_WORDS) * WORD:
        return f"its report was cut off after {size} bytes"
    if header.kind not in (0, *_KINDS) or header.exit_code > _HIGHEST_CODE:
        return "the head of its report was overwritten"
    try:
        places = _places(fd, header.table) if header.kind and header.table else []
    except ValueError:
        return "the table of its report was cut off or overwritten"
    places.append((header.text_offset, header.text_length))
    end = max((offset + length for offset, length in places if length), default=0)
    return None if end <= size else f"its report was cut off after {size} of {end} bytes"


@dataclass(frozen=True, slots=True)
class TakenReport:
    """A worker's report, taken out of its file so that the file can be closed.

    Nothing is unpickled before somebody asks: that runs code of users' classes, and may fail.

    Attributes:
        text: The traceback, or what was given to ``sys.exit``.
        pickled: The result, or what is known of the exception, and its buffers; None if there is
            nothing.
        steps: What was said last with ``rankspawn.report``, as a record; see ``step_records.py``.
        crash: The Python stacks that were written when it crashed in C code; empty if it did not.
    """

    text: str
    pickled: Pickled | None
    steps: bytes = b""
    crash: str = ""

    def result(self) -> Any:
        """The returned value; raises whatever unpickling raises."""
        return self._load()

    def exception(self) -> BaseException:
        """The exception, or the nearest thing to it."""
        if self.pickled is None:
            return RuntimeError(self.text)
        from rankspawn.workers.exceptions import unpack

        try:
            return unpack(self._load())
        except Exception:  # somebody wrote to the file
            return RuntimeError(self.text)

    def _load(self) -> Any:
        if self.pickled is None:
            return None
        import pickle  # programs leave nothing to unpickle

        stream, *buffers = self.pickled.pieces
        self.pickled.free_the_rest()
        return pickle.loads(stream, buffers=buffers)


EMPTY_REPORT = TakenReport("", None)
_UNWRITTEN = "an exception, but the process ended, or had to be ended, before it wrote which one\n"


def take_report(fd: int) -> TakenReport:
    """The traceback (or the text given to ``sys.exit``), and what was pickled."""
    header = read_header(fd)
    damage = find_damage(fd, header)
    if damage is not None:
        return TakenReport(f"{damage}\n", None)
    if header.kind == FAILING and not header.text_length:
        return TakenReport(_UNWRITTEN, None, read_steps(fd))
    text = bytearray()
    while header.kind and len(text) < header.text_length:
        chunk = os.pread(fd, header.text_length - len(text), header.text_offset + len(text))
        if not chunk:
            break
        text += chunk
    told = text.decode("utf-8", "replace")
    if header.kind in (RAISED, FAILING):
        from rankspawn.workers.exceptions import with_lines_of_cells

        told = with_lines_of_cells(told)
    return TakenReport(
        told,
        _keep_parcel(fd, header.table) if header.kind and header.table else None,
        read_steps(fd),
        _read_crash(fd),
    )


def _read_crash(fd: int) -> str:
    if os.fstat(fd).st_size <= STACKS_AT:  # as a rule: nothing was written there
        return ""
    from rankspawn.workers.stacks import read_crash

    return read_crash(fd)


def _keep_parcel(fd: int, table: int) -> Kept:
    from rankspawn.workers.kept import Kept  # many return nothing

    return Kept(fd, _places(fd, table), may_map=_is_sealed(fd))


def read_steps(fd: int) -> bytes:
    """What the worker said last with ``rankspawn.report``; empty if nothing."""
    record = os.pread(fd, PAGE - STEPS_AT, STEPS_AT)
    # Its serial number comes first; without a record there are zeros, of which nobody needs 3 KB.
    return record if any(record[:WORD]) else b""
