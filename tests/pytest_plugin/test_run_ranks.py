"""Tests that run in ranks, as their author sees them: whole runs of pytest, real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankspawn.pytest_plugin import run_ranks
from tests.jobs import DEADLOCK
from tests.pytest_plugin.whole_runs import FORK, HELPERS, run

pytest_plugins = ["pytester"]


def test_a_failure_shows_the_assertion_and_the_state_of_the_other_ranks(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        helpers=HELPERS,
        test_it="""
        import signal
        import pytest
        from helpers import say_pid, wait_for

        print("not of the test")

        @pytest.mark.ranks(3, start_method="fork")
        def test_sum(rank, world_size, shared_tmp_path):
            print("this is", rank)
            say_pid(shared_tmp_path, rank)
            if rank == 0:
                signal.pause()
            if rank == 1:
                wait_for(shared_tmp_path, 0, has_ended=False)
                wait_for(shared_tmp_path, 2, has_ended=True)
            assert [rank, world_size] == [2, 3]
        """,
    )
    result = pytester.runpytest_inprocess()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">*assert *rank, world_size* == *2, 3*",
            "E*assert *1, 3* == *2, 3*",
            "E*At index 0 diff: 1 != 2*",
            "*rank 1 failed, as shown above; the 3 ranks of this test*",
            "rank 0: was running the test, and was stopped here*",
            '*File "*test_it.py", line 12 in test_sum',
            "rank 1: failed",
            "rank 2: passed",
            "*Captured stdout and stderr, rank 0*",
            "this is 0",
            "*Captured stdout and stderr, rank 2*",
            "this is 2",
            "FAILED *::test_sum - rank 1: *assert*",
        ]
    )
    result.stdout.no_fnmatch_line("not of the test")


@pytest.mark.slow
def test_a_rank_that_fails_in_another_way_is_shown_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(helpers=HELPERS)
    result = run(
        pytester,
        "from helpers import say_pid, wait_for\n"
        "def test_it(rank, shared_tmp_path):\n"
        "    say_pid(shared_tmp_path, rank)\n"
        "    if rank == 0:\n"
        "        raise ValueError('the cause')\n"
        "    wait_for(shared_tmp_path, 0, has_ended=True)\n"
        "    raise KeyError('the consequence')\n",
    )

    result.stdout.fnmatch_lines(
        [
            "E*ValueError: the cause",
            "rank 1: failed too: KeyError: 'the consequence'",
            "*rank 1 failed in another way*",
            "FAILED * - rank 0: ValueError: the cause",
        ]
    )


@pytest.mark.slow  # the limit is far above what the ranks need until they hang
def test_past_the_time_limit_the_stacks_are_shown(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the preparations take is not taken off what is told.
    how_to_start = run_ranks._how_to_start

    def take_a_moment(*args: Any) -> dict[str, Any]:
        time.sleep(0.01)
        return how_to_start(*args)

    monkeypatch.setattr(run_ranks, "_how_to_start", take_a_moment)
    pytester.makepyfile(
        test_it=FORK
        + "@pytest.mark.ranks(2, timeout=10, start_method='fork')\n"
        + "def test_it(rank):\n"
        + "    print('before')\n"
        + "    while rank == 1:\n"
        + "        time.sleep(0.1)\n"
    )
    result = pytester.runpytest_inprocess("-p", "no:randomly")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "the 2 ranks did not end within 10 s and were stopped",
            "rank 0: passed",
            "rank 1: was running the test*",
            "*in test_it",
            "*Captured*rank 1*",
            "before",
        ]
    )


@pytest.mark.slow
def test_skips_and_expected_failures(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "def test_skipped_by_all():\n    pytest.skip('not today')\n"
        "def test_skipped_by_one(rank):\n    if rank: pytest.skip('not today')\n"
        "@pytest.mark.skipif(True, reason='x')\ndef test_marked(): assert 0\n"
        "@pytest.mark.xfail(raises=ValueError, strict=True)\n"
        "def test_expected(rank):\n    if rank: raise ValueError\n"
        "@pytest.mark.xfail(raises=KeyError)\n"
        "def test_unexpected():\n    raise ValueError\n"
        "def test_expects_itself():\n    pytest.xfail('known')\n",
        "-rsx",
    )

    result.assert_outcomes(passed=1, skipped=2, xfailed=2, failed=1)
    result.stdout.fnmatch_lines(["SKIPPED * not today", "XFAIL *test_expects_itself - known"])


@pytest.mark.slow
def test_an_expected_failure_that_passes_is_strict_if_told_so(pytester: pytest.Pytester) -> None:
    result = run(pytester, "@pytest.mark.xfail(strict=True)\ndef test_it(): pass\n")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*XPASS(strict)*"])


def test_a_rank_that_dies_fails_the_test_with_its_output(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "def test_it(rank):\n    print('last words')\n    if rank: os.kill(os.getpid(), 9)\n",
    )

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*Process 1 terminated with signal SIGKILL*", "*Captured*rank 1*", "last words"]
    )
    assert str(result.stdout).count("last words\n") == 2  # of each rank, once


@pytest.mark.slow
def test_classes_and_fixtures_that_fail(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(helpers=HELPERS)
    result = run(
        pytester,
        "from helpers import say_pid, wait_for\n"
        "class TestGroup:\n"
        "    def setup_method(self):\n        self.number = 3\n"
        "    @pytest.fixture\n    def broken(self, rank, shared_tmp_path):\n"
        "        say_pid(shared_tmp_path, rank)\n"
        "        if rank: wait_for(shared_tmp_path, 0, has_ended=True)\n"
        "        assert rank == 0\n"
        "    def test_method(self, rank):\n        assert self.number == 3\n"
        "    def test_broken(self, broken):\n        pass\n",
    )

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*rank == 0*", "rank 0: passed", "rank 1: failed in setup"])


@pytest.mark.slow
def test_scopes_of_other_tests_are_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="import pytest\n"
        "log = []\n"
        "@pytest.fixture(scope='module')\n"
        "def module(): log.append('up'); yield log; log.append('down')\n"
        "def test_before(module): assert module == ['up']\n"
        "@pytest.mark.ranks(2, start_method='fork')\n"
        "def test_ranks(module, rank): module.append(rank)\n"
        "def test_after(module): assert module == ['up']\n"
    )
    pytester.makepyfile(test_other="def test_other(): pass\n")
    pytester.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=4)


@pytest.mark.slow
def test_the_first_failure_ends_the_run_with_x(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_1(): assert 0\ndef test_2(): pass\n", "-x")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*stopping after 1 failures*"])


@pytest.mark.slow
def test_pytest_exit_of_a_rank_ends_the_run(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_1(rank): pytest.exit('enough')\ndef test_2(): pass\n")

    result.stdout.fnmatch_lines(["*Exit: rank ?: enough*"])


@pytest.mark.slow
def test_output_goes_through_with_s(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=FORK + "def test_it(rank): print('rank', rank, 'speaks')\n")
    result = pytester.runpytest_subprocess("-s", timeout=DEADLOCK)

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines_random(["*rank 0 speaks", "*rank 1 speaks"])


def test_a_marker_that_cannot_be_obeyed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="import pytest, unittest\n"
        "@pytest.mark.ranks(2, foo=1)\ndef test_1(): pass\n"
        "@pytest.mark.ranks(2, start_method='never')\ndef test_2(): pass\n"
        "class TestOld(unittest.TestCase):\n"
        "    @pytest.mark.ranks(2)\n    def test_3(self): pass\n"
    )
    result = pytester.runpytest_inprocess("-p", "no:randomly")

    result.assert_outcomes(failed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "ranks is for test functions and methods of plain classes*",
            "@pytest.mark.ranks: unknown option 'foo'*",
            "the ranks cannot be started: start_method='never'*",
        ]
    )


@pytest.mark.slow
def test_without_the_plugin_the_marker_means_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=FORK + "def test_it(): assert 'RANK' not in os.environ\n")
    result = pytester.runpytest_inprocess("-p", "no:rankspawn", "-W", "default")

    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_ctrl_c_leaves_no_worker(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os, signal, pytest\n"
        "@pytest.mark.ranks(2)\n"
        "def test_it(rank):\n"
        f"    open('{tmp_path}/fifo', 'w').write(f'{{os.getpid()}}\\n')\n"
        "    signal.pause()\n"
    )
    os.mkfifo(tmp_path / "fifo")
    code = (
        "import signal, sys, pytest; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "sys.exit(pytest.main())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        pids: list[int] = []
        while len(pids) < 2:
            with open(tmp_path / "fifo") as fifo:
                pids += [int(line) for line in fifo]
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLOCK)

    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "KeyboardInterrupt" in output
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


def test_the_plugin_costs_next_to_nothing_where_it_is_not_used() -> None:
    code = (
        "import sys, json, pytest, rankspawn; before = set(sys.modules); "
        "import rankspawn.pytest_plugin; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLOCK
    )
    assert json.loads(done.stdout) == ["rankspawn.pytest_plugin"]
