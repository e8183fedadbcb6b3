"""Ranks as a table of rich, which draws it. Imported only where rich is installed."""

from __future__ import annotations

from rich import box
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rankspawn.view.ranks import percent_text, size_text, summarize

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from rankspawn.view.ranks import RankRow

_STYLES = {
    "starting": "dim",
    "loading": "dim",
    "running": "cyan",
    "done": "green",
    "failed": "bold red",
    "stopped": "yellow",
}
# A narrow terminal has a short bar, or room for the numbers only.
_NARROW, _WIDE, _BAR_WIDTHS = 64, 90, (10, 20)
# Title, head, rules, the line on what is left out, and one for the cursor.
_LINES_AROUND = 6


def make_table(rows: Sequence[RankRow], seconds: float, width: int, height: int) -> Table:
    """One row per rank; those that fit.

    Args:
        rows: By rank.
        seconds: Since the start.
        width: Of the terminal, in columns.
        height: In lines.
    """
    has_gpu = any(row.usage.gpu_memory is not None for row in rows)
    has_steps = any(row.steps is not None and row.steps.fraction is not None for row in rows)
    has_bar = has_steps and width >= _NARROW
    shown = choose_rows(rows, max(1, height - _LINES_AROUND))
    left_out = len(rows) - len(shown)
    table = Table(
        title=summarize(rows, seconds),
        title_justify="left",
        caption=f"{left_out} more ranks are not shown" if left_out else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        expand=True,
    )
    # Only the last column gives way if the terminal is narrow.
    for name, least in _columns(has_gpu=has_gpu):
        is_text = name in ("device", "state")
        table.add_column(
            name, justify="left" if is_text else "right", no_wrap=True, min_width=least
        )
    bar_width = _BAR_WIDTHS[width >= _WIDE]
    if has_bar:
        table.add_column("", no_wrap=True, width=bar_width)
    table.add_column("step or last line", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in shown:
        table.add_row(*_cells(row, has_gpu=has_gpu, bar_width=bar_width if has_bar else 0))
    return table


def _columns(*, has_gpu: bool) -> list[tuple[str, int]]:
    """Name and least width."""
    columns = [("rank", 4), ("device", 6), ("state", 8), ("CPU", 4), ("memory", 8)]
    return [*columns, ("GPU memory", 10)] if has_gpu else columns


def choose_rows(rows: Sequence[RankRow], most: int) -> list[RankRow]:
    """Those that fit: first who failed, then who runs; by rank."""
    if len(rows) <= most:
        return list(rows)
    order = {"failed": 0, "running": 1, "loading": 1, "starting": 1}
    chosen = sorted(rows, key=lambda row: (order.get(row.state, 2), row.rank))[:most]
    return sorted(chosen, key=lambda row: row.rank)


def _cells(row: RankRow, *, has_gpu: bool, bar_width: int) -> list[RenderableType]:
    cells: list[RenderableType] = [
        str(row.rank),
        row.device,
        Text(row.state, style=_STYLES.get(row.state, "")),
        percent_text(row.usage.cpu_percent),
        size_text(row.usage.memory),
    ]
    if has_gpu:
        cells.append(size_text(row.usage.gpu_memory))
    if bar_width:
        fraction = None if row.steps is None else row.steps.fraction
        cells.append("" if fraction is None else ProgressBar(1.0, fraction, width=bar_width))
    said = row.steps.describe() if row.steps is not None else ""
    cells.append(Text.from_ansi(said or row.line, no_wrap=True, overflow="ellipsis"))
    return cells
