"""Sources: what the view reads of each rank, its output and what its group tells."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rankspawn.supervise.reports import unpack_steps
from rankspawn.view.pace import Pace
from rankspawn.view.prefix import fill_prefix
from rankspawn.view.ranks import RankRow, Usage, is_over
from rankspawn.workers.lines import LineAssembler
from rankspawn.workers.tail import CHUNK, Tail

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rankspawn.supervise.group import Group
    from rankspawn.supervise.reports import Steps
    from rankspawn.view.request import ShowRequest


@dataclass(frozen=True, slots=True)
class Place:
    """A rank as it is known before it starts.

    Attributes:
        rank: Its number in the job.
        local_rank: Its number on this node.
        world_size: How many ranks all nodes have.
        device: Its device, for people: ``gpu 4``.
        gpu: The id of its GPU, if it has one.
        node: The number of its node.
        host: The name of its machine.
    """

    rank: int
    local_rank: int
    world_size: int
    device: str
    gpu: str | None = None
    node: int = 0
    host: str = ""


@dataclass(slots=True)
class Source:
    """A rank's output, which is open as long as the view, and what was read of it so far.

    Attributes:
        place: Which rank it is.
        output: Where its output is read; None if it prints somewhere else.
        is_captured: Whether that is a file in memory, whose room has to be freed.
        is_shown: Whether its lines are shown.
        prefix: What stands before each of them.
        line: The last line that says something.
        state_due: When the state of a line that is redrawn is to be shown; None if no line is.
        assembler: Makes lines of what is read.
        steps: What it said last with ``rankspawn.report``.
        pace: How fast it gets on.
    """

    place: Place
    output: Tail | None
    is_captured: bool
    is_shown: bool
    prefix: bytes
    line: bytes = b""
    state_due: float | None = None
    assembler: LineAssembler = field(default_factory=LineAssembler)
    steps: Steps | None = None
    pace: Pace = field(default_factory=Pace)

    def end(self) -> None:
        """Have what is added from now on not shown: the group is over."""
        if self.output is not None:
            self.output.end_here()

    def read(self) -> tuple[list[bytes], bool]:
        """The lines that were completed, and whether there is more to read."""
        if self.output is None:
            return [], False
        chunk = self.output.read()
        if not chunk:
            return [], False
        if self.is_captured:
            self.output.free_what_was_read()
        lines = self.assembler.feed(chunk)
        self._remember(lines)
        return lines, len(chunk) == CHUNK

    def take_state(self, now: float, interval: float) -> list[bytes]:
        """The present state of a line that is redrawn for so long, at most once per interval."""
        if not self.assembler.has_news:
            self.state_due = None
        elif self.state_due is None:
            self.state_due = now + interval
        elif now >= self.state_due:
            self.state_due = None
            return [self.assembler.take_state()]
        return []

    def finish(self) -> list[bytes]:
        """The last line, if it lacks its line end."""
        lines = self.assembler.finish()
        self.state_due = None
        self._remember(lines)
        return lines

    def prefixed(self, lines: Iterable[bytes]) -> list[bytes]:
        """The lines as they are shown; none if this rank's are not."""
        return [self.prefix + line + b"\n" for line in lines] if self.is_shown else []

    def _remember(self, lines: Sequence[bytes]) -> None:
        """Keep the last line that says something, for the view."""
        self.line = next((line for line in reversed(lines) if line.strip()), self.line)

    def close(self) -> None:
        """Let go of the output."""
        if self.output is not None:
            self.output.close()


def open_sources(
    group: Group, request: ShowRequest, places: Sequence[Place], restart: int = 0
) -> list[Source]:
    """The sources of all ranks of a group, started again so often; who gets them closes them."""
    sources: list[Source] = []
    try:
        for index, place in enumerate(places):
            output = group.open_output(index)
            sources.append(
                Source(
                    place,
                    None if output is None else Tail(output.file, output.start),
                    is_captured=output is not None and output.is_captured,
                    is_shown=request.shows(place.rank),
                    prefix=fill_prefix(
                        request.prefix,
                        rank=place.rank,
                        local_rank=place.local_rank,
                        world_size=place.world_size,
                        device=place.device,
                        node=place.node,
                        host=place.host,
                        restart=restart,
                    ),
                )
            )
    except BaseException:
        for source in sources:
            source.close()
        raise
    return sources


def make_row(source: Source, state: str, steps: bytes, usage: Usage) -> RankRow:
    """The row of a rank as it is now.

    Args:
        source: Where its output is read.
        state: What it does, or how it ended.
        steps: What it said last with ``rankspawn.report``, as a record.
        usage: What it takes.
    """
    source.steps = unpack_steps(steps) or source.steps
    line = (source.assembler.last or source.line).decode("utf-8", "replace")
    return RankRow(
        source.place.rank,
        source.place.device,
        state,
        Usage() if is_over(state) else usage,
        source.steps,
        line,
        "" if is_over(state) else source.pace.describe(source.steps, time.monotonic()),
    )
