"""Rows for people, and what they are made of. No processes in here."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from rankspawn.view.measure import GpuMeter, Meters
from rankspawn.view.ranks import (
    RankRow,
    Steps,
    Usage,
    plain_lines,
    size_text,
    state_of,
    summarize,
    unpack_steps,
)
from rankspawn.workers.outcome import End, Outcome
from rankspawn.workers.report import RAISED, RETURNED
from rankspawn.workers.steps import RECORD_SIZE, pack_steps

GIB = 1 << 30


def row(rank: int, state: str = "running", step: float | None = None) -> RankRow:
    return RankRow(rank, "cpu", state, steps=None if step is None else Steps(step, 100))


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (Steps(), ""),
        (Steps(3), "3"),
        (Steps(12, 100), "12/100 12%"),
        (Steps(12, 100, "loss=0.5"), "12/100 12% loss=0.5"),
        (Steps(200, 100), "200/100 100%"),
        (Steps(1, 0), "1/0"),
        (Steps(text="warming up"), "warming up"),
    ],
)
def test_steps_in_words(steps: Steps, text: str) -> None:
    assert steps.describe() == text


def test_a_record_comes_back() -> None:
    record = pack_steps(7, 3, None, "grüße")
    assert unpack_steps(record + bytes(100)) == Steps(3, None, "grüße")
    assert unpack_steps(bytes(RECORD_SIZE)) is None
    assert unpack_steps(b"") is None


def test_a_record_that_is_being_written_does_not_count() -> None:
    old, new = pack_steps(1, 1, 2, "a=1"), pack_steps(2, 2, 2, "a=2")
    torn = new[:20] + old[20:]
    assert unpack_steps(torn) is None
    assert len(pack_steps(1, 1, 2, "x" * 10_000)) == RECORD_SIZE


@pytest.mark.parametrize(
    ("size", "text"), [(None, ""), (5, "5 B"), (2048, "2 KiB"), (3 * GIB // 2, "1.5 GiB")]
)
def test_sizes(size: int | None, text: str) -> None:
    assert size_text(size) == text


def test_states() -> None:
    assert [state_of(stage, 0, None) for stage in range(3)] == ["starting", "loading", "running"]
    assert [state_of(2, kind, None) for kind in (RETURNED, RAISED)] == ["done", "failed"]
    ends = {end: state_of(2, 0, Outcome(0, 1, end, 0, 0, reached_function=True)) for end in End}
    assert ends.pop(End.RETURNED) == "done"
    assert ends.pop(End.STOPPED) == "stopped"
    assert set(ends.values()) == {"failed"}


def test_a_line_per_rank_where_nothing_can_be_redrawn() -> None:
    rows = [
        RankRow(0, "gpu 4", "running", Usage(98.4, GIB, 2 * GIB), Steps(1, 4, "loss=1"), "line"),
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


def test_of_more_ranks_than_lines_the_failed_and_the_running_are_shown() -> None:
    table = pytest.importorskip("rankspawn.view.table")
    rows = [row(0, "done"), row(1), row(2, "done"), row(3, "failed"), row(4), row(5)]
    assert [one.rank for one in table.choose_rows(rows, 3)] == [1, 3, 4]
    assert table.choose_rows(rows, 10) == rows


def test_a_table_has_a_column_for_gpus_only_where_there_are_some() -> None:
    table = pytest.importorskip("rankspawn.view.table")
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=100)
    steps = Steps(1, 2, "loss=[0.5]")  # no markup
    rows = [RankRow(0, "gpu 4", "running", Usage(98.4, GIB, 2 * GIB), steps)]
    console.print(table.make_table(rows, 3, 100, 40))
    console.print(table.make_table([row(0)], 3, 100, 40))

    first, second = console.file.getvalue().split("1 rank after 3 s: 1 running")[1:]
    assert " ".join(first.split("\n")[4].split()).startswith("0 gpu 4 running 98% 1 GiB 2 GiB ━")
    assert "1/2 50% loss=[0.5]" in first
    assert "GPU memory" in first
    assert "GPU memory" not in second


def test_a_narrow_terminal_shows_steps_rather_than_a_bar() -> None:
    table = pytest.importorskip("rankspawn.view.table")
    rows = [RankRow(0, "cpu", "running", Usage(98.4, GIB), Steps(12, 20))]
    for width, has_bar in ((56, False), (76, True), (96, True)):
        console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=width)
        console.print(table.make_table(rows, 3, width, 40))
        assert "12/20 60%" in console.file.getvalue()
        assert ("━" in console.file.getvalue()) == has_bar


NVML = """
#include <string.h>
struct memory { unsigned long long total, free, used; };
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{ *device = (void *)(long)(index + 1); return index > 5; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{ *device = (void *)100L; return strcmp(uuid, "GPU-8932f937") != 0; }
int nvmlDeviceGetMemoryInfo(void *device, struct memory *info)
{ info->total = 1000; info->free = 1; info->used = (long)device * 10; return 0; }
"""


def test_memory_of_gpus(tmp_path: Path) -> None:
    source, library = tmp_path / "nvml.c", tmp_path / "libnvml.so"
    source.write_text(NVML)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler")
    meter = GpuMeter(str(library))
    ids = ["4", "5", "4", "GPU-8932f937", "6", "GPU-0"]
    assert [meter.used(one) for one in ids] == [50, 60, 50, 1000, None, None]
    meter.close()
    assert meter.used("4") is None


@pytest.mark.parametrize("library", ["libnothing.so", "libc.so.6"])
def test_no_management_library(library: str) -> None:
    meter = GpuMeter(library)
    assert not meter.is_there
    assert meter.used("0") is None
    meter.close()


def test_a_process_that_is_gone_takes_nothing() -> None:
    meters = Meters([2**22 + 1], [None])
    assert meters.look(0) == Usage()
    meters.close()
