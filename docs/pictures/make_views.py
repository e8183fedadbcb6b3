"""Makes the pictures of what people see, with the very code that shows it.

    python docs/pictures/make_views.py

Needs ``rankspawn[progress]``. The ranks run for real; only times and memory differ from run to run.
"""

from __future__ import annotations

import io
import re
import time
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

import rankspawn
from rankspawn.view import viewer
from rankspawn.view.boards import PlainBoard
from rankspawn.view.table import make_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.view.ranks import RankRow

HERE = Path(__file__).parent
WIDTH = 96


class Recorder(PlainBoard):
    """Keeps what the live view would draw next."""

    kept: tuple[Sequence[RankRow], float] = ((), 0.0)

    def __init__(self, screen: Any) -> None:
        super().__init__(screen)
        self.first, self.interval = 0.5, 0.1

    def draw(self, rows: Sequence[RankRow], seconds: float) -> None:
        """The last moment in which the three that work had some way to go."""
        running = [row.steps for row in rows if row.state == "running" and row.steps is not None]
        if len(running) == 3 and all((steps.fraction or 0.0) < 0.8 for steps in running):
            type(self).kept = (list(rows), seconds)

    def show_lines(self, lines: bytes) -> None:
        """Not in the picture."""


def train(steps: int, all_there: Any) -> None:
    """Runs in the worker: some ranks are faster than others, one is done early."""
    rank = rankspawn.get_rank()
    if rank == 3:
        print("no data for this rank")
        return
    all_there.wait()
    for step in range(1, steps + 1):
        rankspawn.report(step=step, total=steps, loss=1 / step)
        until = time.monotonic() + 0.01 * (rank + 1)
        while time.monotonic() < until:
            pass


def fail(learning_rate: float) -> None:
    """Runs in the worker."""
    print(f"epoch 1, learning rate {learning_rate}")
    if rankspawn.get_rank() == 1:
        raise ValueError(f"the learning rate {learning_rate} is negative")
    time.sleep(600)


def draw_live_view(folder: Path) -> None:
    """The table of four ranks."""
    before, viewer.open_board = viewer.open_board, lambda screen, **_: Recorder(screen)
    try:
        all_there = get_context("spawn").Barrier(3)
        rankspawn.spawn(train, args=(100, all_there), nprocs=4, backend="gloo", progress=True)
    finally:
        viewer.open_board = before
    rows, seconds = Recorder.kept
    _save(
        make_table(rows, seconds, WIDTH, 40),
        "rankspawn.spawn(..., progress=True)",
        folder,
        "live-view",
    )


def draw_error_message(folder: Path) -> None:
    """What is raised when a rank fails."""
    try:
        rankspawn.spawn(fail, args=(-0.1,), nprocs=2, backend="gloo", tee=False, progress=True)
    except rankspawn.ProcessRaisedException as error:
        # Where this file lies is nothing that a picture should know.
        text = re.sub(r'File ".*/', 'File "', f"rankspawn.errors.{type(error).__name__}: {error}")
    _save(Text(text), "python train.py", folder, "error-message")


def _save(what: Any, title: str, folder: Path, name: str) -> None:
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True)
    console.print(what)
    # The name makes the ids within the picture the same each time. Fonts are the reader's own: a
    # picture that asks another host for them is not shown everywhere.
    picture = console.export_svg(title=title, unique_id=name)
    picture = re.sub(r"\s*@font-face \{[^}]*\}", "", picture)
    (folder / f"{name}.svg").write_text(picture)


if __name__ == "__main__":
    draw_live_view(HERE)
    draw_error_message(HERE)
