"""What ranks print, shown by the parent: whole lines with a prefix, all of them, in time."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessExitedException, ProcessRaisedException
from rankspawn.view import viewer
from rankspawn.workers import tail
from tests import jobs
from tests.conftest import START_METHODS
from tests.jobs import DEADLOCK
from tests.view import view_cases

ROOT = Path(__file__).parent.parent.parent
Run = Callable[..., MultiprocessContext]


def spawn(func: Any, *args: Any, nprocs: int = 2, **options: Any) -> MultiprocessContext:
    return rankspawn.spawn(func, args=args, nprocs=nprocs, backend="gloo", **options)


def view_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rankspawn-view"]


WORDS = ("out", "err", "fd", "shell", "no end")


@pytest.mark.parametrize("start_method", START_METHODS)
def test_all_is_shown_with_a_prefix_before_spawn_returns(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    run(view_cases.print_everywhere, nprocs=2, tee=True)

    lines = capfd.readouterr().out.splitlines()
    for rank in range(2):
        own = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        assert own == [f"[rank {rank}] {word} {rank}" for word in WORDS]
    assert len(lines) == 2 * len(WORDS)
    assert view_threads() == []


def test_logs_have_the_same_without_a_prefix(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spawn(
        view_cases.print_everywhere,
        tee=True,
        log_dir=tmp_path,
        prefix="<{rank}/{world_size} {device}>",
    )

    shown = capfd.readouterr().out.splitlines()
    for rank in range(2):
        kept = (tmp_path / f"workerlog.{rank}").read_text().splitlines()
        own = [line for line in shown if line.startswith(f"<{rank}/2 cpu>")]
        assert own == [f"<{rank}/2 cpu>{line}" for line in kept]
        assert len(kept) == len(WORDS)


@pytest.mark.parametrize("tee", ["1", [1]])
def test_chosen_ranks(tee: Any, capfd: pytest.CaptureFixture[str]) -> None:
    spawn(view_cases.print_everywhere, tee=tee, prefix="")

    assert capfd.readouterr().out.splitlines() == [f"{word} 1" for word in WORDS]


@pytest.mark.parametrize("by_looking", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_line_is_lost_or_torn(
    by_looking: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_looking:
        monkeypatch.setattr(tail, "_call", lambda *_: -1)
    spawn(view_cases.print_many, 5_000, nprocs=4, tee=True, prefix="")

    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 4 * 5_000
    for rank in range(4):
        own = [line for line in lines if line.startswith(f"{rank} ")]
        assert own == [f"{rank} {number} " + "x" * 50 for number in range(5_000)]


def test_what_was_shown_is_not_kept_in_memory(capfd: pytest.CaptureFixture[str]) -> None:
    size = 8_000_000
    (room,) = spawn(view_cases.print_much_and_look, size, nprocs=1, tee=True, prefix="").results()

    assert room < size // 4
    assert len(capfd.readouterr().out) == size


def test_a_bar_shows_its_last_state_only(capfd: pytest.CaptureFixture[str]) -> None:
    spawn(view_cases.bars, get_context("spawn").Barrier(2), tee=True)

    assert sorted(capfd.readouterr().out.splitlines()) == ["[rank 0] 100%", "[rank 1] 100%"]


def test_a_bar_that_takes_long_is_shown_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "_REDRAWN_SECONDS", 0.0)
    event = get_context("spawn").Event()
    with Shown() as shown:
        context = spawn(view_cases.half_a_bar, event, nprocs=1, tee=True, join=False)
        assert shown.read_line() == "[rank 0] 50%"
        event.set()
        context.join()
        assert shown.read_line() == "[rank 0] 100%"


class Shown:
    """Standard output as a pipe, and what comes out of it."""

    def __enter__(self) -> Shown:
        self.read_end, write_end = os.pipe()
        self.stream = open(write_end, "w")
        self._redirected = redirect_stdout(self.stream)
        self._redirected.__enter__()
        self._text = b""
        return self

    def read_line(self) -> str:
        while b"\n" not in self._text:
            ready, _, _ = select.select([self.read_end], [], [], DEADLOCK)
            assert ready, "nothing was shown"
            self._text += os.read(self.read_end, 65536)
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    def close_reader(self) -> None:
        os.close(self.read_end)

    def __exit__(self, *_: object) -> None:
        self._redirected.__exit__(None, None, None)
        self.stream.close()
        try:
            os.close(self.read_end)
        except OSError:  # by the test
            return


def test_lines_are_shown_while_ranks_run(run: Run) -> None:
    with (
        Shown() as shown,
        run(view_cases.say_and_wait, args=("now",), nprocs=2, tee=True, join=False),
    ):
        assert sorted(shown.read_line() for _ in range(2)) == ["[rank 0] now", "[rank 1] now"]
        assert len(view_threads()) == 1
    assert view_threads() == []


def test_a_stream_of_the_program_itself() -> None:
    stream = io.StringIO()
    with redirect_stdout(stream):
        spawn(view_cases.print_everywhere, nprocs=1, tee=True, prefix="{local_rank}:")
    assert stream.getvalue().splitlines() == [f"0:{word} 0" for word in WORDS]


def test_standard_output_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert spawn(view_cases.print_everywhere, nprocs=1, tee=True).results() == [None]


def test_the_reader_left() -> None:
    with Shown() as shown:
        shown.close_reader()
        assert spawn(view_cases.print_many, 1000, tee=True).exitcodes() == [0, 0]
        assert view_threads() == []


def test_nobody_reads_and_a_rank_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "_PATIENCE_SECONDS", 0.1)
    printed = get_context("spawn").Barrier(2)
    with Shown() as shown:
        # The pipe is full at once: supervision and teardown do not care.
        with pytest.raises(ProcessRaisedException, match="on purpose"):
            spawn(view_cases.fail_after_printing, printed, tee=True)
        (thread,) = view_threads()
        # Nothing is lost: the rest comes when somebody reads.
        assert len([shown.read_line() for _ in range(2 * 2000)]) == 4000
        thread.join(DEADLOCK)
        assert view_threads() == []


def test_the_last_lines_stand_before_the_traceback(run: Run) -> None:
    stream = io.StringIO()
    with redirect_stdout(stream), pytest.raises(ProcessRaisedException) as caught:
        run(view_cases.print_and_fail, args=("raise",), nprocs=1, tee=True)

    lines = str(caught.value).splitlines()
    assert lines[:2] == [
        "Process 0 terminated with the following error:",
        "the last lines that it printed:",
    ]
    assert lines[2:22] == [*[f"  | line {number}" for number in range(11, 30)], "  | 99%"]
    assert lines[22] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: on purpose"
    assert stream.getvalue().endswith("[rank 0] 99%\n")


def test_what_a_killed_rank_printed_is_shown_and_in_the_error(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ProcessExitedException, match=r"  [|] line 29\n  [|] 99%"):
        run(view_cases.print_and_fail, args=("SIGKILL",), nprocs=1, tee=True)
    assert len(capfd.readouterr().out.splitlines()) == 31


def test_the_error_of_a_queue_has_the_last_lines_too(capfd: pytest.CaptureFixture[str]) -> None:
    context = spawn(
        view_cases.print_and_fail, "SIGKILL", nprocs=1, tee=False, progress=True, join=False
    )
    with pytest.raises(ProcessExitedException) as caught:
        context.join()
    assert context.error_queues[0].get() == str(caught.value)
    assert "  | 99%" in str(caught.value)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("has_log", [False, True])
def test_restarts(
    run: Run, has_log: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {"log_dir": tmp_path} if has_log else {}
    context = run(view_cases.count_tries, nprocs=1, tee=True, max_restarts=1, **options)

    assert context.results() == ["through"]
    assert capfd.readouterr().out.splitlines() == ["[rank 0] try 0", "[rank 0] try 1"]


def test_a_view_that_cannot_begin_leaves_no_rank(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(viewer, "open_sources", fail)
    with pytest.raises(OSError, match="too many open files"):
        run(view_cases.say_and_wait, args=("now",), nprocs=2, tee=True, log_dir=tmp_path)


FORGOTTEN = """
import os, sys
import rankspawn
from tests.view import view_cases

