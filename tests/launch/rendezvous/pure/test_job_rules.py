"""The rules of membership, one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankspawn.launch.backoff import LASTING
from rankspawn.launch.rendezvous.job_rules import NextState, Observed, next_state
from rankspawn.launch.rendezvous.job_state import JobState, JobTerms, Member, NodeReport, Phase
from rankspawn.launch.session import Cause

FIXED = JobTerms(2, 2)
ELASTIC = JobTerms(2, 4)
FAILURE = Cause("failed", "rank 1 on 10.0.0.2\nValueError: no", 7)


class Job:
    """A job that a test leads through its life, with a clock of its own."""

    def __init__(self, terms: JobTerms) -> None:
        self.terms = terms
        self.state: JobState | None = None
        self.members: dict[str, Member] = {}
        self.observed = Observed()
        self.now = 0.0
        self.order = 0
        self.silent: set[str] = set()
        self.last = NextState(self.observed)

    def join(self, *names: str, **facts: object) -> Job:
        for name in names:
            self.order += 1
            host = f"10.0.0.{self.order}"
            member = Member(name, host, order=self.order, updated=self.order)
            self.members[name] = replace(member, **facts)  # type: ignore[arg-type]
        return self.settle()

    def report(self, name: str, **report: object) -> Job:
        self.order += 1
        member = self.members[name]
        said = replace(member.report, **report)  # type: ignore[arg-type]
        self.members[name] = replace(member, report=said, updated=self.order)
        return self.settle()

    def vanish(self, *names: str) -> Job:
        for name in names:
            del self.members[name]
        return self.settle()

    def all_stop(self) -> Job:
        for name in self.members:
            self.report(name, stopped=self.job.generation)
        return self

    def answer(self) -> Job:
        for name in self.members:
            self.report(name, answered=True)
        return self

    def wait(self, seconds: float) -> Job:
        self.now += seconds
        return self.settle()

    def settle(self) -> Job:
        """Look until nothing changes any more; who is called answers at once."""
        for _ in range(20):
            if self.state is not None and self.state.calling:
                self._answer_call(self.state.generation + 1)
            self.last = next_state(
                self.state,
                self.members,
                self.observed,
                self.now,
                terms=self.terms,
                run_id=f"run{self.order}",
            )
            self.observed = self.last.observed
            if self.last.state is None:
                return self
            self.state = self.last.state
        raise AssertionError(f"never at rest: {self.state}")

    def _answer_call(self, generation: int) -> None:
        for name, member in self.members.items():
            if name not in self.silent:
                report = replace(member.report, ready=generation)
                self.members[name] = replace(member, report=report)

    def phase(self) -> Phase:
        return self.job.phase

    @property
    def job(self) -> JobState:
        assert self.state is not None
        return self.state


def running(terms: JobTerms, *names: str) -> Job:
    job = Job(terms).join(*names)
    if job.phase() is Phase.GATHERING:
        job.wait(terms.elastic_timeout)
    assert job.phase() is Phase.RUNNING
    return job


class TestStart:
    def test_a_fixed_job_starts_when_all_are_there(self) -> None:
        job = Job(FIXED).join("a")
        assert job.phase() is Phase.GATHERING
        assert "missing: 1 more node" in job.last.waiting
        assert job.wait(FIXED.join_timeout - 1).phase() is Phase.GATHERING

        job.join("b")

        assert job.phase() is Phase.RUNNING
        assert (job.job.generation, job.job.group, job.job.restarts) == (1, ("a", "b"), 0)

    def test_an_elastic_job_starts_at_once_with_the_most(self) -> None:
        assert Job(ELASTIC).join("a", "b", "c", "d").job.group == ("a", "b", "c", "d")

    def test_an_elastic_job_starts_after_its_timeout_with_the_fewest(self) -> None:
        job = Job(ELASTIC).join("a", "b")
        assert job.last.wake_at == ELASTIC.elastic_timeout
        assert job.wait(29.9).phase() is Phase.GATHERING
        assert job.wait(0.2).job.group == ("a", "b")

    def test_an_elastic_job_does_not_start_with_fewer(self) -> None:
        assert Job(ELASTIC).join("a").wait(599).phase() is Phase.GATHERING

    def test_who_never_comes_is_not_waited_for_for_ever(self) -> None:
        terms = JobTerms(3, 3, join_timeout=60.0)
        job = Job(terms).join("a", given_rank=0).join("b", given_rank=2).wait(59)
        assert "missing: rank 1; giving up after 60 s" in job.last.waiting
        job.wait(1).answer()
        assert job.phase() is Phase.ENDED
        assert job.job.result.text == (
            "2 of at least 3 nodes came within 60 s (10.0.0.1, 10.0.0.2), missing: rank 1; "
            "see --join_timeout"
        )

    def test_loopback_on_two_machines_ends_it_with_the_reason(self) -> None:
        job = Job(FIXED).join("a", host="127.0.0.1", machine="A").join("b", machine="B")
        job.answer()
        assert job.phase() is Phase.ENDED
        assert "127.0.0.1" in job.job.result.text

    def test_a_young_store_waits_for_nodes_that_came_back(self) -> None:
        """One that is cut off may still run workers from before the store was lost."""
        job = Job(FIXED).join("a", returned=True).join("b")
        assert job.phase() is Phase.GATHERING
        assert job.wait(FIXED.lease_seconds).phase() is Phase.RUNNING

    def test_a_dead_node_whose_lease_has_not_ended_is_not_counted(self) -> None:
        job = Job(FIXED)
        job.silent.add("killed")
        job.join("a", "killed")
        assert job.phase() is Phase.GATHERING
        job.wait(2)
        assert "node killed (10.0.0.2) seems to be there, but does not answer" in job.last.waiting
        assert job.join("b").job.group == ("a", "b")

    def test_an_elastic_job_goes_on_without_those_who_do_not_answer(self) -> None:
        job = Job(ELASTIC)
        job.silent.add("d")
        job.join("a", "b", "c", "d")
        assert job.phase() is Phase.GATHERING
        job.wait(ELASTIC.lease_seconds)
        assert job.phase() is Phase.GATHERING, "a dead one's lease would have ended by now"
        assert job.wait(ELASTIC.lease_seconds).job.group == ("a", "b", "c")


class TestEnd:
    def test_success_when_all_are_done(self) -> None:
        job = running(FIXED, "a", "b").report("a", done=1, stopped=1)
        assert job.phase() is Phase.RUNNING
        job.report("b", done=1, stopped=1)
        assert job.phase() is Phase.ENDED
        assert job.job.result.succeeded

    def test_a_node_that_goes_after_its_work_is_no_loss(self) -> None:
        job = running(FIXED, "a", "b").report("a", done=1, stopped=1).vanish("a")
        job.report("b", done=1, stopped=1)
        assert job.job.result.succeeded

    def test_a_failed_worker_ends_it_with_its_words_and_code(self) -> None:
        job = running(FIXED, "a", "b").report("b", failed=1, cause=FAILURE)
        assert job.phase() is Phase.ENDING
        job.answer()
        assert job.phase() is Phase.ENDED
        assert job.job.result.exit_code == 7
        assert job.job.result.text == FAILURE.text

    def test_the_first_of_two_failures_is_the_cause(self) -> None:
        job = running(FIXED, "a", "b")
        later = Cause("failed", "connection reset", 1)
        # Both are seen in one look; the store heard of b's first.
        job.members["a"] = replace(
            job.members["a"], updated=9, report=NodeReport(failed=1, cause=later, answered=True)
        )
        job.members["b"] = replace(
            job.members["b"], updated=8, report=NodeReport(failed=1, cause=FAILURE, answered=True)
        )
        job.settle()
        assert job.job.result.exit_code == 7
        assert job.job.result.text.endswith(FAILURE.text)
        assert "connection reset" in job.job.result.text

    def test_a_vanished_node_ends_a_fixed_job(self) -> None:
        job = running(FIXED, "a", "b").vanish("b").answer()
        assert job.phase() is Phase.ENDED
        assert "node 1 (10.0.0.2, b) vanished" in job.job.result.text

    def test_a_silent_node_is_named_beside_the_failure_it_may_have_caused(self) -> None:
        job = running(FIXED, "a", "b").report("a", failed=1, cause=FAILURE, answered=True)
        assert job.phase() is Phase.ENDING
        job.wait(FIXED.answer_seconds)
        assert job.phase() is Phase.ENDING, "its lease will tell whether it caused the failure"
        job.wait(FIXED.lease_seconds)
        assert job.phase() is Phase.ENDED
        assert "node 1 (10.0.0.2, b) does not answer" in job.job.result.text
        assert job.job.result.exit_code == 7

    def test_a_node_that_died_before_the_failure_is_the_cause_of_it(self) -> None:
        job = running(FIXED, "a", "b").report("a", failed=1, cause=FAILURE, answered=True)
        job.vanish("b")
        assert job.phase() is Phase.ENDED
        assert [cause.kind for cause in job.job.causes] == ["vanished", "failed"]
        assert job.job.result.text.endswith("no sign of life for 10 s")

    def test_a_node_that_told_its_failure_before_it_died_stays_the_cause(self) -> None:
        job = running(FIXED, "a", "b").report("a", failed=1, cause=FAILURE, answered=True)
        job.vanish("a").answer()
        assert [cause.kind for cause in job.job.causes] == ["failed"]

    def test_servers_of_a_node_that_is_done_are_still_needed(self) -> None:
        job = running(FIXED, "a", "b").report("a", done=1)
        job.vanish("a").answer()
        assert [cause.kind for cause in job.job.causes] == ["vanished"]

    def test_a_node_on_which_nothing_runs_is_not_needed_any_more(self) -> None:
        job = running(FIXED, "a", "b").report("a", done=1, stopped=1)
        assert job.vanish("a").phase() is Phase.RUNNING
        assert job.report("b", done=1, stopped=1).job.result.succeeded

    def test_a_node_that_leaves_ends_a_fixed_job(self) -> None:
        job = running(FIXED, "a", "b").report("b", leaving=Cause("left", "Ctrl-C", 130)).answer()
        assert job.job.result.exit_code == 130

    def test_the_masters_node_that_leaves_ends_even_an_elastic_job(self) -> None:
        job = Job(ELASTIC).join("a", serves=True).join("b", "c", "d")
        job.report("a", leaving=Cause("left", "Ctrl-C", 130)).answer()
        assert job.phase() is Phase.ENDED
        assert job.job.result.exit_code == 130

    def test_newcomers_begin_anew_after_the_end(self) -> None:
        job = running(FIXED, "a", "b").report("a", done=1).report("b", done=1)
        ended = job.job
        job.join("c", ignores=ended.run_id)
        assert job.job is ended, "somebody may not know the end yet"
        job.vanish("a", "b")
        assert job.phase() is Phase.GATHERING
        assert job.job.run_id != ended.run_id
        assert job.job.generation == 1, "generations only ever grow"
        assert job.join("d").job.generation == 2

    def test_newcomers_begin_anew_where_everybody_died(self) -> None:
        job = running(FIXED, "a", "b")
        old = job.job
        del job.members["a"], job.members["b"]
        job.join("c")
        assert job.job.run_id != old.run_id
        assert job.job.restarts == 0

    def test_newcomers_begin_anew_where_all_but_one_lease_has_ended(self) -> None:
        job = running(FIXED, "a", "b").join("c").vanish("a").vanish("b")
        assert job.phase() is Phase.GATHERING
        assert job.join("d").job.group == ("c", "d")


class TestNodesThatCannotTakePart:
    """Before the job has begun; later they are sent away."""

    UNABLE = NodeReport(unable=Cause("unable", "there is no script train.py", 127))

    def test_end_the_job_with_their_reason_once_all_have_come(self) -> None:
        job = Job(JobTerms(3, 3)).join("a").join("b", report=self.UNABLE)
        assert job.phase() is Phase.GATHERING, "the third would wait for a job that is gone"
        assert job.last.waiting.startswith("there is no script train.py; 1 of 3 nodes are here")
        job.join("c").answer()
        assert job.phase() is Phase.ENDED
        assert job.job.result.text == "there is no script train.py"
        assert job.job.result.exit_code == 127

    def test_end_it_also_if_they_are_gone_and_others_never_come(self) -> None:
        job = Job(JobTerms(3, 3)).join("a").join("b", report=self.UNABLE).vanish("b")
        job.wait(29).join("c")
        assert job.phase() is Phase.GATHERING
        assert job.wait(1).answer().job.result.exit_code == 127

    def test_are_not_needed_if_enough_others_come(self) -> None:
        job = Job(JobTerms(2, 2)).join("a").join("b", report=self.UNABLE)
        assert job.phase() is Phase.ENDING
        job = Job(JobTerms(1, 3)).join("a").join("b", report=self.UNABLE).wait(30)
        assert job.job.group == ("a",)
        assert job.job.refused[0].cause.exit_code == 127

    def test_a_better_one_can_take_their_place_for_a_while(self) -> None:
        job = Job(JobTerms(3, 3)).join("a").join("b", report=self.UNABLE).vanish("b")
        job.join("b2", "c")
        assert job.job.group == ("a", "b2", "c")

    def test_with_other_flags_are_such_nodes(self) -> None:
        job = Job(FIXED).join("a", flags=FIXED.flags).join("b", flags=JobTerms(3, 3).flags)
        assert "--nnodes 3, but the job has --nnodes 2" in job.answer().job.result.text
        assert job.phase() is Phase.ENDED

    def test_do_not_disturb_a_job_that_runs(self) -> None:
        job = running(ELASTIC, "a", "b", "c").join("d", report=self.UNABLE).wait(100)
        assert job.phase() is Phase.RUNNING
        assert job.job.refused[0].name == "d"


class TestRegroup:
    def test_waits_for_the_workers_of_all_to_end(self) -> None:
        job = running(ELASTIC, "a", "b", "c").vanish("c")
        assert job.phase() is Phase.GATHERING
        job.report("a", stopped=1).wait(10_000)
        assert job.phase() is Phase.GATHERING
        assert "waiting for the workers of node 1 (10.0.0.2, b)" in job.last.waiting
        job.report("b", stopped=1)
        job.wait(ELASTIC.settle_seconds)
        assert (job.phase(), job.job.generation, job.job.group) == (Phase.RUNNING, 2, ("a", "b"))
        assert job.job.restarts == 1

    def test_or_for_their_leases(self) -> None:
        job = running(ELASTIC, "a", "b", "c", "d").vanish("d").report("a", stopped=1)
        job.report("b", stopped=1).vanish("c").wait(ELASTIC.settle_seconds)
        assert job.job.group == ("a", "b")

    def test_newcomers_of_one_moment_are_one_regroup(self) -> None:
        job = running(ELASTIC, "a", "b").join("c")
        assert job.phase() is Phase.RUNNING
        job.wait(ELASTIC.settle_seconds / 2).join("d")
        assert job.phase() is Phase.GATHERING
        assert "joined" in job.job.because
        assert job.all_stop().job.group == ("a", "b", "c", "d")
        assert job.job.restarts == 1

    def test_a_surplus_node_waits(self) -> None:
        job = running(ELASTIC, "a", "b", "c", "d").join("e").wait(100)
        assert job.phase() is Phase.RUNNING
        assert not job.job.refused

    def test_a_surplus_node_takes_the_place_of_a_lost_one(self) -> None:
        job = running(ELASTIC, "a", "b", "c", "d").join("e").vanish("b").all_stop()
        assert job.job.group == ("a", "e", "c", "d")

    def test_newcomers_and_leavers_use_up_no_restarts(self) -> None:
        job = running(JobTerms(1, 2, max_restart=0), "a").join("b").all_stop()
        assert (job.phase(), job.job.group) == (Phase.RUNNING, ("a", "b"))
        job.report("b", leaving=Cause("left", "preempted", 143), stopped=2).vanish("b")
        job.report("a", stopped=2).wait(ELASTIC.settle_seconds)
        assert (job.phase(), job.job.group) == (Phase.RUNNING, ("a",))
        assert (job.job.restarts, job.job.used) == (2, 0), "scripts are told of every start"

    def test_lost_nodes_use_them_up(self) -> None:
        job = running(JobTerms(1, 2, max_restart=0), "a", "b").vanish("b").answer()
        assert job.phase() is Phase.ENDED
        assert "0 of 0 restarts are used up" in job.job.result.text

    def test_a_newcomer_does_not_take_up_again_what_is_nearly_done(self) -> None:
        job = running(ELASTIC, "a", "b").report("a", done=1, stopped=1).join("c").wait(100)
        assert job.phase() is Phase.RUNNING

    def test_too_many_end_the_job_with_the_last_cause(self) -> None:
        job = running(JobTerms(2, 2, max_restart=1, elastic_level=1), "a", "b")
        job.report("a", failed=1, cause=FAILURE).all_stop()
        assert (job.phase(), job.job.restarts) == (Phase.RUNNING, 1)
        job.report("a", failed=2, cause=replace(FAILURE, exit_code=8)).all_stop().answer()
        assert job.phase() is Phase.ENDED
        assert job.job.result.exit_code == 8
        assert "1 of 1 restarts" in job.job.result.text

    def test_too_few_nodes_hold_for_a_replacement(self) -> None:
        job = running(ELASTIC, "a", "b", "c", "d").vanish("b", "c", "d").report("a", stopped=1)
        job.wait(ELASTIC.elastic_timeout / 2)
        assert job.phase() is Phase.GATHERING
        assert "giving up after 30 s" in job.last.waiting
        assert job.join("e").wait(ELASTIC.settle_seconds).job.group == ("a", "e")

    def test_too_few_nodes_give_up_at_last(self) -> None:
        job = running(ELASTIC, "a", "b", "c").vanish("b", "c").report("a", stopped=1)
        job.wait(ELASTIC.elastic_timeout).answer()
        assert job.phase() is Phase.ENDED
        assert "vanished" in job.job.causes[0].text

    def test_a_store_that_forgot_everything_is_told_by_the_nodes(self) -> None:
        job = Job(JobTerms(2, 2, elastic_level=1, max_restart=3))
        job.join("b", returned=True, restarts=3, used=2, former_rank=1)
        job.join("a", returned=True, restarts=3, used=2, former_rank=0).wait(10)
        assert (job.job.group, job.job.restarts, job.job.used) == (("a", "b"), 4, 2)

    def test_so_is_one_that_has_seen_all_of_them_go(self) -> None:
        job = running(JobTerms(2, 2, elastic_level=1), "a", "b")
        del job.members["a"], job.members["b"]
        job.join("b2", returned=True, restarts=0, former_rank=1)
        job.join("a2", returned=True, restarts=0, former_rank=0).wait(10)
        assert (job.job.group, job.job.restarts) == (("a2", "b2"), 1)

    def test_a_fixed_job_of_level_1_takes_a_lost_node_back(self) -> None:
        job = running(JobTerms(2, 2, elastic_level=1), "a", "b").vanish("b").report("a", stopped=1)
        assert job.phase() is Phase.GATHERING
        assert job.join("b2").job.group == ("a", "b2")


class TestLevels:
    def test_0_sends_the_failed_node_away_and_holds(self) -> None:
        job = running(JobTerms(2, 3, elastic_level=0), "a", "b", "c")
        job.report("b", failed=1, cause=FAILURE)
        assert job.phase() is Phase.GATHERING
        job.all_stop()
        assert [refusal.name for refusal in job.job.refused] == ["b"]
        assert job.job.refused[0].cause.exit_code == 7
        job.vanish("b").wait(10)
        assert job.phase() is Phase.GATHERING, "the others hold for a replacement"
        assert job.join("d").job.group == ("a", "d", "c")

    def test_0_goes_on_without_a_replacement_if_enough_are_left(self) -> None:
        job = running(JobTerms(2, 3, elastic_level=0), "a", "b", "c")
        job.report("b", failed=1, cause=FAILURE).all_stop().vanish("b").wait(30)
        assert job.job.group == ("a", "c")

    def test_0_blames_nobody_for_the_death_of_another(self) -> None:
        """When a node dies, the workers of others fail because they lose their peers."""
        job = running(JobTerms(2, 3, elastic_level=0), "a", "b", "c")
        job.report("a", failed=1, cause=Cause("failed", "connection reset")).report("a", stopped=1)
        job.report("b", stopped=1).vanish("c").wait(30)
        assert not job.job.refused
        assert job.job.group == ("a", "b")

    def test_1_restarts_all_at_once(self) -> None:
        job = running(JobTerms(2, 2, elastic_level=1), "a", "b")
        job.report("b", failed=1, cause=FAILURE)
        assert job.job.because == "ValueError: no"
        job.all_stop()
        assert (job.phase(), job.job.generation) == (Phase.RUNNING, 2)


class TestPauses:
    """Restarts after failures come later and later, on all nodes at the same time."""

    def fail(self, job: Job, lasting: float = 0.0) -> None:
        job.wait(lasting)
        job.report("b", failed=job.job.generation, cause=FAILURE).all_stop()

    def test_grow_as_long_as_no_try_lasts(self) -> None:
        job = running(replace(FIXED, elastic_level=1, max_restart=99), "a", "b")
        self.fail(job)
        assert job.phase() is Phase.RUNNING
        for pause in (0.5, 1.0, 2.0):
            self.fail(job)
            assert job.last.waiting == f"ValueError: no; the next start is in {pause:g} s"
            assert job.last.wake_at == job.now + pause
            assert job.wait(pause - 0.01).phase() is Phase.GATHERING
            assert job.wait(0.01).phase() is Phase.RUNNING
        self.fail(job, LASTING)
        assert job.phase() is Phase.RUNNING
        self.fail(job)
        assert job.wait(0.49).phase() is Phase.GATHERING
        assert job.wait(0.01).phase() is Phase.RUNNING

    def test_are_carried_on_by_another_leading_node(self) -> None:
        job = running(replace(FIXED, elastic_level=1, max_restart=99), "a", "b")
        self.fail(job)
        job.observed = Observed()
        self.fail(job.settle())
        assert job.phase() is Phase.GATHERING
        job.observed = Observed()
        assert job.wait(0.0).last.wake_at == job.now + 0.5

    def test_are_for_failures_alone(self) -> None:
        job = running(replace(ELASTIC, elastic_level=1, max_restart=99), "a", "b", "c", "d")
        self.fail(job)
        job.report("d", leaving=Cause("left", "preempted", 143)).all_stop().vanish("d")
        job.wait(ELASTIC.settle_seconds)
        assert set(job.job.group) == {"a", "b", "c"}
        job.join("e").all_stop()
        assert set(job.job.group) == {"a", "b", "c", "e"}
        # Victims of a lost node waited for long enough.
        job.report("b", failed=job.job.generation, cause=FAILURE).vanish("e").all_stop()
        job.wait(ELASTIC.settle_seconds)
        assert set(job.job.group) == {"a", "b", "c"}
        self.fail(job)
        assert job.last.wake_at == job.now + 0.5


class TestVictims:
    """When a node dies, workers of the others fail seconds before its lease ends."""

    RESET = Cause("failed", "connection reset by peer", 1)

    @pytest.mark.parametrize("level", [-1, 0, 1])
    def test_of_a_lost_node_regroup_at_every_level(self, level: int) -> None:
        job = running(JobTerms(1, 3, elastic_level=level, max_restart=1), "a", "b", "c")
        job.report("a", failed=1, cause=self.RESET, stopped=1)
        job.report("b", failed=1, cause=self.RESET, stopped=1).wait(ELASTIC.lease_seconds - 1)
        assert job.phase() is Phase.GATHERING
        job.vanish("c").wait(ELASTIC.settle_seconds)
        assert (job.phase(), job.job.group) == (Phase.RUNNING, ("a", "b"))
        assert (job.job.restarts, job.job.used) == (1, 1)

    @pytest.mark.parametrize("level", [-1, 0, 1])
    def test_of_a_node_that_leaves_use_up_no_restart(self, level: int) -> None:
        job = running(JobTerms(1, 2, elastic_level=level, max_restart=0), "a", "b")
        job.report("a", failed=1, cause=self.RESET, stopped=1)
        # Told later, because its scheduler came to its workers first.
        job.report("b", leaving=Cause("left", "preempted", 143), stopped=1).vanish("b")
        job.wait(ELASTIC.settle_seconds)
        assert (job.phase(), job.job.group, job.job.used) == (Phase.RUNNING, ("a",), 0)

    def test_a_failure_without_a_lost_node_ends_the_job_once_all_have_answered(self) -> None:
        job = running(JobTerms(1, 2), "a", "b").report("b", failed=1, cause=FAILURE, stopped=1)
        assert job.phase() is Phase.GATHERING
        job.report("a", stopped=1)
        assert job.phase() is Phase.ENDING
        assert job.answer().job.result.text == FAILURE.text
        assert job.job.result.exit_code == 7

    def test_a_node_that_goes_after_its_work_has_no_victims(self) -> None:
        job = running(JobTerms(1, 2), "a", "b").report("b", done=1, stopped=1).vanish("b")
        job.report("a", failed=1, cause=FAILURE, stopped=1).answer()
        assert job.phase() is Phase.ENDED
        assert job.job.result.exit_code == 7


class TestDismissals:
    def test_a_late_node_of_a_fixed_job(self) -> None:
        job = running(FIXED, "a", "b")
        job.silent.add("b")
        job.join("c")
        assert not job.job.refused, "the others may be dead, and this the next run's first"
        job.wait(2 * FIXED.lease_seconds)
        assert "came too late" in job.job.refused[0].cause.text
        assert not job.vanish("c").job.refused, "forgotten once it is gone"

    def test_at_once_if_all_of_the_job_are_alive(self) -> None:
        """The same job was started twice."""
        job = running(FIXED, "a", "b").join("a2", given_rank=0)
        assert "came too late: all 2 nodes of the job are there" in job.job.refused[0].cause.text
        assert job.phase() is Phase.RUNNING
        assert not job.job.calling

    def test_two_nodes_with_one_rank_after_longer_than_a_lease(self) -> None:
        job = Job(JobTerms(3, 3)).join("a", given_rank=1).join("b", given_rank=1)
        assert not job.job.refused, "one of them may be the other's dead former self"
        job.wait(2 * FIXED.lease_seconds)
        assert "both given --rank 1" in job.job.refused[0].cause.text
        assert job.job.refused[0].name == "b"

    def test_not_the_second_life_of_a_killed_node_with_its_rank(self) -> None:
        job = Job(JobTerms(3, 3)).join("a", given_rank=1)
        job.silent.add("a")
        job.join("a2", given_rank=1).join("c", "d")
        assert job.phase() is Phase.GATHERING
        job.wait(FIXED.lease_seconds).vanish("a")
        assert job.phase() is Phase.RUNNING
        assert job.job.rank_of("a2") == 1


@pytest.mark.parametrize("terms", [FIXED, ELASTIC])
def test_a_new_leader_forgets_nothing_that_matters(terms: JobTerms) -> None:
    job = running(terms, *"abcd"[: terms.max_nodes])
    for name in list(job.members):
        job.observed = Observed()
        job.report(name, done=1, stopped=1)
    assert job.job.result.succeeded
    assert job.phase() is Phase.ENDED
