"""What the view knows of each rank: what it says, does, takes and prints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import rankspawn
from rankspawn import MultiprocessContext
from rankspawn.supervise.reports import Steps
from rankspawn.view import boards, viewer
from rankspawn.view.ranks import RankRow
from tests import jobs
from tests.view import view_cases

Run = Callable[..., MultiprocessContext]


def spawn(func: Any, *args: Any, nprocs: int = 2, **options: Any) -> MultiprocessContext:
    return rankspawn.spawn(func, args=args, nprocs=nprocs, backend="gloo", **options)


class Seen(boards.PlainBoard):
    """Keeps every view of the ranks, from the first moment on."""

    views: list[list[RankRow]]

    def __init__(self, screen: Any) -> None:
        super().__init__(screen)
        self.first = 0.0
        self.interval = 0.01
        type(self).views = []
        self.on_draw: Callable[[], None] = lambda: None

    def draw(self, rows: Any, seconds: float) -> None:
        super().draw(rows, seconds)
        self.views.append(list(rows))

    def finish(self, rows: Any, seconds: float) -> None:
        self.draw(rows, seconds)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> type[Seen]:
    monkeypatch.setattr(viewer, "open_board", lambda screen, **_: Seen(screen))
    return Seen


def test_what_ranks_say_is_seen(
    run: Run, seen: type[Seen], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    go = get_context("spawn").Event()
    draw = Seen.draw

    def draw_and_go(self: Seen, rows: Any, seconds: float) -> None:
        draw(self, rows, seconds)
        if all(row.steps for row in rows) and not go.is_set():
            seen.on_first = list(rows)  # type: ignore[attr-defined]
            go.set()

    monkeypatch.setattr(Seen, "draw", draw_and_go)
    assert run(view_cases.report_and_wait, args=(4, go), nprocs=2, progress=True).results() == [
        0,
        1,
    ]

    first: list[RankRow] = seen.on_first  # type: ignore[attr-defined]
    assert [row.steps for row in first] == [
        Steps(4, 10, {"loss": 0.25}),
        Steps(5, 10, {"loss": 0.25}),
    ]
    assert [(row.rank, row.device, row.state) for row in first] == [
        (rank, "cpu", "running") for rank in range(2)
    ]
    assert all((row.usage.memory or 0) > 1_000_000 for row in first)
    assert all(row.usage.cpu_percent is not None for row in seen.views[0])
    last = seen.views[-1]
    assert [row.state for row in last] == ["done", "done"]
    assert [row.steps for row in last] == [Steps(10, 10, {"loss": 0.125})] * 2
    assert "rank 1 (cpu) running" in capfd.readouterr().out


def test_the_last_of_many_reports_is_seen_with_its_values(seen: type[Seen]) -> None:
    spawn(view_cases.report_quickly, 1000, nprocs=1, progress=True)
    assert seen.views[-1][0].steps == Steps(1000, 1000, {"loss": 0.001})


def test_values_that_are_none(seen: type[Seen]) -> None:
    context = spawn(view_cases.report_strange_values, nprocs=1, progress=True)
    assert context.exitcodes() == [0]
    assert seen.views[-1][0].steps == Steps()


@pytest.mark.parametrize("how", ["raise", "SIGKILL"])
def test_failed_and_stopped_ranks(how: str, seen: type[Seen]) -> None:
    with pytest.raises(rankspawn.ProcessException):
        spawn(jobs.rank_fails, 1, how, progress=True)
    assert [row.state for row in seen.views[-1]] == ["stopped", "failed"]


def test_the_last_line_where_nothing_is_said(seen: type[Seen], tmp_path: Path) -> None:
    spawn(view_cases.print_everywhere, progress=True, log_dir=tmp_path)
    assert [row.line for row in seen.views[-1]] == ["no end 0", "no end 1"]


def test_await(seen: type[Seen]) -> None:
    async def main() -> list[Any]:
        context = spawn(jobs.return_rank, progress=True, join=False)
        await context
        return context.results()

    assert asyncio.run(main()) == [0, 1]
    assert [row.state for row in seen.views[-1]] == ["done", "done"]
