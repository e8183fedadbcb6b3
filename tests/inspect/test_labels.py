"""What names of files tell; commands and choices, without a process."""

from __future__ import annotations

import os

import pytest

from rankspawn.inspect.asking import as_faulthandler
from rankspawn.inspect.finding import NoJobError, RankSeen, RunningJob, choose, script_of
from rankspawn.inspect.labels import GroupLabel, RankLabel, read_group, read_rank
from rankspawn.inspect.tables import describe_jobs, headline, jobs_as_data
from rankspawn.step_records import pack_steps, pack_values
from rankspawn.view.ranks import Usage
from rankspawn.workers.meeting import group_name, rank_name

MARK = "000000012345" + "abcd" * 8
PART = MARK[:24]


@pytest.mark.parametrize("link", ["/memfd:{} (deleted)", "/tmp/a:b/{}x1y2 (deleted)"])
def test_a_name_tells_what_it_was_made_of(link: str) -> None:
    group = link.format(group_name(MARK, 2.5, "train.<locals>.step"))
    rank = link.format(rank_name(MARK, 1, 9, {"RANKSPAWN_DEVICE_TYPE": "gpu", "X": None}))

    assert read_group(group) == GroupLabel(os.getpid(), PART, 2.5, "train.<locals>.step")
    assert read_rank(rank) == RankLabel(PART, 1, 9, "gpu")
    assert read_rank(group) is None
    assert read_group(rank) is None


def test_a_name_with_everything_in_it_is_short_enough() -> None:
    name = group_name(MARK, 1e300, "a:b/c\N{GREEK SMALL LETTER PI}" * 100)

    assert len(os.fsencode(name)) < 249
    label = read_group(f"/memfd:{name} (deleted)")
    assert label is not None
    assert label.what.startswith("a;b|c?a;b|c?")


@pytest.mark.parametrize(
    "link", ["/memfd:rankspawn-meeting (deleted)", "/tmp/rankspawn-meeting:x:y:z::", "socket:[1]"]
)
def test_other_files_tell_nothing(link: str) -> None:
    assert read_group(link) is None


def test_the_whole_mark_is_in_no_name() -> None:
    # Whoever maps such a file would be taken for one of the job, and killed with it.
    assert MARK not in group_name(MARK, 1, "f") + rank_name(MARK, 0, 0, {})


@pytest.mark.parametrize(
    ("command", "plain", "whole"),
    [
        ("python -u /a/train.py --lr 1", "train.py", "train.py --lr 1"),
        ("/usr/bin/python3.11 -X dev -W error -m pkg.train -v", "-m pkg.train", "-m pkg.train -v"),
        ("python3 -c code more", "-c", "-c"),
        ("python3", "", ""),
        ("/opt/bin/solver in.txt", "solver", "solver in.txt"),
    ],
)
def test_what_a_command_line_runs(command: str, plain: str, whole: str) -> None:
    assert script_of(command.split()) == plain
    assert script_of(command.split(), with_arguments=True) == whole


def test_a_command_line_that_is_gone() -> None:
    assert script_of([]) == ""


def job(name: str, parent: int, *ranks: RankSeen) -> RunningJob:
    return RunningJob(name, "spawn", "train (run.py)", parent, 0.0, 10.0, PART, ranks)


AB, AC = job("ab12", 100, RankSeen(0, 101, True)), job("ac34", 200)


@pytest.mark.parametrize(
    ("name", "found"), [("ab", AB), ("AC", AC), ("200", AC), ("101", AB), ("ab12", AB)]
)
def test_a_job_is_named_by_its_first_letters_or_a_process(name: str, found: RunningJob) -> None:
    assert choose([AB, AC], name) is found


@pytest.mark.parametrize(
    ("jobs", "name", "words"),
    [
        ([], None, "no job of yours runs on this machine"),
        ([], "zz", "there is no job zz: no job of yours runs"),
        ([AB, AC], None, "2 jobs run: say which one\n  ab12  train"),
        ([AB, AC], "a", "a means 2 jobs: give more of the name\n  ab12"),
        ([AB], "zz", "there is no job zz; these run:\n  ab12"),
    ],
)
def test_words_for_what_is_no_job(jobs: list[RunningJob], name: str | None, words: str) -> None:
    with pytest.raises(NoJobError) as caught:
        choose(jobs, name)
    assert words in str(caught.value)


def test_the_only_job_needs_no_name() -> None:
    assert choose([AB], None) is AB


def test_a_process_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(NoJobError, match=f"is another user's \\(uid {uid}\\)"):
        choose([], str(os.getpid()))


def test_a_table_has_what_is_known() -> None:
    steps = pack_steps(1, 3, 12, pack_values({"loss": 0.25}))
    ranks = [
        RankSeen(rank, 10 + rank, True, "gpu 4", "running", None, steps, f"/a/workerlog.{rank}")
        for rank in range(20)
    ]
    usage = {10: Usage(50.0, 1 << 20), 11: Usage(25.0, 1 << 20)}
    text = describe_jobs([job("ab12", 100, *ranks)], usage)

    lines = text.splitlines()
    assert lines[0] == "ab12  train (run.py), spawn of process 100"
    assert lines[1].endswith("20 running; CPU 75%; memory 2 MiB")
    shown = "0 10 gpu 4 running 50% 1 MiB 3/12 25% loss=0.25"
    assert lines[3].split() == shown.split()
    assert "  4 more ranks: see rankspawn ps --json" in lines
    assert lines[-1].startswith("  logs: /a: workerlog.0, workerlog.1")

    (data,) = jobs_as_data([job("ab12", 100, *ranks)], usage)
    assert data["job"] == "ab12"
    assert data["ranks"][1] == {
        "rank": 1,
        "pid": 11,
        "device": "gpu 4",
        "state": "running",
        "cpu_percent": 25.0,
        "memory": 1 << 20,
        "step": 3.0,
        "total": 12.0,
        "values": {"loss": 0.25},
        "log": "/a/workerlog.1",
    }


def test_a_long_command_is_cut_in_a_headline() -> None:
    long = RunningJob("ab", "rankrun", "x" * 300, 1, 0.0, 1.0, PART, ())
    assert len(headline(long)) < 120


DUMP = """Process 7: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    wait (train.py:5)
    <module> (train.py:9)
Thread 8 (active): "other"
    run (/a b/threading.py:975)
"""


def test_what_py_spy_says_has_the_form_of_other_stacks() -> None:
    assert as_faulthandler(DUMP) == (
        'Thread 8 (active): "other" (most recent call first):\n'
        '  File "/a b/threading.py", line 975 in run\n\n'
        'Thread 7 (idle): "MainThread" (most recent call first):\n'
        '  File "train.py", line 5 in wait\n'
        '  File "train.py", line 9 in <module>\n'
    )
    assert as_faulthandler("nothing known") == "nothing known"
