"""Where every rank is: Python stacks, written by the workers on a signal.

A rank's main thread writes them between two instructions. One that does not come to that, as it
waits or is in C code, has faulthandler write them in C: only then, because that reads frames as
it finds them, and one that is being entered or left makes it crash (with CPython 3.13.0 about
every tenth time, if C code calls Python code over and over). C code cannot say when it is done, so
the parent then looks until nothing is added any more.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass

from rankspawn.workers.outcome_file import read_header
from rankspawn.workers.report import (
    STACKS_AT,
    STACKS_BEGIN,
    STACKS_END,
    STACKS_IN_C_SIGNAL,
    STACKS_SIGNAL,
    STARTED,
)

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.workers.group import WorkerGroup
    from rankspawn.workers.popen import WorkerPopen

# A dump takes a millisecond; a rank on a loaded machine may have to wait for a CPU first.
_AT_MOST_SECONDS = 2.0
# A main thread that has not come to Python code by then is busy in C code, as it seems.
_BY_ITSELF_SECONDS = 1.0
_LOOK_SECONDS = 0.01
# Looks in a row that find all threads asleep, before the rank is taken for one that waits; between
# two instructions it may sleep as well, for the GIL or a page.
_LOOKS_ASLEEP = 5
# Looks in a row that find nothing added, before what C code writes is taken for whole.
_LOOKS_ALIKE = 5
# CPU time in which a main thread would have come to Python code; one that was given less has
# waited for a CPU. In the kernel's unit, which is 10 ms as a rule.
_TICKS_TO_ANSWER = 5
# What the kernel calls the states of a thread that sleeps.
_ASLEEP = set("SDI")
# How faulthandler begins the line of a frame of ours.
_OURS = f'  File "{os.path.dirname(__file__)}/'
NO_ANSWER = (
    "(no answer: the process is stopped, its interpreter has not started, or it became another "
    "program)\n"
)
DESCRIPTOR_GONE = (
    "(not asked: the program closed descriptors that are not its own, and stacks would be written "
    "to whatever has the number now)\n"
)


@dataclass(slots=True)
class Asked:
    """A rank that was asked for its stacks."""

    popen: WorkerPopen
    fd: int
    start: int
    size: int = 0
    looks_alike: int = 0
    looks_asleep: int = 0
    ticks_before: int | None = None
    asked_in_c: bool = False

    def look(self) -> None:
        """See what it has written by now."""
        size = _size(self.fd)
        self.looks_alike = self.looks_alike + 1 if size == self.size else 0
        self.size = size

    @property
    def has_answered(self) -> bool:
        """The answer is whole, as far as can be known; or there will be none."""
        if self.popen.poll() is not None:
            return True
        if self.size == self.start:
            return False
        is_whole = os.pread(self.fd, 1, self.size - 1) == STACKS_END
        return is_whole or (self.asked_in_c and self.looks_alike >= _LOOKS_ALIKE)

    def ask_in_c_if_needed(self, *, is_late: bool) -> None:
        """Have C write them, once, if the main thread waits or is in C code.

        Not if the process is stopped: the signal would come in the midst of whatever it does when
        it goes on.
        """
        threads = _look_at_threads(self.popen.pid)
        state, ticks = threads.get(self.popen.pid, ("", 0))
        if self.ticks_before is None:
            self.ticks_before = ticks
        is_asleep = bool(threads) and {state for state, _ in threads.values()} <= _ASLEEP
        self.looks_asleep = self.looks_asleep + 1 if is_asleep else 0
        had_time = state in _ASLEEP or ticks - self.ticks_before >= _TICKS_TO_ANSWER
        if self.looks_asleep >= _LOOKS_ASLEEP or (is_late and had_time):
            self.asked_in_c = True
            if _has_handler(self.popen.pid, STACKS_IN_C_SIGNAL):
                self.popen.send_signal(STACKS_IN_C_SIGNAL)

    def text(self) -> str:
        """What it has written since it was asked."""
        written = os.pread(self.fd, self.size - self.start, self.start)
        whole = re.search(rb"\f([^\v]*)\v", written)
        dump = whole[1] if whole else written.strip(STACKS_BEGIN)
        return without_our_frames(dump.decode("utf-8", "replace")) or NO_ANSWER


def collect_stacks(group: WorkerGroup) -> dict[int, str]:
    """Rank to the stacks of all its threads, for the ranks that run."""
    asked: dict[int, Asked] = {}
    stacks: dict[int, str] = {}
    files: dict[int, int] = {}
    try:
        group.copy_outcome_files(files)
        for index, fd in sorted(files.items()):
            worker = group.workers[index]
            stacks[worker.rank] = NO_ANSWER
            header, pid = read_header(fd), worker.popen.pid
            if header.stage < STARTED or not _has_handler(pid, STACKS_SIGNAL):
                continue
            if not _is_same_file(fd, f"/proc/{pid}/fd/{header.stacks_fd}"):
                stacks[worker.rank] = DESCRIPTOR_GONE
            else:
                asked[worker.rank] = Asked(worker.popen, fd, _size(fd))
                worker.popen.send_signal(STACKS_SIGNAL)
        _wait_until_written(list(asked.values()))
        stacks |= {number: rank.text() for number, rank in asked.items()}
    finally:
        for fd in files.values():
            os.close(fd)
    return stacks


def _wait_until_written(asked: list[Asked]) -> None:
    """Until all have answered or ended, or had their time, twice."""
    by_themselves = time.monotonic() + _BY_ITSELF_SECONDS
    deadline = by_themselves + _AT_MOST_SECONDS
    while asked and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        for each in asked:
            each.look()
        waited_for = [each for each in asked if not each.has_answered]
        if not waited_for:
            return
        is_late = time.monotonic() >= by_themselves
        for each in waited_for:
            if each.size == each.start and not each.asked_in_c:
                each.ask_in_c_if_needed(is_late=is_late)


def without_our_frames(text: str) -> str:
    """A dump without what has called the user's function: ours, and in a fork the parent's."""
    kept: list[str] = []
    is_below = False
    for line in text.splitlines(keepends=True):
        if not line.startswith("  File "):  # the head of another thread
            is_below = False
        elif line.startswith(f"{_OURS}report.py") and line.endswith(" in write_stacks\n"):
            continue
        elif line.startswith(f"{_OURS}child.py") and line.endswith(" in work\n"):
            is_below = True
            if kept and kept[-1].startswith(_OURS):  # a lambda, through which that calls it
                kept.pop()
        if not is_below:
            kept.append(line)
    return "".join(kept)


def _is_same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:  # closed, or the process ended
        return False
    except OSError:  # not ours to look at, after a change of the user
        return True


def _has_handler(pid: int, number: int) -> bool:
    """The signal does not end the process, as it would after that became another program."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):  # it ended
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _look_at_threads(pid: int) -> dict[int, tuple[str, int]]:
    """Thread to what it does, as the kernel calls it, and the CPU time that it has used."""
    threads = {}
    with suppress(OSError):  # it ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                # The name before it may hold anything.
                fields = file.read().rpartition(b") ")[2].split()
                threads[int(thread)] = fields[0].decode(), int(fields[11]) + int(fields[12])
    return threads


def _size(fd: int) -> int:
    return max(STACKS_AT, os.fstat(fd).st_size)
