"""From the reports of ranks to one report, without processes."""

from __future__ import annotations

from typing import Any

import pytest

from rankspawn.pytest_plugin.merged_report import merge_reports
from rankspawn.pytest_plugin.run_ranks import RankHistory, Run


def report(when: Any, outcome: Any = "passed", longrepr: Any = None) -> pytest.TestReport:
    return pytest.TestReport("t", ("t.py", 1, "t"), {}, outcome, longrepr, when)


def passed(rank: int) -> RankHistory:
    return RankHistory(rank, [report("setup"), report("call"), report("teardown")])


def skipped(rank: int) -> RankHistory:
    reason = ("t.py", 3, "Skipped: not today")
    return RankHistory(
        rank, [report("setup"), report("call", "skipped", reason), report("teardown")]
    )


def failed(rank: int, text: str = "assert 1 == 2", when: str = "call") -> RankHistory:
    return RankHistory(rank, [report(when, "failed", text)], AssertionError(text))


def test_all_passed() -> None:
    assert merge_reports(Run([passed(0), passed(1)])).exception is None


def test_all_skipped_is_skipped_with_the_reason() -> None:
    merged = merge_reports(Run([skipped(0), skipped(1)]))

    assert isinstance(merged.exception, pytest.skip.Exception)
    assert merged.longrepr == ("t.py", 3, "Skipped: not today")


def test_some_skipped_is_passed() -> None:
    assert merge_reports(Run([passed(0), skipped(1)])).exception is None


def test_the_first_failure_is_shown_and_the_others_are_told_of() -> None:
    first, second = failed(1), failed(0, "assert 3 == 4")
    merged = merge_reports(Run([second, first, passed(2)], [first, second]))

    assert merged.exception is first.exception
    assert merged.longrepr.startswith("rank 1 failed: assert 1 == 2")
    assert merged.longrepr.splitlines()[2:] == [
        "rank 0: failed too: assert 3 == 4",
        "rank 1: failed",
        "rank 2: passed",
        "---------- rank 0 failed in another way ----------",
        "assert 3 == 4",
    ]


def test_the_same_failure_of_another_rank_is_not_shown_twice() -> None:
    first, second = failed(1), failed(0)

    assert "another way" not in merge_reports(Run([second, first], [first, second])).longrepr


def test_a_failure_is_shown_also_after_a_rank_that_died() -> None:
    first, second = RankHistory(1, broken="Process 1 terminated with signal SIGSEGV"), failed(0)
    merged = merge_reports(Run([second, first], [first, second]))

    assert merged.longrepr.startswith("rank 1 failed: Process 1 terminated with signal SIGSEGV")
    assert merged.longrepr.endswith("rank 0 failed in another way ----------\nassert 1 == 2")


def test_a_failure_of_a_fixture_says_so() -> None:
    history = failed(0, when="setup")

    assert merge_reports(Run([history], [history])).longrepr.endswith("rank 0: failed in setup")


def test_a_rank_that_runs_is_shown_with_its_own_part_of_the_stack() -> None:
    stacks = (
        "Current thread 0x01 (most recent call first):\n"
        '  File "t.py", line 9 in helper\n'
        '  File "t.py", line 5 in test_it\n'
        '  File "site-packages/_pytest/python.py", line 1 in pytest_pyfunc_call\n'
        '  File "site-packages/pluggy/_callers.py", line 1 in _multicall\n'
    )
    history = RankHistory(0, [report("setup")], stacks=stacks)
    merged = merge_reports(Run([history, passed(1)], timeout=3.0))

    assert isinstance(merged.exception, TimeoutError)
    assert merged.longrepr.splitlines() == [
        "the 2 ranks did not end within 3 s and were stopped",
        "rank 0: was running the test, and was stopped here (innermost call first):",
        '      File "t.py", line 9 in helper',
        '      File "t.py", line 5 in test_it',
        "rank 1: passed",
    ]


def test_the_phase_of_a_rank_that_runs() -> None:
    phases: tuple[str, ...] = ()
    for words in ("in setup", "the test", "in teardown", "after the test"):
        history = RankHistory(0, [report(when) for when in phases], stacks="")
        assert f"was running {words}" in merge_reports(Run([history], timeout=1.0)).longrepr
        phases = ("setup", "call", "teardown")[: len(phases) + 1]


def test_output_of_each_rank_is_a_section() -> None:
    loud, silent = passed(0), passed(1)
    loud.output = "hello\n"

    assert merge_reports(Run([loud, silent])).sections == [
        ("Captured stdout and stderr, rank 0", "hello\n"),
    ]


def test_a_debugger_is_kept_out_of_every_kind_of_failure() -> None:
    import bdb

    for exception in (ValueError("x"), KeyError("x"), OSError(2, "x"), StopIteration(3)):
        history = failed(0)
        history.exception = exception
        merged = merge_reports(Run([history], [history], uses_pdb=True))
        assert isinstance(merged.exception, bdb.BdbQuit)
        assert isinstance(merged.exception, type(exception)) or type(exception) is OSError
        assert "--pdb was left out" in merged.longrepr
    for run in (
        Run([passed(0)], timeout=1.0),
        Run([(gone := RankHistory(0, broken="died"))], [gone]),
    ):
        run.uses_pdb = True
        assert "--pdb was left out" in merge_reports(run).longrepr
