"""From what the ranks said to one outcome, without processes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from rankspawn.pytest_plugin.conduct import Run, Story
from rankspawn.pytest_plugin.verdict import judge
from rankspawn.pytest_plugin.warned import pack_warning, unpack_warning


def report(when: Any, outcome: Any = "passed", longrepr: Any = None) -> pytest.TestReport:
    return pytest.TestReport("t", ("t.py", 1, "t"), {}, outcome, longrepr, when)


def passed(rank: int) -> Story:
    return Story(rank, [report("setup"), report("call"), report("teardown")])


def skipped(rank: int) -> Story:
    reason = ("t.py", 3, "Skipped: not today")
    return Story(rank, [report("setup"), report("call", "skipped", reason), report("teardown")])


def failed(rank: int, text: str = "assert 1 == 2", when: str = "call") -> Story:
    return Story(rank, [report(when, "failed", text)], AssertionError(text))


def test_all_passed() -> None:
    assert judge(Run([passed(0), passed(1)])).exception is None


def test_all_skipped_is_skipped_with_the_reason() -> None:
    verdict = judge(Run([skipped(0), skipped(1)]))

    assert isinstance(verdict.exception, pytest.skip.Exception)
    assert verdict.longrepr == ("t.py", 3, "Skipped: not today")


def test_some_skipped_is_passed() -> None:
    assert judge(Run([passed(0), skipped(1)])).exception is None


def test_the_first_failure_is_shown_and_the_others_are_told_of() -> None:
    first, second = failed(1), failed(0, "assert 3 == 4")
    verdict = judge(Run([second, first, passed(2)], [first, second]))

    assert verdict.exception is first.exception
    assert verdict.longrepr.startswith("rank 1 failed: assert 1 == 2")
    assert verdict.longrepr.splitlines()[2:] == [
        "rank 0: failed too: assert 3 == 4",
        "rank 1: failed",
        "rank 2: passed",
        "---------- rank 0 failed in another way ----------",
        "assert 3 == 4",
    ]


def test_the_same_failure_of_another_rank_is_not_shown_twice() -> None:
    first, second = failed(1), failed(0)

    assert "another way" not in judge(Run([second, first], [first, second])).longrepr


def test_a_failure_is_shown_also_after_a_rank_that_died() -> None:
    first, second = Story(1, broken="Process 1 terminated with signal SIGSEGV"), failed(0)
    verdict = judge(Run([second, first], [first, second]))

    assert verdict.longrepr.startswith("rank 1 failed: Process 1 terminated with signal SIGSEGV")
    assert verdict.longrepr.endswith("rank 0 failed in another way ----------\nassert 1 == 2")


def test_a_failure_of_a_fixture_says_so() -> None:
    one = failed(0, when="setup")

    assert judge(Run([one], [one])).longrepr.endswith("rank 0: failed in setup")


def test_a_rank_that_runs_is_shown_with_its_own_part_of_the_stack() -> None:
    stacks = (
        "Current thread 0x01 (most recent call first):\n"
        '  File "t.py", line 9 in helper\n'
        '  File "t.py", line 5 in test_it\n'
        '  File "site-packages/_pytest/python.py", line 1 in pytest_pyfunc_call\n'
        '  File "site-packages/pluggy/_callers.py", line 1 in _multicall\n'
    )
    story = Story(0, [report("setup")], stacks=stacks)
    verdict = judge(Run([story, passed(1)], timeout=3.0))

    assert isinstance(verdict.exception, TimeoutError)
    assert verdict.longrepr.splitlines() == [
        "the 2 ranks did not end within 3 s and were stopped",
        "rank 0: was running the test, and was stopped here (innermost call first):",
        '      File "t.py", line 9 in helper',
        '      File "t.py", line 5 in test_it',
        "rank 1: passed",
    ]


def test_the_phase_of_a_rank_that_runs() -> None:
    phases: tuple[str, ...] = ()
    for words in ("in setup", "the test", "in teardown", "after the test"):
        story = Story(0, [report(when) for when in phases], stacks="")
        assert f"was running {words}" in judge(Run([story], timeout=1.0)).longrepr
        phases = ("setup", "call", "teardown")[: len(phases) + 1]


def test_output_of_each_rank_is_a_section() -> None:
    one, other = passed(0), passed(1)
    one.output = "hello\n"

    assert judge(Run([one, other])).sections == [
        ("Captured stdout and stderr, rank 0", "hello\n"),
    ]


def test_a_debugger_is_kept_out_of_every_kind_of_failure() -> None:
    import bdb

    for exception in (ValueError("x"), KeyError("x"), OSError(2, "x"), StopIteration(3)):
        story = failed(0)
        story.exception = exception
        verdict = judge(Run([story], [story], uses_pdb=True))
        assert isinstance(verdict.exception, bdb.BdbQuit)
        assert isinstance(verdict.exception, type(exception)) or type(exception) is OSError
        assert "--pdb was left out" in verdict.longrepr
    for run in (Run([passed(0)], timeout=1.0), Run([(gone := Story(0, broken="died"))], [gone])):
        run.uses_pdb = True
        assert "--pdb was left out" in judge(run).longrepr


def test_a_warning_of_an_unknown_class_arrives_as_the_nearest_one() -> None:
    odd = type("Odd", (DeprecationWarning,), {"__module__": "nowhere"})
    recorded = warnings.WarningMessage(odd("old"), odd, "t.py", 3)

    back = unpack_warning(pack_warning(recorded))

    assert back.category is DeprecationWarning
    assert (str(back.message), back.filename, back.lineno) == ("old", "t.py", 3)
