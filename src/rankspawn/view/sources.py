"""What the view reads of each rank: its output, and its report."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from rankspawn.descriptors import Owned
from rankspawn.view.ranks import RankRow, Steps, Usage, state_of, unpack_steps
from rankspawn.view.wanted import fill_prefix
from rankspawn.workers.lines import LineAssembler
from rankspawn.workers.outcome import read_header
from rankspawn.workers.report import STEPS_AT
from rankspawn.workers.steps import RECORD_SIZE
from rankspawn.workers.worker import FunctionWorker

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rankspawn.view.wanted import Wanted
    from rankspawn.workers.group import WorkerGroup
    from rankspawn.workers.outcome import Outcome

_CHUNK = 64 * 1024
# Of a file in memory, what was read is freed in steps of this size; the end of it stays for the
# last lines of an error.
_FREED_AT_ONCE = 1 << 20
_KEPT = 64 * 1024
# Of fallocate(2): keep the size, and free the room.
_KEEP_SIZE_PUNCH_HOLE = 3


@dataclass(frozen=True, slots=True)
class Place:
    """What is known of a rank before it starts.

    Attributes:
        rank: Its number.
        local_rank: The one on this node.
        world_size: Of all nodes.
        device: What people call its device.
        gpu: The id of its GPU, if it has one.
    """

    rank: int
    local_rank: int
    world_size: int
    device: str
    gpu: str | None = None


@dataclass(slots=True)
class Source:
    """One rank: copies of its descriptors, which live as long as the view."""

    place: Place
    report: Owned
    output: Owned | None
    is_captured: bool
    is_shown: bool
    prefix: bytes
    at: int = 0
    until: int | None = None
    freed: int = 0
    line: bytes = b""
    state_due: float | None = None
    assembler: LineAssembler = field(default_factory=LineAssembler)
    steps: Steps | None = None

    def end(self) -> None:
        """The group is over: what somebody else still adds is not shown."""
        if self.until is None and self.output is not None:
            self.until = os.fstat(self.output.fileno()).st_size

    def read(self) -> tuple[list[bytes], bool]:
        """The lines that were completed, and whether there is more to read."""
        if self.output is None:
            return [], False
        size = _CHUNK if self.until is None else max(0, min(_CHUNK, self.until - self.at))
        chunk = os.pread(self.output.fileno(), size, self.at)
        if not chunk:
            # Somebody emptied it; what comes now is new.
            self.at = min(self.at, os.fstat(self.output.fileno()).st_size)
            return [], False
        self.at += len(chunk)
        self._free_what_was_read()
        lines = self.assembler.feed(chunk)
        self._remember(lines)
        return lines, len(chunk) == _CHUNK

    def take_state(self, now: float, interval: float) -> list[bytes]:
        """How a line looks that is redrawn for so long; rarely."""
        if not self.assembler.has_news:
            self.state_due = None
        elif self.state_due is None:
            self.state_due = now + interval
        elif now >= self.state_due:
            self.state_due = None
            return [self.assembler.take_state()]
        return []

    def finish(self) -> list[bytes]:
        """The last line, if it has no end."""
        lines = self.assembler.finish()
        self.state_due = None
        self._remember(lines)
        return lines

    def prefixed(self, lines: Iterable[bytes]) -> list[bytes]:
        """As they are shown, if they are."""
        return [self.prefix + line + b"\n" for line in lines] if self.is_shown else []

    def _remember(self, lines: Sequence[bytes]) -> None:
        self.line = next((line for line in reversed(lines) if line.strip()), self.line)

    def _free_what_was_read(self) -> None:
        """A rank may print for weeks, and this file is in memory."""
        end = self.at - _KEPT
        if not self.is_captured or self.output is None or end - self.freed < _FREED_AT_ONCE:
            return
        import ctypes

        try:
            libc = ctypes.CDLL(None)
            sizes = (ctypes.c_long(self.freed), ctypes.c_long(end - self.freed))
            libc.fallocate(self.output.fileno(), _KEEP_SIZE_PUNCH_HOLE, *sizes)
        except (OSError, AttributeError):  # another system: then it stays
            pass
        self.freed = end

    def close(self) -> None:
        """Let go of the copies."""
        self.report.close()
        if self.output is not None:
            self.output.close()


def open_sources(group: WorkerGroup, wanted: Wanted, places: Sequence[Place]) -> list[Source]:
    """Copies of what every rank of the group writes to."""
    sources: list[Source] = []
    try:
        for worker, place in zip(group.workers, places, strict=True):
            assert isinstance(worker, FunctionWorker), "programs are shown by rankrun"
            sources.append(
                Source(
                    place,
                    Owned(os.dup(worker.report.fileno())),
                    _open_output(worker),
                    is_captured=worker.captured is not None,
                    is_shown=wanted.shows(place.rank),
                    prefix=fill_prefix(
                        wanted.prefix,
                        rank=place.rank,
                        local_rank=place.local_rank,
                        world_size=place.world_size,
                        device=place.device,
                    ),
                    at=worker.log_start,
                )
            )
    except BaseException:
        for source in sources:
            source.close()
        raise
    return sources


def _open_output(worker: FunctionWorker) -> Owned | None:
    """A descriptor of its own; the worker's is closed with the group."""
    if worker.captured is not None:
        return Owned(os.dup(worker.captured.fileno()))
    if worker.log is None:  # it has the terminal
        return None
    try:
        return Owned(os.open(worker.log, os.O_RDONLY | os.O_CLOEXEC))
    except FileNotFoundError:  # somebody removed it already
        return None


def read_row(source: Source, outcome: Outcome | None, usage: Usage) -> RankRow:
    """One rank as it is now."""
    fd = source.report.fileno()
    header = read_header(fd)
    source.steps = unpack_steps(os.pread(fd, RECORD_SIZE, STEPS_AT)) or source.steps
    line = (source.assembler.last or source.line).decode("utf-8", "replace")
    return RankRow(
        source.place.rank,
        source.place.device,
        state_of(header.stage, header.kind, outcome),
        Usage() if outcome is not None or header.kind else usage,
        source.steps,
        line,
    )
