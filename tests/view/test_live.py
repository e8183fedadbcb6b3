"""Tables of ranks, and how a terminal looks in which they are redrawn."""

from __future__ import annotations

import io
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankspawn.supervise.reports import Steps
from rankspawn.view.ranks import RankRow, Usage
from tests.jobs import DEADLOCK
from tests.terminal import Session

GIB = 1 << 30


def make_row(rank: int, state: str = "running") -> RankRow:
    return RankRow(rank, "cpu", state)


def test_of_more_ranks_than_lines_the_failed_and_the_running_are_shown() -> None:
    live = pytest.importorskip("rankspawn.view.live")
    rows = [
        make_row(0, "done"),
        make_row(1),
        make_row(2, "done"),
        make_row(3, "failed"),
        make_row(4),
        make_row(5),
    ]
    assert [kept.rank for kept in live.choose_rows(rows, 3)] == [1, 3, 4]
    assert live.choose_rows(rows, 10) == rows


def test_a_table_has_a_column_for_gpus_only_where_there_are_some() -> None:
    live = pytest.importorskip("rankspawn.view.live")
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=100)
    steps = Steps(1, 2, {"loss": "[0.5]"})  # no markup
    rows = [RankRow(0, "gpu 4", "running", Usage(98.4, GIB, 2 * GIB), steps)]
    console.print(live.make_table(rows, 3, 100, 40))
    console.print(live.make_table([make_row(0)], 3, 100, 40))

    first, second = console.file.getvalue().split("1 rank after 3 s: 1 running")[1:]
    assert " ".join(first.split("\n")[4].split()).startswith("0 gpu 4 running 98% 1 GiB 2 GiB ━")
    assert "1/2 50% loss=[0.5]" in first
    assert "GPU memory" in first
    assert "GPU memory" not in second


def test_a_narrow_terminal_shows_steps_rather_than_a_bar() -> None:
    live = pytest.importorskip("rankspawn.view.live")
    rows = [RankRow(0, "cpu", "running", Usage(98.4, GIB), Steps(12, 20))]
    for width, has_bar in ((56, False), (76, True), (96, True)):
        console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=width)
        console.print(live.make_table(rows, 3, width, 40))
        assert "12/20 60%" in console.file.getvalue()
        assert ("━" in console.file.getvalue()) == has_bar


PROGRAM = """
import multiprocessing, os, sys, time
import rankspawn
from tests.jobs import DEADLOCK

def train(go):
    rank = rankspawn.get_rank()
    print(f"hello from {rank}", flush=True)
    sys.stderr.write("\\r10%\\r20%")
    rankspawn.report(step=3, total=4, loss=0.5)
    assert go.wait(DEADLOCK)
    print(f"goodbye from {rank}", flush=True)
    return rank

def press(go):
    # Whoever looks at the terminal presses Enter when he has seen enough.
    sys.stdin.readline()
    go.set()

if __name__ == "__main__":
    import threading
    go = multiprocessing.get_context("spawn").Event()
    contexts = [
        rankspawn.spawn(train, args=(go,), nprocs=2, backend="gloo", join=False,
                        progress=True, start_method=sys.argv[1])
        for _ in range(2 if sys.argv[2] == "twice" else 1)
    ]
    context = contexts[0]
    threading.Thread(target=press, args=(go,), daemon=True).start()
    joins = [threading.Thread(target=other.join) for other in contexts[1:]]
    for join in joins:
        join.start()
    if sys.argv[2] == "loop":
        while not context.join(timeout=1.5):
            print("THE PROGRAM ITSELF", flush=True)
    context.join()
    for join in joins:
        join.join()
    print("results", context.results())
"""


@pytest.fixture
def open_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm-256color")
    sessions = []

    def start_session(program: str, *arguments: str) -> Session:
        sessions.append(Session(tmp_path, program, *arguments))
        return sessions[-1]

    yield start_session
    for session in sessions:
        session.close()


