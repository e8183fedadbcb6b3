"""What one node does about the state of its job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankspawn.launch.rendezvous import participant
from rankspawn.launch.rendezvous.job_state import JobState, JobTerms, Phase, Refusal
from rankspawn.launch.rendezvous.participant import (
    AskedToLeave,
    Event,
    LeaseEnded,
    LeaseHeld,
    NodeState,
    Over,
    Rejoin,
    Saw,
    Start,
    Step,
    Stop,
    Tick,
    WorkerFailed,
    WorkersDone,
    WorkersStopped,
)
from rankspawn.launch.session import Cause, JobResult

FAILURE = Cause("failed", "ValueError: no", 7)
FIXED = JobTerms(2, 2)
ELASTIC = JobTerms(1, 2)
RUNNING = JobState("run", FIXED, Phase.RUNNING, generation=1, group=("other", "me"))


class Node:
    """One node's side, with a clock at 0 and a lease that is good up to 10."""

    def __init__(self, terms: JobTerms = FIXED, ignores: str = "") -> None:
        self.node_state = NodeState("me", terms, ignores=ignores, safe_until=10.0)

    def feed(self, event: Event, now: float = 0.0) -> list[Step]:
        self.node_state, steps = participant.react(self.node_state, event, now)
        return list(steps)


@pytest.fixture
def running() -> Node:
    node = Node()
    assert node.feed(Saw(RUNNING)) == [Start(1)]
    return node


def gathering(state: JobState, because: str = "a node left") -> JobState:
    return replace(state, phase=Phase.GATHERING, because=because)


class TestStart:
    def test_once(self, running: Node) -> None:
        assert running.feed(Saw(RUNNING)) == []

    def test_not_a_generation_of_others(self) -> None:
        assert Node().feed(Saw(replace(RUNNING, group=("other", "another")))) == []

    def test_not_again_what_was_stopped(self, running: Node) -> None:
        running.feed(Saw(gathering(RUNNING)))
        running.feed(WorkersStopped(1))
        assert running.node_state.report.stopped == 1
        assert running.feed(Saw(RUNNING)) == []
        assert running.feed(Saw(replace(RUNNING, generation=2))) == [Start(2)]

    def test_not_what_was_stopped_before_it_began(self) -> None:
        node = Node()
        node.feed(Saw(gathering(RUNNING)))
        assert node.node_state.report.stopped == 1
        assert node.feed(Saw(RUNNING)) == []

    def test_not_when_the_lease_may_have_ended(self) -> None:
        assert node_fenced_decisions(Node(ELASTIC), Saw(RUNNING)) == [Rejoin()]

    def test_not_while_leaving(self) -> None:
        node = Node()
        node.feed(AskedToLeave(Cause("left", "Ctrl-C", 130)))
        assert node.feed(Saw(RUNNING)) == []


def node_fenced_decisions(node: Node, event: Event) -> list[Step]:
    return node.feed(event, now=10.0)


class TestStop:
    def test_when_the_nodes_are_gathered(self, running: Node) -> None:
        assert running.feed(Saw(gathering(RUNNING))) == [Stop(1, "a node left")]
        assert running.feed(Saw(gathering(RUNNING))) == [], "once is enough"
        assert running.node_state.report.stopped == 0, "not before they are gone"

    def test_when_one_of_its_own_fails(self, running: Node) -> None:
        assert running.feed(WorkerFailed(1, FAILURE)) == [Stop(1, "a worker of this node failed")]
        assert (running.node_state.report.failed, running.node_state.report.cause) == (1, FAILURE)

    def test_and_those_that_fail_after_it_are_no_causes(self, running: Node) -> None:
        running.feed(Saw(gathering(RUNNING)))
        running.feed(WorkerFailed(1, FAILURE))
        assert running.node_state.report.failed == 0

    def test_when_the_job_ends_with_the_cause(self, running: Node) -> None:
        ending = replace(RUNNING, phase=Phase.ENDING, causes=(FAILURE,))
        assert running.feed(Saw(ending)) == [Stop(1, "ValueError: no")]
        assert running.node_state.report.answered

    def test_servers_when_all_is_done(self, running: Node) -> None:
        """A parameter server has no end of its own."""
        assert running.feed(WorkersDone(1, gone=False)) == []
        assert running.node_state.report.done == 1
        ended = replace(RUNNING, phase=Phase.ENDED)
        assert running.feed(Saw(ended)) == [Stop(1, "the job has ended", succeeded=True)]
        assert running.feed(WorkersStopped(1)) == []
        assert running.feed(Saw(ended)) == [Over(JobResult())]


