"""Two jobs in one folder do not write to each other's logs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankspawn.launch.flags import UsageError
from rankspawn.launch.log_folder import LogFolder, LogLocks
from rankspawn.launch.programs import TRAINER, Node, ProgramSpec
from rankspawn.launch.session import StartWorkers
from tests.launch.factories import config_of
from tests.launch.members import Job
from tests.launch.readied import Launch
from tests.launch.running import Done, rankrun, write_script

WAIT = """
    ready(with_descendants=False)
    pause()
"""


@pytest.fixture
def first(tmp_path: Path) -> Iterator[Launch]:
    """A job that writes to the default folder for as long as the test lasts."""
    with Launch(tmp_path, WAIT) as launch:
        launch.wait_until_ready()
        yield launch


def start_second(folder: Path, *flags: str) -> Done:
    script = "import os; print('second', os.environ['PADDLE_LOG_DIR'])"
    write_script(folder, script, "second.py")
    return rankrun(folder, "--nproc_per_node", "2", *flags, "second.py")


def test_a_second_job_logs_to_a_folder_of_its_own(first: Launch) -> None:
    done = start_second(first.folder, "--job_id", "night/1", "--log_overwrite")
    assert done.code == 0, done.errors
    log = first.folder / "log"
    (own,) = log.glob("night_1-*")
    assert f"another job writes to {log}: the logs of this one are in {own}" in done.errors
    assert (own / "workerlog.1").read_text() == f"second {own}\n"
    assert (log / "workerlog.0").read_text() == "ready\n"
    assert (log / "workerlog.1").read_text() == ""


def test_a_folder_that_was_asked_for_is_refused_while_another_job_has_it(first: Launch) -> None:
    done = start_second(first.folder, "--log_dir", "log")
    assert done.code == 2
    log = first.folder / "log"
    assert f"another job writes to workerlog.0 in --log_dir {log}" in done.errors
    assert (log / "workerlog.0").read_text() == "ready\n"


def test_the_folder_is_free_after_the_job_was_killed(first: Launch) -> None:
    first.process.kill()
    first.process.wait()
    done = start_second(first.folder)
    assert done.code == 0
    assert done.log("workerlog.1") == f"second {first.folder / 'log'}\n"


def test_nodes_of_one_job_share_a_folder(job: Job, master: str, tmp_path: Path) -> None:
    flags = ("--nnodes", "2", "--master", master, "--log_dir", str(tmp_path / "shared"))
    members = [job.start(*flags), job.start(*flags)]
    for worker in job.workers(2):
        worker.say("exit 0")
    assert [member.wait() for member in members] == [0, 0]
    assert sorted(os.listdir(tmp_path / "shared")) == ["workerlog.0", "workerlog.1"]


class TestLocks:
    def test_only_logs_of_others_are_taken(self, tmp_path: Path) -> None:
        mine = LogLocks(str(tmp_path), ["workerlog.0", "workerlog.1"])
        other = LogLocks(str(tmp_path), ["workerlog.1", "workerlog.2"])
        assert (mine.taken, other.taken) == ([], ["workerlog.1"])
        mine.close()
        again = LogLocks(str(tmp_path), ["workerlog.0", "workerlog.1", "workerlog.2"])
        assert again.taken == ["workerlog.2"]
        other.close()
        again.close()

    def test_pipes_and_folders_are_left_alone(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "workerlog.0")
        (tmp_path / "workerlog.1").mkdir()
        locks = LogLocks(str(tmp_path), ["workerlog.0", "workerlog.1"])
        assert locks.taken == []
        locks.close()


def test_a_later_generation_goes_on_where_a_lost_node_has_the_log(tmp_path: Path) -> None:
    lost = LogLocks(str(tmp_path), ["workerlog.0"])
    folder = LogFolder(config_of(f"--nnodes 1:2 --log_dir {tmp_path}"))
    spec = ProgramSpec(TRAINER, 0, ("true",), {}, "workerlog.0", on_terminal=False)
    node = Node(0, "10.0.0.1", ())
    with pytest.raises(UsageError, match="another job writes to workerlog"):
        folder.claim([spec], StartWorkers(1, (node,), 0, 0, "run"), [])
    resources: list[Any] = []
    assert folder.claim([spec], StartWorkers(2, (node,), 0, 1, "run"), resources) == [spec]
    for resource in (*resources, lost, folder):
        resource.close()
