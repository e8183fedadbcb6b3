"""Output of the ranks in files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import rankspawn
from rankspawn import ProcessExitedException, ProcessRaisedException
from rankspawn.option_types import StartMethod
from tests import jobs
from tests.portable_limits import SERVED


def print_everywhere() -> None:
    rank = jobs.rank()
    print(f"out {rank}")
    print(f"err {rank}", file=sys.stderr)
    os.write(1, f"fd {rank}\n".encode())
    subprocess.run([sys.executable, "-c", f"print('descendant {rank}')"], check=True)


def test_each_rank_has_a_log_with_all_it_prints(tmp_path: Path, start_method: StartMethod) -> None:
    folder = tmp_path / "deep" / "log"

    rankspawn.spawn(
        print_everywhere, nprocs=2, backend="gloo", log_dir=folder, start_method=start_method
    )

    for rank in range(2):
        lines = (folder / f"workerlog.{rank}").read_text().splitlines()
        assert sorted(lines) == [f"descendant {rank}", f"err {rank}", f"fd {rank}", f"out {rank}"]


def print_and_fail(how: str) -> None:
    print("before the end")
    jobs.fail(how)


def test_the_last_lines_and_the_path_stand_before_the_traceback(
    tmp_path: Path, start_method: StartMethod
) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        rankspawn.spawn(
            print_and_fail,
            args=("raise",),
            nprocs=1,
            backend="gloo",
            log_dir=str(tmp_path),
            start_method=start_method,
        )

    lines = str(caught.value).splitlines()
    assert lines[:4] == [
        "Process 0 terminated with the following error:",
        f"last lines of {tmp_path}/workerlog.0:",
        "  | before the end",
        "Traceback (most recent call last):",
    ]
    assert lines[-1] == "ValueError: on purpose"


def test_what_a_killed_rank_printed_is_not_lost(tmp_path: Path, start_method: StartMethod) -> None:
    with pytest.raises(ProcessExitedException, match="before the end"):
        rankspawn.spawn(
            print_and_fail,
            args=("SIGKILL",),
            nprocs=1,
            backend="gloo",
            log_dir=tmp_path,
            start_method=start_method,
        )


def test_a_log_is_overwritten_by_the_next_run(tmp_path: Path) -> None:
    for _ in range(2):
        rankspawn.spawn(print, args=("line",), nprocs=1, backend="gloo", log_dir=tmp_path)

    assert (tmp_path / "workerlog.0").read_text() == "line\n"


def print_bars_and_fail() -> None:
    sys.stdout.write("first\n\r10%\r100%\n\x1b[2Klast")
    jobs.fail("raise")


def test_of_a_redrawn_line_the_error_has_the_last_state(tmp_path: Path) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        rankspawn.spawn(print_bars_and_fail, nprocs=1, backend="gloo", log_dir=tmp_path)

    assert str(caught.value).splitlines()[2:5] == ["  | first", "  | 100%", "  | last"]


STREAMS = """
import sys
import rankspawn

def describe():
    streams = (sys.stdout, sys.stderr)
    return [(stream.encoding, stream.errors, stream.write_through) for stream in streams]

if __name__ == "__main__":
    if len(sys.argv) == 1:
        open("fresh", "w").write(repr(describe()))
    for method in sys.argv[1:]:
        options = {"backend": "gloo", "log_dir": "log", "start_method": method}
        print(rankspawn.spawn(describe, nprocs=1, **options).results()[0])
"""


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        ([], {"PYTHONIOENCODING": "latin-1:replace"}),
        (["-X", "utf8"], {"LC_ALL": "C", "PYTHONUNBUFFERED": "1"}),
        (["-X", "utf8=0"], {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}),
    ],
    ids=["PYTHONIOENCODING", "utf8", "locale"],
)
def test_streams_are_encoded_as_those_of_a_fresh_interpreter(
    tmp_path: Path, flags: list[str], environ: dict[str, str]
) -> None:
    script = tmp_path / "streams.py"
    script.write_text(STREAMS)

    def run(*arguments: str) -> list[str]:
        command = [sys.executable, *flags, str(script), *arguments]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, **environ},
            check=True,
            capture_output=True,
            text=True,
            timeout=jobs.DEADLOCK,
        )
        return done.stdout.splitlines()

    run()

    # In a fresh interpreter of ours nothing is buffered: what it printed last is in its log.
    methods = ("fork", *SERVED)
    assert run(*methods) == [(tmp_path / "fresh").read_text()] * len(methods)


def open_pipe(path: Path) -> int:
    """A reader that is there from the beginning, for whom an open does not wait."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


@pytest.mark.parametrize("has_reader", [False, True])
def test_a_log_that_is_a_pipe_is_refused_at_once(tmp_path: Path, has_reader: bool) -> None:
    path = tmp_path / "workerlog.1"
    os.mkfifo(path)
    reader = open_pipe(path) if has_reader else None

    # With a bound: the open of such a pipe waits for its other side, and no Ctrl-C ends that.
    others = threading.Timer(jobs.DEADLOCK, lambda: os.close(open_pipe(path)))
    others.start()
    with pytest.raises(OSError, match="a log is read again") as caught:
        rankspawn.spawn(jobs.do_nothing, nprocs=2, backend="gloo", log_dir=tmp_path)
    others.cancel()
    others.join()

    assert caught.value.filename == str(path)
    if reader is not None:
        os.close(reader)


def test_ctrl_c_is_heard_while_a_log_is_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_open, held_back = os.open, []

    def open_where_nobody_answers(path: Any, *arguments: Any) -> int:
        if os.path.basename(path) == "workerlog.0":
            signal.raise_signal(signal.SIGINT)
            held_back.append(path)
        return system_open(path, *arguments)

    monkeypatch.setattr("rankspawn.workers.logs.os.open", open_where_nobody_answers)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            rankspawn.spawn(jobs.do_nothing, nprocs=1, backend="gloo", log_dir=tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)

    assert held_back == []