class TestFence:
    @pytest.fixture
    def elastic(self) -> Node:
        node = Node(ELASTIC)
        assert node.feed(Saw(RUNNING)) == [Start(1)]
        return node

    def test_kills_at_once_and_only_once(self, elastic: Node) -> None:
        (stop,) = elastic.feed(Tick(), now=10.0)
        assert isinstance(stop, Stop)
        assert stop.at_once
        assert elastic.feed(Tick(), now=11.0) == []

    def test_also_what_is_being_stopped_gently(self, elastic: Node) -> None:
        elastic.feed(Saw(gathering(RUNNING)))
        (stop,) = elastic.feed(LeaseEnded())
        assert isinstance(stop, Stop)
        assert stop.at_once

    def test_leaves_workers_their_time_where_no_generation_follows(self, running: Node) -> None:
        (stop,) = running.feed(Tick(), now=10.0)
        assert isinstance(stop, Stop)
        assert not stop.at_once

    @pytest.mark.parametrize("terms", [FIXED, ELASTIC])
    def test_does_not_hurry_workers_of_a_job_that_ends(self, terms: JobTerms) -> None:
        node = Node(terms)
        node.feed(Saw(RUNNING))
        ending = replace(RUNNING, phase=Phase.ENDING, causes=(FAILURE,))
        assert len(node.feed(Saw(ending))) == 1
        assert node.feed(LeaseEnded()) == []
        assert node.feed(Tick(), now=11.0) == []

    def test_a_node_that_never_had_workers_looks_for_another_store_soon(self) -> None:
        node = Node()
        node.node_state = replace(node.node_state, spare=4.0)
        assert node.feed(Tick(), now=5.9) == []
        assert node.feed(Tick(), now=6.0) == [Rejoin()]

    def test_a_node_with_workers_waits_for_the_whole_time(self, running: Node) -> None:
        running.node_state = replace(running.node_state, spare=4.0)
        assert running.feed(Tick(), now=9.9) == []

    def test_cannot_be_undone(self, running: Node) -> None:
        running.feed(Tick(), now=10.0)
        running.feed(LeaseHeld(100.0), now=11.0)
        assert running.node_state.fenced

    def test_a_renewed_lease_comes_first(self, running: Node) -> None:
        assert running.feed(LeaseHeld(20.0), now=9.0) == []
        assert running.feed(Tick(), now=15.0) == []

    def test_ends_a_fixed_job_here(self, running: Node) -> None:
        running.feed(Tick(), now=10.0)
        (over,) = running.feed(WorkersStopped(1), now=10.5)
        assert isinstance(over, Over)
        assert over.result.causes[0].kind == "lost"

    def test_tells_a_failure_that_nobody_else_heard_of(self, running: Node) -> None:
        running.feed(WorkerFailed(1, FAILURE))
        running.feed(WorkersStopped(1))
        (over,) = running.feed(Tick(), now=10.0)
        assert isinstance(over, Over)
        # The worker has most likely failed because its peers were lost.
        assert [cause.kind for cause in over.result.causes] == ["lost", "failed"]

    def test_kills_workers_whose_end_is_no_failure(self) -> None:
        """A launcher that hung hears of it before it looks at the clock."""
        node = Node(ELASTIC)
        node.feed(Saw(RUNNING))
        (stop,) = node.feed(WorkerFailed(1, FAILURE), now=10.0)
        assert isinstance(stop, Stop)
        assert node.feed(WorkersStopped(1), now=10.5) == [Rejoin()]

    def test_a_failure_in_an_elastic_job_is_a_victim_of_the_loss(self) -> None:
        node = Node(ELASTIC)
        node.feed(Saw(RUNNING))
        node.feed(WorkerFailed(1, FAILURE))
        node.feed(WorkersStopped(1))
        assert node.feed(Tick(), now=10.0) == [Rejoin()]

    def test_has_a_node_of_an_elastic_job_come_back(self) -> None:
        node = Node(ELASTIC)
        node.feed(Saw(RUNNING))
        node.feed(Tick(), now=10.0)
        assert node.feed(WorkersStopped(1), now=10.5) == [Rejoin()]
        assert node.feed(Saw(RUNNING), now=11.0) == [], "under this name nothing happens any more"


class TestEnd:
    def test_waits_for_the_workers(self, running: Node) -> None:
        ended = replace(RUNNING, phase=Phase.ENDED, causes=(FAILURE,))
        assert running.feed(Saw(ended)) == [Stop(1, "ValueError: no")]
        running.feed(WorkersStopped(1))
        assert running.feed(Saw(ended)) == [Over(JobResult((FAILURE,)))]

    def test_of_an_earlier_run_is_none(self) -> None:
        node = Node(ignores="run")
        assert node.feed(Saw(replace(RUNNING, phase=Phase.ENDED, causes=(FAILURE,)))) == []

    def test_for_a_node_that_is_sent_away(self, running: Node) -> None:
        state = gathering(replace(RUNNING, refused=(Refusal("me", FAILURE),)))
        running.feed(Saw(state))
        running.feed(WorkersStopped(1))
        assert running.feed(Saw(state)) == [Over(JobResult((FAILURE,)))]

    def test_not_for_a_node_that_is_sent_away_before_the_others_know_why(self) -> None:
        node = Node()
        doomed = JobState("run", FIXED, causes=(FAILURE,), refused=(Refusal("me", FAILURE),))
        assert node.feed(Saw(doomed)) == []
        assert node.feed(Saw(replace(doomed, phase=Phase.ENDING))) == []
        ended = replace(doomed, phase=Phase.ENDED)
        assert node.feed(Saw(ended)) == [Over(JobResult((FAILURE,)))]

    def test_of_leaving_once_the_others_know(self, running: Node) -> None:
        cause = Cause("left", "Ctrl-C", 130)
        assert running.feed(AskedToLeave(cause)) == [Stop(1, "Ctrl-C")]
        running.feed(WorkersStopped(1))
        assert running.feed(Saw(RUNNING)) == []
        suspecting = replace(gathering(RUNNING), blamed="other")
        assert running.feed(Saw(suspecting)) == [], "it may be what the other's failure came of"
        assert running.feed(Saw(gathering(RUNNING))) == [Over(JobResult((cause,)))]


def test_a_call_is_answered_by_those_who_run(running: Node) -> None:
    assert running.feed(Saw(replace(RUNNING, calling=True))) == []
    assert running.node_state.report.ready == 2
    running.feed(Saw(RUNNING))
    assert running.node_state.report.ready == 1, "once for each call"


def test_a_call_is_answered_for_the_generation_to_come() -> None:
    node = Node()
    node.feed(Saw(replace(gathering(RUNNING), calling=True)))
    assert node.node_state.report.ready == 2
