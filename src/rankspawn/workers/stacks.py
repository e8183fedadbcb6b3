"""Where every rank is: Python stacks, written by the workers on a signal.

faulthandler writes them from C, also while a rank holds the GIL in C code. A signal handler
cannot say when it is done, so the parent looks until nothing is added any more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from rankspawn.workers.report import STACKS_AT, STACKS_SIGNAL, STARTED
from rankspawn.workers.worker import read_header

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.workers.group import WorkerGroup

# A dump takes a millisecond; a rank on a loaded machine may have to wait for a CPU first.
_AT_MOST_SECONDS = 2.0
_LOOK_SECONDS = 0.01
# How faulthandler begins the line of a frame of ours.
_OURS = f'  File "{os.path.dirname(__file__)}/'
NO_ANSWER = (
    "(no answer: the process is stopped, its interpreter has not started, or it became another "
    "program)\n"
)


def collect_stacks(group: WorkerGroup) -> dict[int, str]:
    """Rank to the stacks of all its threads, for the ranks that run."""
    asked: dict[int, tuple[int, int]] = {}
    stacks: dict[int, str] = {}
    with group.open_outcome_files() as files:
        for index, fd in sorted(files.items()):
            worker = group.workers[index]
            stacks[worker.rank] = NO_ANSWER
            if read_header(fd).stage >= STARTED and _has_handler(worker.popen.pid):
                asked[worker.rank] = (fd, _size(fd))
                worker.popen.send_signal(STACKS_SIGNAL)
        asked_workers = [group.workers[index] for index in files]
        _wait_until_written(
            asked, lambda: {worker.rank for worker in asked_workers if worker.popen.poll() is None}
        )
        for rank, (fd, start) in asked.items():
            text = os.pread(fd, _size(fd) - start, start).decode("utf-8", "replace")
            stacks[rank] = without_our_frames(text) or NO_ANSWER
    return stacks


def without_our_frames(text: str) -> str:
    """A dump without what has called the user's function: ours, and in a fork the parent's."""
    kept: list[str] = []
    is_below = False
    for line in text.splitlines(keepends=True):
        if not line.startswith("  File "):  # the head of another thread
            is_below = False
        elif line.startswith(f"{_OURS}child.py") and line.endswith(" in work\n"):
            is_below = True
            if kept and kept[-1].startswith(_OURS):  # a lambda, through which that calls it
                kept.pop()
        if not is_below:
            kept.append(line)
    return "".join(kept)


def _has_handler(pid: int) -> bool:
    """The signal does not end the process, as it would after that became another program."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):  # it ended
        return False
    return bool(int(caught.split()[1], 16) >> (STACKS_SIGNAL - 1) & 1)


def _wait_until_written(
    asked: Mapping[int, tuple[int, int]], running: Callable[[], set[int]]
) -> None:
    deadline = time.monotonic() + _AT_MOST_SECONDS
    before: list[int] = []
    while asked and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        sizes = [_size(fd) for fd, _ in asked.values()]
        silent = {rank for rank, (fd, start) in asked.items() if _size(fd) == start}
        if sizes == before and silent.isdisjoint(running()):
            return
        before = sizes


def _size(fd: int) -> int:
    return max(STACKS_AT, os.fstat(fd).st_size)
