"""Traces of real ranks, and of some that exist in memory only."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rankspawn
from rankspawn import MultiprocessContext
from rankspawn.supervise.supervisor import SupervisionPolicy
from rankspawn.trace.recorder import Recorder, finish_all
from rankspawn.view.sources import Place
from tests.jobs import DEADLOCK
from tests.supervise.scripted_group import ScriptedEngine, ScriptedGroup
from tests.trace import trace_cases
from tests.trace.trace_cases import HOSTILE
from tests.view import view_cases

Run = Callable[..., MultiprocessContext]
PLACES = [Place(rank, rank, 2, "cpu") for rank in range(2)]


def read_page(path: Path) -> dict[str, Any]:
    told = re.search(r'id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert told is not None
    data: dict[str, Any] = json.loads(told[1])
    return data


def test_a_page_of_a_failure(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    with pytest.raises(rankspawn.ProcessRaisedException, match="gone"):
        run(trace_cases.report_and_fail, nprocs=2, trace=path, log_dir=tmp_path / "log")
    data = read_page(path)
    assert data["failed"]
    assert "ValueError: the loss is </pre> gone" in data["error"]
    victim, cause = data["ranks"]
    assert [lane["tries"][0]["state"] for lane in (victim, cause)] == ["stopped", "failed"]
    assert [lane["tries"][0]["cause"] for lane in (victim, cause)] == [False, True]
    assert "ValueError" in cause["tries"][0]["failure"]
    assert cause["curves"]["step"][1] == [3]
    assert cause["curves"]["=loss"][1] == [0.5]
    assert HOSTILE[:40] in cause["lines"][0][1]
    for lane in (victim, cause):
        times = [time for start, end, _ in lane["spans"] for time in (start, end)]
        assert times == sorted(times)
        assert lane["spans"][0][2] == "starting"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["log", "run.html"]


def test_trace_events_of_a_success(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    rankspawn.spawn(view_cases.report_quickly, (10,), 2, backend="gloo", trace=str(path))
    trace = json.loads(path.read_text())
    assert trace["otherData"]["what"] == "report_quickly"
    ends = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "end"]
    assert ends == ["done", "done"]
    steps = [event for event in trace["traceEvents"] if event["name"] == "step"]
    assert [steps[-1]["pid"], steps[-1]["args"]] == [1, {"step": 10}]


def test_collectives_and_who_waited_for_whom_in_them(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    rankspawn.spawn(trace_cases.talk, (), 2, backend="gloo", trace=path)
    for lane in read_page(path)["ranks"]:
        told = lane["collectives"]
        calls = {name: number for name, (number, _) in told["calls"].items()}
        once = ("init_parallel_env", "all_gather_object", "split", "barrier", "all_reduce")
        assert calls == dict.fromkeys(once, 1)
        assert told["bytes"] > 3
        spent = sum(seconds for _, seconds in told["calls"].values())
        assert told["seconds"] == pytest.approx(spent, abs=0.003)
        assert lane["curves"]["talked"][1][-1] == pytest.approx(told["seconds"], abs=0.001)
        assert lane["curves"]["waited"][1][-1] == pytest.approx(told["waited"], abs=0.001)
        if lane["rank"] == 0:  # not for itself, which is the name of the other one in the part
            assert list(told["for"]) == ["1"]


def record(
    engine: ScriptedEngine, path: Path, act: Callable[[MultiprocessContext], object], **policy: Any
) -> Recorder:
    recorder = Recorder(str(path), PLACES, {"what": "scripted"})
    rules = SupervisionPolicy(grace_period=DEADLOCK, on_answer=recorder.note_answer, **policy)
    with engine.context(rules, (recorder,)) as context:
        act(context)
    return recorder


def all_return(group: ScriptedGroup) -> None:
    group.prints(0, "one\ntwo\n")
    for index in range(2):
        group.returns(index)


def test_restarts_are_in_one_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    engine = ScriptedEngine(lambda group: group.raises(1, ValueError("first")), all_return)
    record(engine, path, lambda context: context.join(), max_restarts=1)
    data = read_page(path)
    assert not data["failed"]
    assert len(data["starts"]) == 2
    states = [[ended["state"] for ended in lane["tries"]] for lane in data["ranks"]]
    assert states == [["stopped", "done"], ["failed", "done"]]
    assert [line for _, line in data["ranks"][0]["lines"]] == ["one", "two"]


def test_a_group_that_was_stopped_has_one(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    record(ScriptedEngine(lambda _: None), path, lambda context: context.terminate())
    assert [lane["tries"][0]["state"] for lane in read_page(path)["ranks"]] == ["stopped"] * 2


def test_a_timeout_has_the_stacks(tmp_path: Path) -> None:
    path = tmp_path / "run.html"

    def wait(context: MultiprocessContext) -> None:
        with pytest.raises(rankspawn.SpawnTimeoutError):
            context.join()

    record(ScriptedEngine(lambda _: None), path, wait, timeout=0.01)
    assert "in step" in read_page(path)["ranks"][1]["stack"]


def test_one_that_cannot_be_written_hides_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "folder" / "run.html"  # removed meanwhile
    engine = ScriptedEngine(lambda group: group.raises(0, ValueError("the job's own")))

    def wait(context: MultiprocessContext) -> None:
        with pytest.raises(rankspawn.ProcessRaisedException, match="the job's own"):
            context.join()

    with caplog.at_level(logging.WARNING):
        record(engine, path, wait)
    assert "could not be written" in caplog.text


def test_what_nobody_joined_is_written_at_exit(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    recorder = Recorder(str(path), PLACES, {})
    group = ScriptedGroup(2)
    recorder.begin(group)
    group.returns(0)
    group.returns(1)
    group.collect()
    group.close()
    assert not path.exists()
    finish_all()
    assert read_page(path)["ranks"][0]["tries"][0]["state"] == "done"


def test_looks_take_a_hundredth_of_a_core_at_most(tmp_path: Path) -> None:
    """Looks that take long are further apart: shown by their rule, not by a clock."""
    recorder = Recorder(str(tmp_path / "run.html"), PLACES, {})
    group = ScriptedGroup(2)
    recorder.begin(group)
    looking = recorder._looking
    assert looking is not None
    ticks = iter([0.0, 2.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankspawn.trace.recorder.time.thread_time", lambda: next(ticks))
        due = looking._next(lambda: None, (0.05, 1.0))
    assert due - looking._now() > 2.0 / 0.005 - 10
    group.kill()
    group.collect()
    group.close()
    recorder.finish()
