"""How far ranks are: said in the worker, shown by the parent, in a terminal and elsewhere."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import rankspawn
from rankspawn import MultiprocessContext
from rankspawn.view import boards, surroundings, viewer
from rankspawn.view.ranks import RankRow, Steps
from tests import jobs
from tests.jobs import DEADLOCK
from tests.terminal import Session
from tests.view import ranks

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


def test_a_call_costs_next_to_nothing_while_nobody_looks() -> None:
    rankspawn.report(step=1, total=2)  # the first one finds out
    calls = []
    before = sys.getprofile()
    sys.setprofile(lambda _, event, what: calls.append((event, what)))
    try:
        rankspawn.report(step=1, total=2, loss=0.5)
    finally:
        sys.setprofile(before)
    # Itself, and a look into a dict: 0.2 microseconds. (The other one ends the counting.)
    assert [event for event, _ in calls if event.endswith("call")] == ["call", "c_call", "c_call"]


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
    assert run(ranks.report_and_wait, args=(4, go), nprocs=2, progress=True).results() == [0, 1]

    first: list[RankRow] = seen.on_first  # type: ignore[attr-defined]
    assert [row.steps for row in first] == [Steps(4, 10, "loss=0.25"), Steps(5, 10, "loss=0.25")]
    assert [(row.rank, row.device, row.state) for row in first] == [
        (rank, "cpu", "running") for rank in range(2)
    ]
    assert all((row.usage.memory or 0) > 1_000_000 for row in first)
    assert all(row.usage.cpu_percent is not None for row in seen.views[0])
    last = seen.views[-1]
    assert [row.state for row in last] == ["done", "done"]
    assert [row.steps for row in last] == [Steps(10, 10, "loss=0.125")] * 2
    assert "rank 1 (cpu) running" in capfd.readouterr().out


def test_the_last_of_many_reports_is_seen_with_its_values(seen: type[Seen]) -> None:
    spawn(ranks.report_quickly, 1000, nprocs=1, progress=True)
    assert seen.views[-1][0].steps == Steps(1000, 1000, "loss=0.001")


def test_values_that_are_none(seen: type[Seen]) -> None:
    context = spawn(ranks.report_strange_values, nprocs=1, progress=True)
    assert context.exitcodes() == [0]
    assert seen.views[-1][0].steps == Steps()


@pytest.mark.parametrize("how", ["raise", "SIGKILL"])
def test_failed_and_stopped_ranks(how: str, seen: type[Seen]) -> None:
    with pytest.raises(rankspawn.ProcessException):
        spawn(jobs.rank_fails, 1, how, progress=True)
    assert [row.state for row in seen.views[-1]] == ["stopped", "failed"]


def test_the_last_line_where_nothing_is_said(seen: type[Seen], tmp_path: Path) -> None:
    spawn(ranks.print_everywhere, progress=True, log_dir=tmp_path)
    assert [row.line for row in seen.views[-1]] == ["no end 0", "no end 1"]


def test_nothing_is_shown_of_what_ends_quickly(capfd: pytest.CaptureFixture[str]) -> None:
    spawn(jobs.do_nothing, progress=True)
    assert capfd.readouterr() == ("", "")


def test_await(seen: type[Seen]) -> None:
    async def main() -> list[Any]:
        context = spawn(jobs.return_rank, progress=True, join=False)
        await context
        return context.results()

    assert asyncio.run(main()) == [0, 1]
    assert [row.state for row in seen.views[-1]] == ["done", "done"]


def test_without_rich_there_are_lines_and_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "has_rich", lambda: False)

    class Terminal:
        is_terminal = True
        taken = 0
        text = b""

        def write(self, data: bytes) -> None:
            self.text += data

    screen: Any = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    board = surroundings.open_board(screen, progress=True, in_notebook=False)
    for _ in range(2):
        board.draw([RankRow(0, "cpu", "running", line="hello")], 5)
    assert screen.text.decode().splitlines() == [
        "rankspawn: rank 0 (cpu) running after 5 s, hello",
        f"rankspawn: {boards.HINT}",
        "rankspawn: rank 0 (cpu) running after 5 s, hello",
    ]


UNUSED = """
import sys
import rankspawn

def modules():
    return sorted(sys.modules)

if __name__ == "__main__":
    loaded = rankspawn.spawn(modules, nprocs=1, backend="gloo").results()[0]
    for name in [*loaded, *sys.modules]:
        if name.startswith(("rankspawn.view", "rich", "psutil")) or "steps" in name:
            print(name)
"""


def test_who_does_not_look_loads_nothing_of_it(tmp_path: Path) -> None:
    script = tmp_path / "unused.py"
    script.write_text(UNUSED)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=DEADLOCK, check=True
    )
    assert done.stdout == ""


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

    def open_one(program: str, *arguments: str) -> Session:
        sessions.append(Session(tmp_path, program, *arguments))
        return sessions[-1]

    yield open_one
    for session in sessions:
        session.close()


def screen_of(output: str, width: int = 120) -> list[str]:
    """What stands on the terminal in the end: enough of one for what rich writes."""
    lines, at, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x1b]", output):
        if part == "\r":
            column = 0
        elif re.fullmatch(r"\x1b\[\d*A", part):
            at -= int(part[2:-1] or 1)
        elif part == "\x1b[2K":
            lines[at] = ""
        elif part[0] != "\x1b":
            if part == "\n" or column == width:
                at, column = at + 1, 0
                lines += [""] * (at + 1 - len(lines))
            if part != "\n":
                lines[at] = lines[at][:column].ljust(column) + part + lines[at][column + 1 :]
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
    head = next(at for at, line in enumerate(screen) if "step or last line" in line)
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
