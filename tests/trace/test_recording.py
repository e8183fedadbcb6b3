"""What is kept of each rank. No processes in here."""

from __future__ import annotations

import json

from rankspawn.supervise.reports import Steps
from rankspawn.trace.recording import Ended, Recording, describe_end, lines_of
from rankspawn.trace.series import Series
from tests.trace.trace_cases import data_of


def test_stages_follow_each_other() -> None:
    recording = Recording([(3, "gpu 1")], {})
    lane = recording.lanes[0]
    lane.starts(0.1, 77)
    for at, state in ((0.2, "starting"), (0.3, "loading"), (0.5, "running"), (0.9, "done")):
        lane.is_in(state, at)
    lane.ends(Ended("done", "returned", 0.8), 1.0)
    data = lane.as_data()
    assert data["spans"] == [
        [0.1, 0.3, "starting"],
        [0.3, 0.5, "importing"],
        [0.5, 0.8, "running"],
        [0.8, 1.0, "reporting"],
    ]
    assert (data["rank"], data["device"], data["pids"]) == (3, "gpu 1", [77])


def test_a_restart_goes_on_in_the_same_lane() -> None:
    lane = Recording([(0, "cpu")], {}).lanes[0]
    lane.starts(0.0, 7)
    lane.is_in("running", 1.0)
    lane.ends(Ended("stopped", "stopped", 1.5), 2.0)
    lane.starts(2.1, 8)
    lane.is_in("running", 3.0)
    lane.ends(Ended("failed", "failed", 3.5, is_cause=True, failure="Traceback"), 3.5)
    data = lane.as_data()
    assert [stage for _, _, stage in data["spans"]] == [
        *("starting", "running", "stopping"),
        *("starting", "running"),
    ]
    assert [(ended["state"], ended["cause"]) for ended in data["tries"]] == [
        ("stopped", False),
        ("failed", True),
    ]
    assert data["pids"] == [7, 8]


def test_values_are_curves_and_texts() -> None:
    lane = Recording([(0, "cpu")], {}).lanes[0]
    lane.starts(0, 1)
    nan = float("nan")
    lane.reports(Steps(1, 9, {"loss": 0.5, "phase": "warm up", "cpu": 3, "odd": nan}), 1)
    for number in range(100):
        lane.reports(Steps(None, 9, {f"value {number}": 1.0}), 2)
    data = lane.as_data()
    assert data["total"] == 9
    assert data["curves"]["=loss"] == [[1], [0.5]]
    assert data["curves"]["=cpu"] == [[1], [3]]
    assert data["curves"]["step"] == [[1], [1]]
    assert data["texts"] == {"phase": "warm up", "odd": "nan"}
    assert len(data["curves"]) < 20
    json.dumps(data, allow_nan=False)


def test_a_large_recording_stays_small() -> None:
    recording = Recording([(rank, "cpu") for rank in range(1000)], {})
    lane = recording.lanes[0]
    lane.starts(0, 1)
    for at in range(100_000):
        lane.reports(Steps(at, None, {"loss": at % 17}), at)
    assert max(len(series.times) for series in lane.curves.values()) <= 300
    assert len(json.dumps(data_of(1000))) < 2_000_000


def test_an_error_keeps_its_end_and_the_stacks() -> None:
    recording = Recording([(0, "cpu"), (1, "cpu")], {})
    error = TimeoutError("x" * 50_000 + " the end")
    error.stacks = {1: "in wait"}  # type: ignore[attr-defined]
    recording.fails(error)
    data = recording.as_data()
    assert data["failed"]
    assert data["error"].endswith("the end")
    assert len(data["error"]) == 20_000
    assert [lane["stack"] for lane in data["ranks"]] == ["", "in wait"]


def test_lines_have_the_time_by_which_they_were_there() -> None:
    printed = Series(100)
    printed.add(1.0, 106)
    printed.add(2.0, 112)
    data = b"torn\none\n\x1b[31mred\x1b[0m\xff\nlast"
    lines = lines_of(data, begin=102, start=50, printed=printed)
    assert lines == [(2.0, "one"), (None, "red\ufffd"), (None, "last")]
    assert lines_of(b"one\n", 50, 50, Series(4)) == [(None, "one")]


def test_ends_in_words() -> None:
    assert describe_end("done", 0, 1.234) == "returned after 1.23 s"
    assert describe_end("stopped", -15, 1) == "stopped after 1.00 s, because of others"
    assert describe_end("failed", -9, 1) == "failed by signal 9 after 1.00 s"
    assert describe_end("failed", 7, 1) == "failed with exit code 7 after 1.00 s"
