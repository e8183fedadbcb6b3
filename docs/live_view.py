"""A live view to take a picture of: ranks that run for real, and the code that shows them."""

from __future__ import annotations

import time
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import rankspawn
from rankspawn.view import viewer
from rankspawn.view.boards import PlainBoard
from rankspawn.view.live import make_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from rankspawn.view.ranks import RankRow


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
        until = time.monotonic() + 0.05 + 0.02 * rank
        while time.monotonic() < until:
            pass


def record(width: int) -> Table:
    """The table of four ranks, as the live view draws it."""
    before, viewer.open_board = viewer.open_board, lambda screen, **_: Recorder(screen)
    try:
        all_there = get_context("spawn").Barrier(3)
        rankspawn.spawn(train, args=(100, all_there), nprocs=4, backend="gloo", progress=True)
    finally:
        viewer.open_board = before
    rows, seconds = Recorder.kept
    return make_table(rows, seconds, width, 40)
