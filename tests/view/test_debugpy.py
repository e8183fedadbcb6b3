"""A rank under the debugger of an editor: a real debugpy, and a client that talks as editors do."""

from __future__ import annotations

import inspect
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankspawn import MultiprocessContext
from tests.jobs import DEADLOCK
from tests.launch.running import COMMAND, environment, write_script
from tests.view.dap_client import Editor

pytest.importorskip("debugpy")

pytestmark = pytest.mark.interop

Run = Callable[..., MultiprocessContext]


def stop_and_tell(start: int) -> int:
    number = start
    breakpoint()
    return number


def wait_for_port(log: Path, rank: int) -> int:
    """The port at which a rank says that it can be reached."""
    deadline = time.monotonic() + DEADLOCK
    while time.monotonic() < deadline:
        text = log.read_text() if log.exists() else ""
        found = re.search(rf"rank {rank} waits for a debugger at 127.0.0.1:(\d+)\n", text)
        if found:
            return int(found[1])
        time.sleep(0.05)
    raise AssertionError(f"rank {rank} says nothing: {text}")


def change_and_go_on(editor: Editor) -> None:
    """At the breakpoint, give a variable another value."""
    thread = editor.event("stopped")["body"]["threadId"]
    frames = editor.ask("stackTrace", threadId=thread)["body"]["stackFrames"]
    frame = next(each for each in frames if each["name"] == "stop_and_tell")
    shown = editor.ask("evaluate", expression="number", frameId=frame["id"], context="repl")
    assert shown["body"]["result"] == "5"
    editor.ask("evaluate", expression="number = 42", frameId=frame["id"], context="repl")
    editor.ask("continue", threadId=thread)


@pytest.mark.parametrize(("asked", "results"), [("1,wait", [5, 42]), ("all,wait", [42, 42])])
def test_an_editor_stops_the_chosen_ranks(
    run: Run, tmp_path: Path, asked: str, results: list[int]
) -> None:
    context = run(stop_and_tell, args=(5,), nprocs=2, debugpy=asked, log_dir=tmp_path, join=False)
    with context:
        for rank, result in enumerate(results):
            if result == 42:
                editor = Editor(wait_for_port(tmp_path / f"workerlog.{rank}", rank))
                editor.attach()
                change_and_go_on(editor)
                editor.close()
        assert context.results() == results


def test_an_editor_stops_a_rank_of_rankrun(tmp_path: Path) -> None:
    text = f"{inspect.getsource(stop_and_tell)}\nprint(stop_and_tell(5))\n"
    write_script(tmp_path, text)
    flags = ("--nproc_per_node", "2", "--device_type", "cpu", "--debugpy", "1,wait", "train.py")
    said = tmp_path / "said"
    with said.open("wb") as file:
        launcher = subprocess.Popen(
            [*COMMAND, *flags], cwd=tmp_path, env=environment(), stdout=file, stderr=file
        )
    try:
        editor = Editor(wait_for_port(said, 1))
        editor.attach()
        change_and_go_on(editor)
        editor.close()
        assert launcher.wait(DEADLOCK) == 0, said.read_text()
    finally:
        launcher.kill()
        launcher.wait()
    assert [(tmp_path / "log" / f"workerlog.{rank}").read_text() for rank in (0, 1)] == [
        "5\n",
        "42\n",
    ]


def test_a_rank_that_nobody_attaches_to_goes_on(run: Run, tmp_path: Path) -> None:
    results = run(stop_and_tell, args=(5,), nprocs=1, debugpy=0, log_dir=tmp_path).results()
    assert results == [5]
    assert "rank 0 listens for a debugger at 127.0.0.1:" in (tmp_path / "workerlog.0").read_text()