if __name__ == "__main__":
    print("before")
    rankspawn.spawn(view_cases.print_everywhere, nprocs=2, backend="gloo", join=False, tee=True,
                    start_method=sys.argv[1])
"""


def run_script(text: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(text)
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )


def test_a_context_that_nobody_joins_is_shown_to_the_end(tmp_path: Path, start_method: str) -> None:
    done = run_script(FORGOTTEN, tmp_path, start_method)

    lines = done.stdout.splitlines()
    # For what the program waits is told, if it has to wait.
    errors = [line for line in done.stderr.splitlines() if "waits at its end" not in line]
    assert (done.returncode, errors) == (0, [])
    assert lines[0] == "before"
    assert sorted(lines[1:]) == sorted(
        f"[rank {rank}] {word} {rank}" for rank in range(2) for word in WORDS
    )


INTERRUPTED = """
import os, signal, threading
import rankspawn
from tests import jobs

def work(text):
    print(text, flush=True)
    try:
        jobs.sleep_for_ever()
    finally:
        print("goodbye", flush=True)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        rankspawn.spawn(work, args=("ready",), nprocs=2, backend="gloo", tee=True, grace_period=30)
    except KeyboardInterrupt:
        names = [thread.name for thread in threading.enumerate()]
        print("interrupted", names, flush=True)
"""


def test_ctrl_c_shows_the_last_words(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(INTERRUPTED)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    with subprocess.Popen(
        [sys.executable, str(script)],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as parent:
        try:
            assert parent.stdout is not None
            lines = [parent.stdout.readline() for _ in range(2)]
            os.killpg(parent.pid, signal.SIGINT)  # as a terminal does
            lines += parent.stdout.readlines()
        finally:
            parent.kill()
    assert sorted(lines[:2]) == ["[rank 0] ready\n", "[rank 1] ready\n"]
    assert lines[-1] == "interrupted ['MainThread']\n"


def test_a_group_with_output_wakes_nobody_when_idle() -> None:
    growth = tail.Growth()
    growth.close()
    if not growth.is_told:
        pytest.skip("this system does not tell of files that grow")
    with Shown() as shown, spawn(view_cases.say_and_wait, "ready", tee=True, join=False):
        for _ in range(2):
            shown.read_line()
        (thread,) = view_threads()
        path = Path(f"/proc/self/task/{thread.native_id}/status")

        def switches() -> int:
            lines = path.read_text().splitlines()
            return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)

        before, deadline = -1, time.monotonic() + DEADLOCK
        while (now := switches()) != before:  # until it has come to rest
            assert time.monotonic() < deadline, "it never came to rest"
            before = now
            time.sleep(0.1)
        time.sleep(0.5)  # what happens meanwhile is what is looked at
        assert switches() == before


def test_nothing_is_shown_of_what_ends_quickly(capfd: pytest.CaptureFixture[str]) -> None:
    spawn(jobs.do_nothing, progress=True)
    assert capfd.readouterr() == ("", "")
