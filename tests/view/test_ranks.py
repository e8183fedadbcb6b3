"""Rows for people, and what they are made of. No processes in here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankspawn.supervise.reports import Steps
from rankspawn.view.ranks import (
    RankRow,
    Usage,
    is_over,
    plain_lines,
    size_text,
    summarize,
)
from rankspawn.workers.outcome_file import NO_REPORT
from rankspawn.workers.report import RAISED, RETURNED

GIB = 1 << 30


def row(rank: int, state: str = "running", step: float | None = None) -> RankRow:
    return RankRow(rank, "cpu", state, steps=None if step is None else Steps(step, 100))


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (Steps(), ""),
        (Steps(3), "3"),
        (Steps(12, 100), "12/100 12%"),
        (Steps(12, 100, {"loss": 0.50001, "epoch": 3}), "12/100 12% loss=0.5 epoch=3"),
        (Steps(200, 100), "200/100 100%"),
        (Steps(1, 0), "1/0"),
        (Steps(values={"phase": "warming up"}), "phase=warming up"),
    ],
)
def test_steps_in_words(steps: Steps, text: str) -> None:
    assert steps.describe() == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, ""),
        (5, "5 B"),
        (2048, "2 KiB"),
        (3 * GIB // 2, "1.5 GiB"),
        (GIB * 9997 // 10240, "0.976 GiB"),
        (GIB * 1024 * 999 + GIB * 700, "0.976 PiB"),
    ],
)
def test_sizes(size: int | None, text: str) -> None:
    assert size_text(size) == text


def test_states() -> None:
    running = [replace(NO_REPORT, stage=stage).state for stage in range(3)]
    assert running == ["starting", "loading", "running"]
    ended = [replace(NO_REPORT, stage=2, kind=kind).state for kind in (RETURNED, RAISED)]
    assert ended == ["done", "failed"]
    assert [is_over(state) for state in (*running, *ended)] == [False] * 3 + [True] * 2


def test_a_line_per_rank_where_nothing_can_be_redrawn() -> None:
    rows = [
        RankRow(0, "gpu 4", "running", Usage(98.4, GIB, 2 * GIB), Steps(1, 4, {"loss": 1}), "line"),
        RankRow(1, "gpu 5", "done", line="last words"),
    ]
    assert plain_lines(rows, 12.3) == [
        "rank 0 (gpu 4) running after 12 s, 1/4 25% loss=1, CPU 98%, 1 GiB, GPU 2 GiB",
        "rank 1 (gpu 5) done after 12 s, last words",
    ]


def test_of_many_ranks_one_line() -> None:
    rows = [row(rank, step=50 - rank) for rank in range(20)] + [row(20, "done", step=1)]
    assert plain_lines(rows, 60) == [
        "21 ranks after 60 s: 20 running, 1 done; slowest rank 19: 31/100 31%"
    ]
    assert summarize([row(0)], 1) == "1 rank after 1 s: 1 running"