def screen_of(output: str, width: int = 120) -> list[str]:
    """What stands on the terminal in the end: enough of one for what rich writes."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x1b]", output):
        if part == "\r":
            column = 0
        elif re.fullmatch(r"\x1b\[\d*A", part):
            row -= int(part[2:-1] or 1)
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part[0] != "\x1b":
            if part == "\n" or column == width:
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            if part != "\n":
                lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + 1 :]
                column += 1
    return [line.rstrip() for line in lines]


def test_a_table_in_a_terminal(open_session: Any, start_method: str) -> None:
    session = open_session(PROGRAM, start_method, "once")
    session.read_until("3/4 75% loss=0.5", 6)  # drawn, and redrawn
    session.type_line("")
    assert session.finish() == 0, session.output

    screen = screen_of(session.output)
    text = "\n".join(screen)
    assert screen.count("[rank 0] hello from 0") == screen.count("[rank 1] hello from 1") == 1
    # One table, at the end; a line that came while it stood is above it.
    assert len(re.findall(r"^2 ranks after .* s: 2 done$", text, re.MULTILINE)) == 1
    head = next(index for index, line in enumerate(screen) if "step or last line" in line)
    assert screen.index("[rank 1] 20%goodbye from 1") < head
    assert re.search(r"^ +1 +cpu +done .*3/4 75% loss=0.5$", text, re.MULTILINE)
    assert "results [0, 1]" in screen
    assert "\x1b[?25l" not in session.output  # the cursor is left alone


def test_groups_at_the_same_time_have_a_table_each(open_session: Any) -> None:
    session = open_session(PROGRAM, "spawn", "twice")
    session.read_until("3/4 75% loss=0.5", 12)  # both drawn, and redrawn
    session.type_line("")
    assert session.finish() == 0, session.output

    screen = screen_of(session.output)
    text = "\n".join(screen)
    for rank in range(2):
        assert screen.count(f"[rank {rank}] hello from {rank}") == 2
        assert screen.count(f"[rank {rank}] 20%goodbye from {rank}") == 2
    assert len(re.findall(r"^2 ranks after .* s: 2 done$", text, re.MULTILINE)) == 2
    assert text.count("step or last line") == 2
    assert len(re.findall(r"^ +[01] +cpu +done .*3/4 75% loss=0.5$", text, re.MULTILINE)) == 4


@pytest.mark.slow
def test_the_table_makes_room_for_what_the_program_prints(open_session: Any) -> None:
    session = open_session(PROGRAM, "spawn", "loop")
    session.read_until("THE PROGRAM ITSELF", 2)
    session.read_until("3/4 75% loss=0.5", 3)
    session.type_line("")
    assert session.finish() == 0, session.output

    screen = screen_of(session.output)
    assert screen.count("THE PROGRAM ITSELF") == session.output.count("THE PROGRAM ITSELF")
    assert sum("step or last line" in line for line in screen) == 1


@pytest.mark.slow
def test_ctrl_c_leaves_one_table_and_no_rank(open_session: Any) -> None:
    session = open_session(PROGRAM, "spawn", "once")
    session.read_until("3/4 75% loss=0.5", 2)
    session.press_ctrl_c()
    assert session.finish() == -signal.SIGINT, session.output

    text = "\n".join(screen_of(session.output))
    # Also of one that heard the Ctrl-C before the parent did.
    assert re.findall(r"^2 ranks after .* s: (.*)$", text, re.MULTILINE) == ["2 stopped"]
    assert text.count("step or last line") == 1
    assert text.count("Traceback") == 1  # the program's own


STOPPED = """
import os, sys
import rankspawn
from tests import jobs

def work(ready):
    while True:
        print("x" * 1000, flush=True)
        if os.path.exists(ready) and rankspawn.get_rank() == 1:
            raise ValueError("on purpose")

if __name__ == "__main__":
    try:
        rankspawn.spawn(work, args=(sys.argv[1],), nprocs=2, backend="gloo", tee=True)
    except rankspawn.ProcessRaisedException:
        with open(sys.argv[2], "w") as file:
            file.write("raised")
"""


@pytest.mark.slow
def test_a_terminal_that_nobody_reads_holds_up_nothing(tmp_path: Path, open_session: Any) -> None:
    ready, done = tmp_path / "ready", tmp_path / "done"
    session = open_session(STOPPED, str(ready), str(done))
    session.read_until("x" * 100)
    ready.touch()  # from now on nobody reads the terminal
    limit = time.monotonic() + DEADLOCK
    while not (done.exists() and done.read_text()):
        assert time.monotonic() < limit, "the failure was not raised"
        time.sleep(0.05)
    session.process.kill()
