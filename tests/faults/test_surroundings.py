"""Starting workers where something is missing, full, closed, or done by others as well.

Each case is a program of its own (``tests.faults.programs``), because its surroundings would
be those of the tests otherwise.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rankspawn.portable import is_forced
from tests.faults.programs import process_limit_folder
from tests.jobs import DEADLOCK
from tests.rights import can_mount

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
WELL = [0, 1]

Program = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, start_method: str) -> Program:
    """Runs a program under each start method, and gives back what it returned."""

    def run_program(
        name: str, *arguments: object, inside: Sequence[str] = (), fds: str = "", **environ: str
    ) -> Any:
        # Not by path: some programs hide the folder, or may not open anything.
        with tempfile.TemporaryFile("w+", dir=tmp_path) as answer:
            program = [sys.executable, "-m", "tests.faults.programs", str(answer.fileno()), name]
            command = [*inside, *program, start_method, *map(str, arguments)]
            if fds:
                command = ["/bin/sh", "-c", f'exec "$@" {fds}', "sh", *command]
            done = subprocess.run(
                command,
                timeout=DEADLOCK,
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                pass_fds=[answer.fileno()],
                env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", **environ},
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert "Traceback" not in done.stderr
            answer.seek(0)
            story = json.load(answer)
        assert story["left"] == []
        return story["outcome"]

    return run_program


# --- limits


def test_a_limit_of_open_files_that_is_too_low_is_said_before_the_start(run: Program) -> None:
    outcome = run("too_few_open_files")

    assert outcome.startswith("OSError")
    assert "this process may have 100 at most" in outcome


def test_descriptors_that_run_out_in_the_middle_of_the_start(run: Program) -> None:
    """Whichever step of the start is the one too many: all workers run, or none is left."""
    stories = run("descriptors_run_out")

    assert {spare: left for spare, (_, left) in stories.items() if left} == {}
    failures = {spare: story for spare, (story, _) in stories.items() if story != [0, 1, 2, 3]}
    assert list(failures) == [str(spare) for spare in range(len(failures))]
    assert 5 <= len(failures) <= 18, "the first fail, the last succeed"
    for story in failures.values():
        assert story.startswith("OSError\n[Errno 24] Too many open files")
    notes = [story for story in failures.values() if "of 4 workers had been started" in story]
    assert notes
    assert all("The limit of open files is 300" in story for story in notes)


@pytest.mark.skipif(
    os.geteuid() == 0 and process_limit_folder() is None,
    reason="root has no limit of processes, and there can be no control group with one",
)
@pytest.mark.parametrize("spare", [1, 2, 4, 5, 6])
def test_processes_that_run_out_in_the_middle_of_the_start(
    run: Program, spare: int, start_method: str
) -> None:
    """The guardian is the first, the fork server the second, and there are four workers."""
    outcome = run("processes_run_out", spare)

    needed = 6 if start_method == "forkserver" else 5
    started = min(4, max(0, spare - needed + 4))
    # A control group has the program alone. A user's limit is for all processes of that user, so
    # one that ends meanwhile makes room for one more.
    possible = [started] if os.geteuid() == 0 else range(started, 5)
    if is_forced():  # whoever waits for a process is a thread, which counts, and is soon gone again
        possible = range(5)
    if outcome == [0, 1, 2, 3]:
        assert 4 in possible
    else:
        assert outcome.startswith(("OSError", "BlockingIOError")), outcome
        told = [f"{count} of 4 workers had been started" in outcome for count in possible]
        assert any(told), outcome


def test_many_workers_with_the_usual_limits(run: Program, start_method: str) -> None:
    assert run("many_workers", 200 if start_method == "spawn" else 1000)


# --- folders, streams, environment


def test_a_missing_temp_folder_is_not_missed(run: Program) -> None:
    missing = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), "/nonexistent")

    assert run("plain", **missing) == WELL


def test_a_folder_in_which_nothing_can_be_written(run: Program) -> None:
    in_proc = ["/bin/sh", "-c", 'cd /proc; exec "$@"', "sh"]  # not even by root

    assert run("plain", inside=in_proc) == WELL


@pytest.mark.skipif(
    sys.version_info[:3] == (3, 13, 0),
    reason="Python 3.13.0 cannot import socket there: 'error return without exception set'",
)
def test_a_folder_that_was_deleted(run: Program, tmp_path: Path) -> None:
    folder = tmp_path / "deleted"
    folder.mkdir()

    assert run("deleted_folder", folder) == WELL


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount something for itself")
@pytest.mark.parametrize("options", ["ro", "size=4k"])
def test_memory_and_temp_folders_that_are_full_or_read_only(
    run: Program, options: str, tmp_path: Path
) -> None:
    """Mounts for this program alone hide the real ones."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = f"""
        for folder in /dev/shm {temporary}; do
            mount -t tmpfs -o {options} none $folder || exit 1
            head -c 8192 /dev/zero 2>/dev/null >$folder/full
        done
        exec "$@"
    """
    in_there = ["unshare", "-m", "/bin/sh", "-c", script, "sh"]

    assert run("plain", inside=in_there, TMPDIR=str(temporary)) == WELL


@pytest.mark.parametrize("streams", [[1], [0, 1, 2]])
def test_streams_that_the_program_closed(run: Program, streams: list[int]) -> None:
    assert run("closed_streams", *streams) == WELL


@pytest.mark.parametrize("fds", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_were_closed_before_python_started(run: Program, fds: str) -> None:
    assert run("plain", fds=fds) == WELL


@pytest.mark.parametrize("where", ["parent", "option"])
def test_a_large_variable_works(run: Program, where: str) -> None:
    assert run("large_variable", 120 * 1024, where) == WELL


@pytest.mark.parametrize("where", ["parent", "option"])
def test_a_variable_that_is_too_large_for_the_system_is_named(
    run: Program, where: str, start_method: str
) -> None:
    outcome = run("large_variable", 200 * 1024, where)

    if outcome != WELL:
        assert outcome.startswith("OSError\n[Errno 7] Argument list too long")
        assert "0 of 2 workers had been started" in outcome
        assert re.search(r"largest variable is LARGE\b.* 204800 ", outcome)
    executes_nothing = start_method == "fork"
    forks_from_a_server = start_method == "forkserver" and where == "option"
    assert (outcome == WELL) == (executes_nothing or forks_from_a_server)


def test_an_environment_that_is_too_large_in_all(run: Program, start_method: str) -> None:
    outcome = run("many_variables")

    if start_method == "fork":
        assert outcome == WELL  # nothing is executed
    else:
        assert outcome.startswith("OSError\n[Errno 7] Argument list too long")
        assert "The environment is too large" in outcome


# --- what else goes on in the program


@pytest.mark.parametrize("theirs", ["spawn", "fork", "forkserver"])
def test_a_start_method_that_others_set(run: Program, theirs: str) -> None:
    assert run("start_method_set_by_others", theirs) == WELL


def test_threads_in_the_parent_cause_one_warning_at_most(run: Program, start_method: str) -> None:
    outcome, warnings = run("threads_in_parent")

    assert outcome == [0, 1, 2, 3]
    assert len(warnings) <= (start_method == "fork"), warnings


def test_start_inside_of_asyncio(run: Program) -> None:
    assert run("in_asyncio") == [WELL, WELL]


@pytest.mark.parametrize("theirs", ["spawn", "fork", "forkserver"])
def test_start_inside_of_a_daemonic_process(run: Program, theirs: str) -> None:
    assert run("in_daemonic_process", theirs) == WELL


def assert_failures_are_told(raised: str, killed: str) -> None:
    assert raised.startswith("ProcessRaisedException of rank 1: Process 1 terminated with")
    assert raised.endswith("ValueError: on purpose")
    assert killed.startswith("ProcessExitedException of rank 1: Process 1 terminated with")


def test_results_and_failures_come_back_though_sigchld_is_ignored(run: Program) -> None:
    outcome, raised, killed = run("sigchld_ignored")

    assert outcome == WELL
    assert_failures_are_told(raised, killed)


def test_workers_that_end_before_they_can_be_watched(run: Program) -> None:
    assert run("sigchld_ignored_and_workers_gone_at_once") == WELL


def test_results_and_failures_come_back_though_others_wait_for_every_child(run: Program) -> None:
    outcomes, raised, killed = run("others_wait_for_every_child")

    assert outcomes == [WELL] * 5
    assert_failures_are_told(raised, killed)


def test_start_from_a_thread_while_the_main_thread_ends(tmp_path: Path, start_method: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, threading\n"
        "import rankspawn\n"
        "from tests import jobs\n"
        "def start():\n"
        "    threading.main_thread().join()\n"
        "    context = rankspawn.spawn(jobs.return_rank, nprocs=2, backend='gloo',\n"
        "                              start_method=sys.argv[1])\n"
        "    print(context.results())\n"
        "if __name__ == '__main__':\n"
        "    threading.Thread(target=start).start()\n"
    )
    done = subprocess.run(
        [sys.executable, str(program), start_method],
        timeout=DEADLOCK,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
    )

    if "can't fork at interpreter shutdown" in done.stderr:
        pytest.skip("this Python (3.12) refuses to fork once its main thread has ended")
    assert (done.stdout, done.returncode) == ("[0, 1]\n", 0)
    # Under fork there may be a warning, because the main thread counts as one that runs.
    assert "Warning" in done.stderr if start_method == "fork" and done.stderr else not done.stderr
