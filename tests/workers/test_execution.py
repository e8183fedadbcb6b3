"""Programs as workers: the same group, teardown and evidence as for functions."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankspawn.supervise.outcome import End
from rankspawn.workers.execution import Program, check_program, start_programs
from rankspawn.workers.group import WorkerGroup
from rankspawn.workers.logs import read_tail
from rankspawn.workers.marker import new_mark
from rankspawn.workers.worker import classify_program
from tests.descendants import Watched

Start = Callable[..., WorkerGroup]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts shell commands as ranks 0, 1, …; ends them after the test."""
    groups: list[WorkerGroup] = []

    def start_all(*commands: str, marks: tuple[str | None, ...] = ()) -> WorkerGroup:
        programs = [
            Program(
                rank,
                f"rank {rank}",
                ("sh", "-c", command),
                {"RANK": str(rank), "HOME": None},
                str(tmp_path / f"log.{rank}"),
                second_mark=marks[rank] if marks else None,
            )
            for rank, command in enumerate(commands)
        ]
        groups.append(start_programs(programs, grace=30.0, keep_logs=True))
        return groups[-1]

    yield start_all
    for group in groups:
        group.stop(0)
        group.close()


def wait(group: WorkerGroup) -> WorkerGroup:
    assert group.wait(lambda: group.all_ended or group.has_failed, None)
    return group


def test_the_exit_code_is_the_outcome(start: Start) -> None:
    group = start("exit 0", "exit 0")
    assert wait(group).failures == []
    assert [one.end for one in group.outcomes.values()] == [End.RETURNED] * 2


@pytest.mark.parametrize(("command", "code"), [("exit 3", 3), ("kill -9 $$", -9)])
def test_a_failure(start: Start, command: str, code: int) -> None:
    group = start(command, "sleep 1000")
    ((at, outcome),) = wait(group).failures
    assert (at, outcome.end, outcome.exit_code) == (0, End.DIED, code)
    group.stop(30.0)
    assert group.outcomes[1].end is End.STOPPED
    assert group.outcomes[1].exit_code == -signal.SIGTERM


def test_who_ends_well_while_being_stopped_is_a_victim_all_the_same() -> None:
    outcome = classify_program(1, 42, 0, seen_ns=20, stopped_ns=10)
    assert outcome.end is End.STOPPED
    assert not outcome.is_failure


def test_a_status_that_somebody_else_collected_is_no_success() -> None:
    outcome = classify_program(1, 42, None, seen_ns=20, stopped_ns=None)
    assert (outcome.end, outcome.exit_code) == (End.DIED, 255)


def test_environment_and_log(start: Start, tmp_path: Path) -> None:
    wait(start("echo $RANK ${HOME-none}; echo err >&2", "pwd"))
    assert (tmp_path / "log.0").read_text() == "0 none\nerr\n"


def test_a_program_that_cannot_be_started_leaves_none(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    programs = [
        Program(
            0, "rank 0", ("sh", "-c", f"echo $$ > {pid_file}; sleep 1000"), {}, str(tmp_path / "a")
        ),
        Program(1, "rank 1", ("/nowhere/program",), {}, str(tmp_path / "b")),
    ]
    with pytest.raises(FileNotFoundError) as raised:
        start_programs(programs, grace=30.0, keep_logs=True)
    assert "1 of 2 workers had been started" in raised.value.__notes__[0]
    # The fixture of all tests would find a process that is left.


def test_stopping_some_of_them_with_what_they_started(start: Start, tmp_path: Path) -> None:
    helpers = new_mark()
    background = "sleep 1000 & echo $! > {0}.new; mv {0}.new {0}"
    group = start(
        background.format(tmp_path / "left"),
        background.format(tmp_path / "stopped") + "; sleep 1000",
        marks=(None, helpers),
    )
    group.wait(lambda: 0 in group.outcomes, None)
    while not (tmp_path / "stopped").exists():
        pass
    left, stopped = (int((tmp_path / name).read_text()) for name in ("left", "stopped"))
    with Watched([left]) as left_alone, Watched([stopped]) as ended:
        group.stop(30.0, only_marked=helpers)
        assert ended.alive() == []
        assert left_alone.alive() == [left]
    assert group.failures == []


@pytest.mark.parametrize("name", ["sh", "/bin/sh"])
def test_a_program_that_is_there(name: str) -> None:
    check_program([name])


def test_a_program_that_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="not on PATH"):
        check_program(["sh"])
    with pytest.raises(FileNotFoundError, match="no such file"):
        check_program([str(tmp_path / "prog")])
    (tmp_path / "prog").write_text("")
    for name in ("prog", str(tmp_path / "prog")):
        with pytest.raises(PermissionError, match=r"chmod \+x"):
            check_program([name])
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError):
        check_program(["folder"])
    os.chmod(tmp_path / "prog", 0o755)
    check_program(["prog"])


def test_the_tail_of_this_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{n}\n" for n in range(100)))
    assert read_tail(str(log), start=log.stat().st_size) == []
    assert read_tail(str(log), lines=2) == ["98", "99"]
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("new\n")
    assert read_tail(str(log), start=start) == ["new"]
    log.write_text("emptied\n")
    assert read_tail(str(log), start=start) == ["emptied"]
