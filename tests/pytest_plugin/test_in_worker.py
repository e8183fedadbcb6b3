"""What the pytest of a rank does and tells, in whole runs with real processes."""

from __future__ import annotations

import re

import pytest

from tests.jobs import DEADLOCK
from tests.pytest_plugin.whole_runs import HELPERS, run

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    "start_method",
    ["spawn", *[pytest.param(other, marks=pytest.mark.slow) for other in ("fork", "forkserver")]],
)
def test_a_test_runs_once_per_rank_with_fixtures_of_its_own(
    pytester: pytest.Pytester, start_method: str
) -> None:
    pytester.makeconftest(
        """
        import os, threading
        import pytest

        @pytest.fixture(autouse=True)
        def everywhere(monkeypatch):
            monkeypatch.setenv("EVERYWHERE", "yes")

        @pytest.fixture
        def lock():  # nothing that could be sent to another process
            return threading.Lock()

        @pytest.fixture(scope="session")
        def name(rank):
            return f"rank {rank}"
        """
    )
    pytester.makepyfile(
        test_it="""
        import os
        import pytest
        import rankspawn

        @pytest.mark.ranks(2)
        @pytest.mark.parametrize("number", [7])
        def test_it(
            rank, world_size, number, lock, name, tmp_path, shared_tmp_path, monkeypatch, capsys
        ):
            assert (rank, world_size) == (rankspawn.get_rank(), 2)
            assert os.environ["EVERYWHERE"] == "yes"
            assert (number, name) == (7, f"rank {rank}")
            with lock:
                print("seen")
            assert capsys.readouterr().out == "seen\\n"
            (tmp_path / "own").mkdir()
            (shared_tmp_path / str(rank)).write_text(str(tmp_path))

        def test_after_it(rank, world_size, shared_tmp_path, tmp_path):
            assert (rank, world_size, shared_tmp_path) == (0, 1, tmp_path)
        """
    )
    result = pytester.runpytest_inprocess(
        "--basetemp=here", "-o", f"rankspawn_start_method={start_method}"
    )

    result.assert_outcomes(passed=2)
    shared = pytester.path / "here" / "ranks0" / "shared"
    folders = [(shared / str(rank)).read_text() for rank in range(2)]
    assert folders[0] != folders[1]


@pytest.mark.slow
def test_how_ranks_end_that_tell_nothing_themselves(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "def test_it(rank):\n"
        "    print('last words')\n"
        "    if rank: os.kill(os.getpid(), 9)\n"
        "    raise KeyboardInterrupt\n",
    )

    result.assert_outcomes(failed=1)
    text = str(result.stdout)
    assert re.search(r"^rank 0.*: .*test_it.py:\d+: KeyboardInterrupt", text, re.MULTILINE), text
    assert re.search(r"^rank 1.*: Process 1 terminated with signal SIGKILL", text, re.MULTILINE)
    assert "_pytest" not in text


@pytest.mark.slow
def test_a_debugger_is_refused_with_a_message(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "def test_1(rank): assert rank == 0\ndef test_2(rank):\n    breakpoint()\n",
        "--pdb",
    )

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*--pdb was left out*", "*a breakpoint in a rank*"])


@pytest.mark.slow
def test_warnings_arrive(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "def test_it(rank):\n    import warnings\n    warnings.warn('careful')\n",
        "-W",
        "default",
    )

    result.assert_outcomes(passed=1, warnings=2)
    result.stdout.fnmatch_lines(["*UserWarning: careful"])


@pytest.mark.slow
def test_a_test_that_is_another_one_in_its_ranks_is_explained(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="import os, pytest\n"
        "@pytest.mark.ranks(2)\n"
        "@pytest.mark.parametrize('pid', [os.getpid()])\ndef test_it(pid): pass\n"
    )
    result = pytester.runpytest_inprocess()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["rank ? failed: the test was not found here*"])


@pytest.mark.slow
def test_a_rank_in_which_pytest_cannot_start_shows_why(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import os\nif 'RANK' in os.environ: raise RuntimeError('only there')\n")
    pytester.makepyfile("import pytest\n@pytest.mark.ranks(2)\ndef test_it(): pass\n")
    result = pytester.runpytest_subprocess(timeout=DEADLOCK)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["rank ? failed: pytest could not start here*", "E*RuntimeError: only there"]
    )


@pytest.mark.slow
def test_with_xdist_and_a_random_order(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        helpers=HELPERS,
        test_it="import random, pytest\nfrom helpers import say_pid, wait_for\n"
        "@pytest.mark.parametrize('number', range(4))\n"
        "@pytest.mark.ranks(2)\n"
        "def test_it(rank, number, shared_tmp_path):\n"
        "    (shared_tmp_path / f'random.{rank}').write_text(str(random.random()))\n"
        "    say_pid(shared_tmp_path, rank)\n"
        "    if number == 2 and rank == 1: wait_for(shared_tmp_path, 0, has_ended=True)\n"
        "    assert number != 2 or rank == 0\n"
        "    assert number != 3\n",
    )
    result = pytester.runpytest_subprocess("-n", "2", "--basetemp=here", timeout=DEADLOCK)

    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines_random(["E*assert (2 != 2 or 1 == 0)", "rank 0: passed"])
    folders = list((pytester.path / "here").glob("popen-gw*/ranks[0-9]*/shared"))
    assert len(folders) == 4
    for shared in folders:
        numbers = {file.read_text() for file in shared.glob("random.*")}
        assert len(numbers) == 1, "pytest-randomly has seeded each rank in another way"
