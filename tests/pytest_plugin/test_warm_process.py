"""Ranks that are copies of a process which has collected their tests: whole runs of pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import DEADLOCK

pytest_plugins = ["pytester"]

# A module that says which process has imported it, and in which process a fixture was set up.
TELLING = """
import os, atexit, tempfile
import pytest

IMPORTED_BY = os.getpid()
FOLDER = tempfile.TemporaryDirectory()

@pytest.fixture(scope="session")
def made_by():
    return os.getpid()

@pytest.mark.ranks(2)
@pytest.mark.parametrize("number", range(3))
def test_it(rank, number, made_by, tmp_path):
    assert made_by == os.getpid() != IMPORTED_BY == os.getppid()
    assert os.path.isdir(FOLDER.name)
    with open(f"told.{number}.{rank}", "w") as file:
        file.write(f"{IMPORTED_BY} {os.getpid()} {FOLDER.name} {tmp_path}")
"""


def test_ranks_are_copies_of_a_process_that_has_collected_their_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(
        "import os, pytest\n"
        "def pytest_sessionfinish():\n"
        "    with open(f'finished.{os.getpid()}', 'w'): pass\n"
    )
    pytester.makepyfile(test_it=TELLING)
    result = pytester.runpytest_subprocess("-p", "no:randomly", timeout=DEADLOCK)

    result.assert_outcomes(passed=3)
    told = [path.read_text().split() for path in pytester.path.glob("told.*")]
    warm, ranks, folders, own = (set(column) for column in zip(*told, strict=True))
    assert (len(warm), len(ranks), len(folders), len(own)) == (1, 6, 1, 6)
    # What its modules and hooks do at the end was done, by it and by none of the ranks.
    assert not Path(folders.pop()).exists()
    finished = {path.suffix.removeprefix(".") for path in pytester.path.glob("finished.*")}
    assert len(finished) == 2, "it, and the process that was started"
    assert finished > warm


def test_tests_that_cannot_be_copied_get_fresh_processes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_copied="import os, pytest\n"
        "HERE = os.getpid()\n"
        "@pytest.mark.ranks(1)\ndef test_it(): assert os.getpid() != HERE\n",
        test_threads="import os, threading, time, pytest\n"
        "HERE = os.getpid()\n"
        "threading.Thread(target=time.sleep, args=(1e6,), name='busy', daemon=True).start()\n"
        "@pytest.mark.ranks(1)\ndef test_1(): assert os.getpid() == HERE\n"
        "@pytest.mark.ranks(1)\ndef test_2(): assert os.getpid() == HERE\n",
        test_rank="import rankspawn, pytest\n"
        "RANK = rankspawn.get_rank()\n"
        "@pytest.mark.ranks(2)\ndef test_it(rank): assert RANK == rank\n",
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", timeout=DEADLOCK)

    result.assert_outcomes(passed=4, warnings=2)
    result.stdout.fnmatch_lines_random(
        [
            "*the ranks of tests in test_threads.py get fresh processes*: importing it started the "
            "thread 'busy'.*",
            "*tests in test_rank.py get*: importing it read RANK, which each rank has for itself*",
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "story"),
    [
        ("os._exit(3)", "importing it has ended the process"),
        ("signal.pause()", "importing it takes half of the test's timeout"),
        ("raise OSError('not here')", "it cannot be collected there (*OSError: not here)"),
    ],
)
def test_a_module_that_does_not_let_itself_be_imported_is_left_out(
    pytester: pytest.Pytester, code: str, story: str
) -> None:
    only_there = "import os, signal, pytest\nif 'RANKSPAWN_WARM_TEST' not in os.environ:\n"
    pytester.makeconftest(
        "import os, sys\n"
        "if 'rankspawn-forkserver' not in sys.argv: os.environ['RANKSPAWN_WARM_TEST'] = '1'\n"
        "else: os.environ.pop('RANKSPAWN_WARM_TEST', None)\n"
    )
    pytester.makepyfile(
        test_bad=f"{only_there}    {code}\n"
        "@pytest.mark.ranks(1, timeout=20)\ndef test_it(): pass\n",
        test_good="import os, pytest\nHERE = os.getpid()\n"
        "@pytest.mark.ranks(1)\ndef test_it(): assert os.getpid() != HERE\n",
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", timeout=DEADLOCK)

    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines([f"*tests in test_bad.py get fresh processes*: {story}*"])


@pytest.mark.slow
def test_sources_that_change_are_imported_anew(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(helper="NUMBER = 1\n")
    pytester.makepyfile(
        "import pathlib, pytest, helper\n"
        "@pytest.mark.ranks(1)\ndef test_1(): assert helper.NUMBER == 1\n"
        "def test_2(): pathlib.Path('helper.py').write_text('NUMBER = 2  # longer\\n')\n"
        "@pytest.mark.ranks(1)\ndef test_3(): assert helper.NUMBER == 2\n"
    )
    pytester.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=3)


@pytest.mark.slow
def test_folders_classes_and_parameters(pytester: pytest.Pytester) -> None:
    for name in ("one", "two"):
        folder = pytester.mkdir(name)
        (folder / "conftest.py").write_text(
            f"import pytest\n@pytest.fixture\ndef name(): return {name!r}\n"
        )
        for number in (1, 2):
            (folder / f"test_{name}_{number}.py").write_text(
                "import os, pytest\n"
                "@pytest.mark.ranks(2)\n"
                "class TestIt:\n"
                "    @pytest.fixture(autouse=True)\n    def own(self): self.value = 3\n"
                "    @pytest.mark.parametrize('text', ['a/b', 'c::d'])\n"
                "    def test_it(self, name, text, rank, capsys, monkeypatch):\n"
                f"        assert (name, self.value) == ({name!r}, 3)\n"
                f"        assert os.path.basename(__file__) == 'test_{name}_{number}.py'\n"
            )
    result = pytester.runpytest_inprocess("-p", "no:randomly")

    result.assert_outcomes(passed=8, warnings=0)


@pytest.mark.slow
def test_a_crash_is_shown_by_the_rank_that_crashed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import os, signal, pytest\n"
        "@pytest.mark.ranks(1)\ndef test_it(): os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    result = pytester.runpytest_subprocess(timeout=DEADLOCK)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*SIGSEGV*", "*Captured*rank 0*", "*Segmentation fault*"])


@pytest.mark.slow
def test_output_of_modules_is_shown_once_with_s(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\nprint('\\nimported')\n"
        "@pytest.mark.ranks(2)\ndef test_it(rank): print(f'\\nrank {rank} speaks')\n"
    )
    result = pytester.runpytest_subprocess("-s", timeout=DEADLOCK)

    result.assert_outcomes(passed=1)
    lines = [line for line in result.outlines if line in ("imported", "rank 0 speaks")]
    assert sorted(lines) == ["imported", "imported", "rank 0 speaks"]  # here, and for the ranks
