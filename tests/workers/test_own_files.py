"""Descriptors that a worker's program closed, and numbers that it then got for its own files."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankspawn import MultiprocessContext, ProcessExitedException, ProcessRaisedException
from rankspawn.workers import report as report_module
from rankspawn.workers.stacks import DESCRIPTOR_GONE
from tests import jobs
from tests.jobs import DEADLOCK

Run = Callable[..., MultiprocessContext[Any]]
OWN = "the program's own\n"


def take_all_numbers(folder: Path) -> list[int]:
    """Close everything, as daemons do, and open files until every number is in use again."""
    last = max(map(int, os.listdir("/proc/self/fd")))
    os.closerange(3, last + 1)
    files: list[int] = []
    while (fd := os.open(folder / f"{len(files)}", os.O_RDWR | os.O_CREAT, 0o600)) <= last:
        os.write(fd, OWN.encode())
        files.append(fd)
    os.write(fd, OWN.encode())
    return [*files, fd]


def assert_untouched(folder: Path) -> None:
    texts = [path.read_text() for path in folder.iterdir()]
    assert texts == [OWN] * len(texts)
    assert len(texts) > 3


def take_all_numbers_and_return(folder: Path) -> bytes:
    take_all_numbers(folder)
    return bytes(200_000)


def test_a_result_is_kept_although_its_descriptor_was_closed(run: Run, tmp_path: Path) -> None:
    assert run(take_all_numbers_and_return, args=(tmp_path,), nprocs=1).results() == [
        bytes(200_000)
    ]
    assert_untouched(tmp_path)


def take_all_numbers_and_raise(folder: Path) -> None:
    take_all_numbers(folder)
    raise ValueError("on purpose")


def test_an_exception_is_kept_although_its_descriptor_was_closed(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ProcessRaisedException, match="ValueError: on purpose"):
        run(take_all_numbers_and_raise, args=(tmp_path,), nprocs=1)

    assert_untouched(tmp_path)


class TakesAllNumbers:
    """Closes what is not its own while the result is being written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        take_all_numbers(self.folder)
        return str, ("pickled",)


def return_hostile(folder: Path) -> list[Any]:
    return [bytes(200_000), TakesAllNumbers(folder), bytes(200_000)]


def test_descriptors_may_be_closed_in_the_middle_of_the_report(run: Run, tmp_path: Path) -> None:
    (result,) = run(return_hostile, args=(tmp_path,), nprocs=1).results()

    assert result == [bytes(200_000), "pickled", bytes(200_000)]
    assert_untouched(tmp_path)


def take_an_event() -> int:
    """All numbers are now those of one event of the program's own."""
    last = max(map(int, os.listdir("/proc/self/fd")))
    os.closerange(3, last + 1)
    own = os.eventfd(0, os.EFD_NONBLOCK)
    for number in range(own + 1, last + 1):
        os.dup2(own, number)
    # Not by raising: the test has to see what was written to the event.
    assert report_module.current is not None
    report_module.current._wake_parent()
    try:
        return os.eventfd_read(own)
    except BlockingIOError:
        return 0


def test_an_event_of_the_programs_own_is_not_taken_for_ours(run: Run) -> None:
    # By its inode it cannot be told from ours: events have one for all of them.
    assert run(take_an_event, nprocs=1).results() == [0]


def take_all_numbers_and_wait(folder: Path, fifo: Path) -> None:
    take_all_numbers(folder)
    fifo.write_text("ready")
    jobs.sleep_for_ever()


def test_stacks_are_not_written_to_a_file_of_the_program(run: Run, tmp_path: Path) -> None:
    folder, fifo = tmp_path / "own", tmp_path / "fifo"
    folder.mkdir()
    os.mkfifo(fifo)
    with (
        open(os.open(fifo, os.O_RDWR), "rb", buffering=0) as ready,
        run(take_all_numbers_and_wait, args=(folder, fifo), nprocs=1, join=False) as context,
    ):
        assert select.select([ready], [], [], DEADLOCK)[0]
        stacks = context.dump_stacks()

    assert stacks == {0: DESCRIPTOR_GONE}
    assert_untouched(folder)


def lose_report(folder: Path, how: str) -> str:
    """As where the parent's descriptors cannot be opened: after a change of the user, say."""
    assert report_module.current is not None
    report_module.current._parent = (0, 0)
    take_all_numbers(folder)
    if how != "return":
        jobs.fail(how)
    return "lost"


@pytest.mark.parametrize("how", ["return", "raise", "exit 7", "exit text"])
def test_a_report_that_cannot_be_written_is_named_as_the_cause(
    run: Run, tmp_path: Path, how: str
) -> None:
    with pytest.raises(ProcessExitedException, match="closed descriptors that are not its own"):
        run(lose_report, args=(tmp_path, how), nprocs=1)

    assert_untouched(tmp_path)
