"""The trace of a launcher's programs; what is in one is shown in ``tests/trace``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankspawn.launch.tracing import Traced
from tests.launch.factories import config_of
from tests.launch.running import run_script
from tests.trace.test_recorder import read_page

CPU = ("--device_type", "cpu")


def test_a_page_over_restarts(tmp_path: Path) -> None:
    script = """
        import os
        print("</script> rank", os.environ["RANK"], flush=True)
        if os.environ["RANK"] == "1":
            raise ValueError("on purpose")
    """
    flags = ("--elastic_level", "1", "--max_restart", "1", "--trace", "run.html")
    done = run_script(tmp_path, script, *CPU, *flags)

    assert done.code == 1
    data = read_page(tmp_path / "run.html")
    assert data["failed"]
    assert "ValueError: on purpose" in data["error"]
    assert len(data["starts"]) == 2
    assert [lane["rank"] for lane in data["ranks"]] == [0, 1]
    assert [ended["state"] for ended in data["ranks"][1]["tries"]] == ["failed", "failed"]
    assert data["ranks"][1]["lines"][0][1] == "</script> rank 1"
    assert data["facts"]["what"] == "train.py"


@pytest.mark.slow
def test_stacks_of_ranks_that_have_stalled(tmp_path: Path) -> None:
    """The time is for a start on a machine that has much to do."""
    script = """
        import rankspawn, time

        def wait():
            print("waits", flush=True)
            time.sleep(1000)

        wait()
    """
    flags = ("--nproc_per_node", "1", "--stall_timeout", "10", "--trace", "run.html")
    done = run_script(tmp_path, script, *CPU, *flags)

    assert done.code == 124
    (lane,) = read_page(tmp_path / "run.html")["ranks"]
    assert " in wait\n" in lane["stack"]


def test_trace_events(tmp_path: Path) -> None:
    done = run_script(tmp_path, "print('hello')", *CPU, "--trace", "run.json")
    assert done.code == 0, done.errors
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "end"] == ["done", "done"]


def test_what_cannot_be_written_is_told_before_the_start(tmp_path: Path) -> None:
    done = run_script(tmp_path, "open('began', 'w')", *CPU, "--trace", "no/run.html")
    assert done.code != 0
    assert "make its folder first" in done.errors
    done = run_script(tmp_path, "open('began', 'w')", *CPU, "--trace", "run.txt")
    assert done.code == 2
    assert "a trace ends in .html" in done.errors
    assert not (tmp_path / "began").exists()


def test_where_nothing_was_started_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    traced = Traced(str(path), config_of("--nnodes 1"))
    traced.finish(None, None)
    assert not path.exists()
