"""What is known of each rank, as rows and lines for people. Pure."""

from __future__ import annotations

from rankspawn.values import dataclass

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.supervise.reports import Steps

# Of the states that a group knows, those of ranks that have not ended.
_RUNNING_STATES = ("starting", "loading", "running")
# Of more ranks a line each would bury everything else.
_MOST_LINES = 8


@dataclass(frozen=True, slots=True)
class Usage:
    """How much a rank takes, memory in bytes; None for what is not known."""

    cpu_percent: float | None = None
    memory: int | None = None
    gpu_memory: int | None = None


@dataclass(frozen=True, slots=True)
class RankRow:
    """A rank as it was at some moment."""

    rank: int
    device: str
    state: str
    usage: Usage = Usage()
    steps: Steps | None = None
    line: str = ""
    pace: str = ""

    @property
    def said(self) -> str:
        """How far it is and how fast, in words, or the line that it printed last."""
        return self.line if self.steps is None else self.steps.describe(self.pace) or self.line

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return is_over(self.state)


def is_over(state: str) -> bool:
    """Whether a rank in this state has ended."""
    return state not in _RUNNING_STATES


def size_text(size: int | None) -> str:
    """A number of bytes in words, as in ``1.5 GiB``."""
    if size is None:
        return ""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 999.5:  # else three digits would be 1e+03
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}"


def percent_text(value: float | None) -> str:
    """A percentage in words, as in ``98%``."""
    return "" if value is None else f"{value:.0f}%"


def summarize(rows: Sequence[RankRow], seconds: float) -> str:
    """One line on all ranks, as in ``8 ranks after 12 s: 7 running, 1 done``."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    noun = "rank" if len(rows) == 1 else "ranks"
    return f"{len(rows)} {noun} after {seconds:.0f} s: {states}"


def plain_lines(rows: Sequence[RankRow], seconds: float) -> list[str]:
    """Lines for output that is no terminal: one for each rank, of many ranks one for all."""
    if len(rows) <= _MOST_LINES:
        return [_plain_line(row, seconds) for row in rows]
    lines = [summarize(rows, seconds)]
    slowest = _slowest(rows)
    if slowest is not None and slowest.steps is not None:
        lines[0] += f"; slowest rank {slowest.rank}: {slowest.said}"
    return lines


def _plain_line(row: RankRow, seconds: float) -> str:
    """All that is known of a rank, in a line."""
    parts = [
        f"rank {row.rank} ({row.device}) {row.state} after {seconds:.0f} s",
        row.said,
        f"CPU {percent_text(row.usage.cpu_percent)}" if row.usage.cpu_percent is not None else "",
        size_text(row.usage.memory),
        f"GPU {size_text(row.usage.gpu_memory)}" if row.usage.gpu_memory is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def _slowest(rows: Sequence[RankRow]) -> RankRow | None:
    """The running rank that is least far, of those that say how far they are."""
    saying = [
        (row.steps.step, row.rank, row)
        for row in rows
        if row.steps is not None and row.steps.step is not None and not row.is_over
    ]
    return min(saying, key=lambda entry: entry[:2])[2] if saying else None
