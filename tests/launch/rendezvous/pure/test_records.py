"""What goes into a store comes out as it was."""

from __future__ import annotations

import json

from rankspawn.launch.programs import Node
from rankspawn.launch.rendezvous.job_state import (
    JobState,
    JobTerms,
    Member,
    NodeReport,
    Phase,
    Refusal,
)
from rankspawn.launch.rendezvous.records import (
    LONGEST_TEXT,
    Keys,
    clip,
    read_group,
    read_member,
    read_state,
    write_group,
    write_member,
    write_state,
)
from rankspawn.launch.rendezvous.store import Entry
from rankspawn.launch.session import Cause

CAUSE = Cause("failed", "größer\n\ttrace", 137, "abcdef")


def test_a_state() -> None:
    state = JobState(
        run_id="run",
        terms=JobTerms(2, 4, expected=("10.0.0.1", "10.0.0.2")),
        phase=Phase.ENDING,
        generation=7,
        group=("a", "b"),
        hosts=("10.0.0.1", "10.0.0.2"),
        restarts=3,
        calling=True,
        because="why",
        hold=True,
        blamed="a",
        causes=(CAUSE,),
        refused=(Refusal("c", CAUSE),),
        used=2,
    )
    entry = Entry("key", write_state(state, "groups/7-x"), 1, 2)
    assert read_state(entry) == (state, "groups/7-x")


def test_a_member_gets_its_order_from_the_store() -> None:
    report = NodeReport(
        stopped=1,
        ready=2,
        done=3,
        failed=4,
        cause=CAUSE,
        leaving=CAUSE,
        answered=True,
        unable=CAUSE,
    )
    member = Member(
        name="abcdef",
        host="::1",
        ports=(6070, 6071),
        given_rank=2,
        serves=True,
        machine="boot/4026531840",
        flags="--nnodes 2",
        ignores="run",
        returned=True,
        restarts=4,
        used=3,
        former_rank=1,
        order=5,
        updated=9,
        report=report,
    )
    assert read_member(Entry("key", write_member(member), 5, 9)) == member


def test_what_a_newer_version_adds_is_passed_over() -> None:
    state, member = JobState("run", JobTerms(2, 3)), Member("a", "10.0.0.1")
    newer = json.loads(write_state(state, "")) | {"new": 1}
    newer["policy"]["new"] = 1
    assert read_state(Entry("key", json.dumps(newer), 1, 2)) == (state, "")
    newer = json.loads(write_member(member)) | {"new": 1}
    newer["news"]["new"] = 1
    assert read_member(Entry("key", json.dumps(newer), 0, 0)) == member


def test_a_group() -> None:
    members = {
        "a": Member("a", "10.0.0.1", (1, 2)),
        "b": Member("b", "10.0.0.2", (3,)),
    }
    assert read_group(write_group(["b", "a"], members)) == (
        Node(0, "10.0.0.2", (3,), "b"),
        Node(1, "10.0.0.1", (1, 2), "a"),
    )


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    text = "rank 3" + "x" * 100_000 + "ValueError"
    short = clip(text)
    assert len(short) < LONGEST_TEXT + 100
    assert short.startswith("rank 3")
    assert short.endswith("ValueError")
    assert clip("short") == "short"


def test_jobs_are_kept_apart() -> None:
    assert not Keys("a").state.startswith(Keys("b").root)
    for other in ("ab", "a/b", "a%2Fb"):
        assert not Keys(other).root.startswith(Keys("a").root)
    assert Keys("a/b").root != Keys("a%2Fb").root


def test_the_names_in_a_store_stay() -> None:
    """Nodes with an older version of this package may be in the same job."""
    state = JobState("run", JobTerms(2, 3), refused=(Refusal("c", CAUSE),))
    written = json.loads(write_state(state, "groups/1-x"))
    assert list(written) == [
        "run_id",
        "policy",
        "phase",
        "generation",
        "group",
        "hosts",
        "restarts",
        "calling",
        "because",
        "hold",
        "blamed",
        "causes",
        "dismissed",
        "used",
        "tries",
        "group_key",
    ]
    assert written["dismissed"][0].keys() == {"name", "cause"}
    member = json.loads(write_member(Member("a", "10.0.0.1")))
    assert list(member) == (
        [
            "name",
            "host",
            "ports",
            "given_rank",
            "serves",
            "machine",
            "terms",
            "ignores",
            "returned",
            "restarts",
            "used",
            "former_rank",
            "news",
        ]
    )
    assert list(member["news"]) == [
        "stopped",
        "ready",
        "done",
        "failed",
        "cause",
        "leaving",
        "answered",
        "unable",
    ]
