"""The trace event format."""

from __future__ import annotations

import json

from rankspawn.trace.perfetto import trace_events
from tests.trace.trace_cases import data_of


def test_each_rank_is_a_process_with_stages_counters_and_marks() -> None:
    trace = trace_events(data_of(2, failed=1))
    events = trace["traceEvents"]
    json.dumps(trace, allow_nan=False)
    names = {
        event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    assert names == {0: "rank 0 (cpu)", 1: "rank 1 (cpu)"}
    stages = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert [event["name"] for event in stages] == ["starting", "importing", "running", "reporting"]
    assert stages[0]["ts"] == 10_000
    assert stages[2]["dur"] > 1_000_000
    counters = {event["name"] for event in events if event["ph"] == "C"}
    talked = {"in collectives (s)", "waited for others (s)"}
    assert counters == {"CPU (%)", "memory (bytes)", "step", "loss"} | talked
    ends = [event for event in events if event.get("cat") == "end"]
    assert [event["name"] for event in ends] == ["stopped", "failed"]
    assert ends[1]["args"]["failure"] == "ValueError\n"
    assert trace["otherData"]["what"] == "train"
    assert trace["otherData"]["error"].startswith("rank 1 failed")


def test_restarts_are_marks() -> None:
    data = data_of(1)
    data["starts"] = [0.0, 2.0]
    marks = [event for event in trace_events(data)["traceEvents"] if event.get("cat") == "restart"]
    assert [(event["name"], event["ts"]) for event in marks] == [("restart 1", 2_000_000)]
