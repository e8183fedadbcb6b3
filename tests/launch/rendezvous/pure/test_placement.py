"""Which nodes take part, their ranks, and who is missing."""

from __future__ import annotations

import pytest

from rankspawn.launch.rendezvous.job_state import JobState, JobTerms, Member
from rankspawn.launch.rendezvous.placement import (
    assign_ranks,
    choose_members,
    describe_missing,
    eligible_members,
    find_objections,
    find_twins,
    find_unreachable,
)


def node(name: str, order: int = 0, **facts: object) -> Member:
    host = str(facts.pop("host", f"10.0.0.{order + 1}"))
    return Member(name, host, order=order, **facts)  # type: ignore[arg-type]


class TestRanks:
    def test_by_arrival(self) -> None:
        assert assign_ranks([node("a", 1), node("b", 2)], ()) == ("a", "b")

    def test_node_0_is_the_masters_node(self) -> None:
        assert assign_ranks([node("a", 1), node("b", 2, serves=True)], ()) == ("b", "a")

    def test_given_ones_are_honoured(self) -> None:
        nodes = [node("a", 1), node("b", 2, given_rank=0), node("c", 3, given_rank=1)]
        assert assign_ranks(nodes, ()) == ("b", "c", "a")

    def test_who_had_one_keeps_it(self) -> None:
        nodes = [node("new", 0), node("c", 3), node("a", 1)]
        assert assign_ranks(nodes, ("a", "b", "c")) == ("a", "new", "c")

    def test_who_comes_back_under_another_name_keeps_it(self) -> None:
        nodes = [node("x", 0), node("y", 1, former_rank=2), node("z", 2, former_rank=0)]
        assert assign_ranks(nodes, ()) == ("z", "x", "y")
        assert assign_ranks(nodes, ("x", "b", "c")) == ("x", "z", "y"), "who stayed comes first"

    def test_a_given_one_that_is_too_high_now_still_decides_the_order(self) -> None:
        nodes = [node("a", 1, given_rank=3), node("b", 2, given_rank=2)]
        assert assign_ranks(nodes, ()) == ("b", "a")

    def test_a_given_one_comes_before_a_former_one(self) -> None:
        nodes = [node("a", 1), node("new", 2, given_rank=0)]
        assert assign_ranks(nodes, ("a", "b")) == ("new", "a")


def test_the_masters_node_and_former_ones_are_chosen_first() -> None:
    nodes = [node("new", 1), node("old", 2), node("server", 3, serves=True)]
    chosen = choose_members(nodes, ("old",), 2)
    assert {member.name for member in chosen} == {"server", "old"}


class TestObjections:
    def texts(self, state: JobState, *members: Member) -> dict[str, str]:
        return {refusal.name: refusal.cause.text for refusal in find_objections(state, members)}

    def test_other_flags(self) -> None:
        state = JobState("run", JobTerms(2, 2))
        texts = self.texts(state, node("a", flags=JobTerms(2, 2).flags), node("b", flags="--other"))
        assert list(texts) == ["b"]
        assert "--other" in texts["b"]
        assert "--nnodes 2" in texts["b"]

    @pytest.mark.parametrize(
        ("other", "words"),
        [
            (
                JobTerms(2, 2, elastic_level=1),
                "--elastic_level 1, but the job has --elastic_level -1",
            ),
            (
                JobTerms(2, 2, roles="--run_mode ps --server_num 1"),
                "ps --server_num 1, but the job",
            ),
        ],
    )
    def test_only_flags_that_differ_are_named(self, other: JobTerms, words: str) -> None:
        text = self.texts(JobState("run", JobTerms(2, 2)), node("a", flags=other.flags))["a"]
        assert words in text
        assert "--max_restart" not in text

    def test_a_rank_beyond_the_job(self) -> None:
        texts = self.texts(JobState("run", JobTerms(2, 2)), node("a", given_rank=2))
        assert "--rank 2" in texts["a"]

    def test_the_masters_node_with_another_rank(self) -> None:
        texts = self.texts(JobState("run", JobTerms(2, 2)), node("a", serves=True, given_rank=1))
        assert "node 0 is the master's node" in texts["a"]

    def test_rank_0_for_another_node_than_the_masters(self) -> None:
        members = [node("a", serves=True), node("b", 1, given_rank=0)]
        assert list(self.texts(JobState("run", JobTerms(2, 2)), *members)) == ["b"]

    def test_none_about_the_group(self) -> None:
        state = JobState("run", JobTerms(2, 2), generation=1, group=("a",))
        assert not self.texts(state, node("a", flags="--other"))

    @pytest.mark.parametrize("late", ["10.0.0.9", "127.0.0.1"])
    def test_a_late_node_that_cannot_be_reached_or_reach(self, late: str) -> None:
        host = "127.0.0.1" if late != "127.0.0.1" else "10.0.0.1"
        state = JobState("run", JobTerms(1, 3), generation=1, group=("a",))
        members = [node("a", host=host, machine="A"), node("b", 1, host=late, machine="B")]
        assert list(self.texts(state, *members)) == ["b"]


class TestUnreachable:
    def test_loopback_is_fine_on_one_machine(self) -> None:
        members = [node(name, host="127.0.0.1", machine="A") for name in "abc"]
        assert find_unreachable(members) is None

    def test_loopback_beside_another_machine(self) -> None:
        members = [node("a", host="10.0.0.1", machine="A"), node("b", host="::1", machine="B")]
        found = find_unreachable(members)
        assert found is not None
        assert found[0].name == "b"


def test_twins_are_named_with_the_one_that_was_first() -> None:
    state = JobState("run", JobTerms(2, 2), generation=1, group=("late",))
    members = [node("early", 1, given_rank=1), node("late", 2, given_rank=1)]
    assert [(twin.name, first.name) for twin, first in find_twins(state, members)] == [
        ("early", "late")  # the one in the group stays
    ]
    assert [
        member.name
        for member in eligible_members(state, {member.name: member for member in members})
    ] == ["late"]


class TestMissing:
    def test_by_address(self) -> None:
        terms = JobTerms(3, 3, expected=("10.0.0.1", "10.0.0.2", "10.0.0.3"))
        assert describe_missing(terms, [node("a", 0)], 3) == "10.0.0.2, 10.0.0.3"

    def test_by_rank(self) -> None:
        present = [node("a", serves=True), node("b", 1, given_rank=2)]
        assert describe_missing(JobTerms(4, 4), present, 4) == "rank 1, 3"

    def test_by_number(self) -> None:
        assert describe_missing(JobTerms(3, 3), [node("a")], 3) == "2 more nodes"
        assert describe_missing(JobTerms(2, 2), [node("a")], 2) == "1 more node"

    def test_of_a_thousand_only_some_are_listed(self) -> None:
        terms = JobTerms(1000, 1000, expected=tuple(f"host{index}" for index in range(1000)))
        text = describe_missing(terms, [], 1000)
        assert text.endswith("and 992 more")
