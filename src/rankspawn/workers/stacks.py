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

from rankspawn.file_limit import file_limit
from rankspawn.workers.outcome_file import read_header
from rankspawn.workers.report import (
    IN_FUNCTION,
    STACKS_AT,
    STACKS_BEGIN,
    STACKS_END,
    STACKS_IN_C_SIGNAL,
    STACKS_SIGNAL,
    STARTED,
)

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Protocol

    from rankspawn.workers.group import WorkerGroup

    class Asking(Protocol):
        """A process that can be asked, ours or another parent's."""

        @property
        def pid(self) -> int:
            """Its number."""

        def poll(self) -> int | None:
            """None while it runs."""

        def send_signal(self, number: int) -> None:
            """Send a signal."""


# A dump takes a millisecond; a rank on a loaded machine may have to wait for a CPU first.
_AT_MOST_SECONDS = 2.0
# What the end of a failed group may be delayed by, for ranks that are about to be stopped.
_SURVIVORS_SECONDS = 0.3
# A main thread that has not come to Python code by then is busy in C code, as it seems.
_BY_ITSELF_SECONDS = 1.0
_LOOK_SECONDS = 0.01
# Most have answered before that, so the first looks follow each other sooner.
_FIRST_LOOK_SECONDS = 0.001
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
# How faulthandler begins to tell of a crash, and what it tells of besides Python's stacks.
_CRASH_BEGINS = b"Fatal Python error: "
_CRASH_ENDS = re.compile(r"^(?:Extension modules: |Current thread's C stack trace)", re.MULTILINE)
# It writes at most 100 threads of 100 frames.
_LONGEST_CRASH = 1 << 20
# The line of a frame of ours, as faulthandler writes it.
_OUR_FRAME = re.compile(
    rf'  File "{re.escape(os.path.dirname(os.path.dirname(__file__)))}/(.+)", line \d+ in (.+)\n'
)
# What runs the function, and then reports; and what runs that, and then leaves.
_WORK, _TELL = "workers/child.py work", "workers/child.py _tell"
_CALLERS = (_WORK, "workers/child.py run_and_leave")
_WRITES = "it writes out what it printed, and waits for somebody to read that"
# What a rank does for us after its function.
_PAST_FUNCTION = {
    "workers/child.py flush_output": _WRITES,
    "workers/child.py flush_c_output": _WRITES,
    "workers/child.py _flush_open_files": "it writes out the files that it left open",
    "workers/report.py _pickle_result": "its result is being pickled",
    "workers/child.py _describe": "the text of its exception is asked for",
    "workers/report.py complete": "its exception is being pickled",
    "cpython.py wait_for_threads": "it waits for threads that it started",
    "cpython.py run_exit_functions": "it runs what was registered with atexit",
}
NO_ANSWER = (
    "(no answer: the process is stopped, its interpreter has not started, or it became another "
    "program)\n"
)
DESCRIPTOR_GONE = (
    "(not asked: the program closed descriptors that are not its own, and stacks would be written "
    "to whatever has the number now)\n"
)
NO_RIGHTS = "(not asked: this process may not signal it, as one of the two has changed its user)\n"
NO_ROOM = (
    "(not asked: its limit on the size of files, {limit} bytes, see `ulimit -f`, keeps it from "
    "writing stacks)\n"
)


@dataclass(slots=True)
class Asked:
    """A rank that was asked for its stacks."""

    popen: Asking
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


def collect_stacks(group: WorkerGroup, *, quickly: bool = False) -> dict[int, str]:
    """Rank to the stacks of all its threads, for the ranks that run.

    Args:
        group: Theirs.
        quickly: Only of those that run their function, and answer at once.
    """
    files: dict[int, int] = {}
    try:
        group.copy_outcome_files(files)
        ranks = {
            group.workers[index].rank: (group.workers[index].popen, fd)
            for index, fd in files.items()
            if not quickly or _is_in_function(group, index, fd)
        }
        stacks = ask(ranks, seconds=_SURVIVORS_SECONDS if quickly else None)
    finally:
        for fd in files.values():
            os.close(fd)
    if quickly:
        return {rank: text for rank, text in stacks.items() if "  File " in text}
    pids = {worker.rank: worker.popen.pid for worker in group.workers}
    said = say_who_waits(pids, stacks)
    return {rank: said.get(rank, "") + text for rank, text in stacks.items()}


def _is_in_function(group: WorkerGroup, index: int, fd: int) -> bool:
    return index not in group.outcomes and read_header(fd).stage >= IN_FUNCTION


def ask(ranks: Mapping[int, tuple[Asking, int]], *, seconds: float | None = None) -> dict[int, str]:
    """Rank to the stacks of all its threads; it may be anybody's of this user.

    Args:
        ranks: Rank to its process, and a descriptor of the file in which it reports.
        seconds: How long to wait at most, if not for as long as it may take.
    """
    asked: dict[int, Asked] = {}
    stacks: dict[int, str] = {}
    for rank, (process, fd) in sorted(ranks.items()):
        stacks[rank] = NO_ANSWER
        header, pid = read_header(fd), process.pid
        if header.stage < STARTED or not STACKS_SIGNAL or not _has_handler(pid, STACKS_SIGNAL):
            continue
        limit = file_limit(pid)
        if limit is not None and limit <= STACKS_AT:
            stacks[rank] = NO_ROOM.format(limit=limit)
        elif not _is_same_file(fd, f"/proc/{pid}/fd/{header.stacks_fd}"):
            stacks[rank] = DESCRIPTOR_GONE
        else:
            asked[rank] = Asked(process, fd, _size(fd))
            try:
                process.send_signal(STACKS_SIGNAL)
            except PermissionError:
                del asked[rank]
                stacks[rank] = NO_RIGHTS
    _wait_until_written(list(asked.values()), seconds)
    return stacks | {number: rank.text() for number, rank in asked.items()}


def say_who_waits(
    pids: Mapping[int, int], ranks: Iterable[int], parent: int | None = None
) -> dict[int, str]:
    """Rank to a paragraph: in which collective it waits and for whom, or who waits for it.

    Args:
        pids: Rank to its process, of all ranks.
        ranks: Those to speak of.
        parent: Who started them; None for this process.
    """
    from rankspawn.parallel.looking import awaited, stragglers, waiting

    holders = [os.getpid() if parent is None else parent]
    found = waiting(pids, holders)
    held_up, so_far = awaited(found), stragglers(pids, holders)
    said = {}
    for rank in ranks:
        if rank in found:
            wait = found[rank]
            names = _ranks(wait.waits_for)
            said[rank] = f"(waits {wait.seconds:.3g} s for {names} in {wait.call})\n\n"
        elif rank in held_up:
            others = held_up[rank]
            calls = ", ".join(sorted({found[each].collective for each in others}))
            verb = "waits" if len(others) == 1 else "wait"
            said[rank] = f"({_ranks(others)} {verb} for this rank in {calls}"
            if so_far.get(rank):
                said[rank] += f"; before, others waited {so_far[rank]:.3g} s for it"
            said[rank] += ")\n\n"
    return said


def _ranks(numbers: Sequence[int]) -> str:
    names = ", ".join(str(number) for number in sorted(numbers))
    return f"rank {names}" if len(numbers) == 1 else f"ranks {names}"


def read_crash(fd: int) -> str:
    """What faulthandler wrote to an outcome file when the rank crashed; empty if it did not."""
    size = os.fstat(fd).st_size
    if size <= STACKS_AT:
        return ""
    begin = max(STACKS_AT, size - _LONGEST_CRASH)
    written = os.pread(fd, size - begin, begin)
    # The last one: processes that the rank forked write to the same file.
    found = written.rfind(_CRASH_BEGINS)
    if found < 0:
        return ""
    text = written[found:].decode("utf-8", "replace")
    return without_our_frames(_CRASH_ENDS.split(text, maxsplit=1)[0]).strip()


def _wait_until_written(asked: list[Asked], seconds: float | None) -> None:
    """Until all have answered or ended, or had their time, twice."""
    by_themselves = time.monotonic() + (_BY_ITSELF_SECONDS if seconds is None else seconds)
    deadline = by_themselves + (_AT_MOST_SECONDS if seconds is None else 0)
    pause = _FIRST_LOOK_SECONDS
    while asked and time.monotonic() < deadline:
        time.sleep(pause)
        for each in asked:
            each.look()
        waited_for = [each for each in asked if not each.has_answered]
        if not waited_for:
            return
        if pause < _LOOK_SECONDS:  # too soon to tell one that waits from one that is on its way
            pause *= 2
            continue
        is_late = time.monotonic() >= by_themselves
        for each in waited_for:
            if each.size == each.start and not each.asked_in_c:
                each.ask_in_c_if_needed(is_late=is_late)


def without_our_frames(text: str) -> str:
    """A dump without what has called the user's function: ours, and in a fork the parent's.

    A rank that is past its function shows where we are, and a word about it.
    """
    kept: list[str] = []
    head, is_below = 0, False
    for line in text.splitlines(keepends=True):
        name = _name_of_ours(line)
        if not line.startswith("  File "):  # the head of another thread
            kept.append(line)
            head, is_below = len(kept), False
        elif name in _CALLERS and not is_below:
            is_below = True
            through = _name_of_ours(kept[-1]) if len(kept) > head else ""
            if through and name == _WORK:  # a lambda, through which that calls it
                kept.pop()
            if through == _TELL or name != _WORK:
                _say_what_is_done(kept, head)
        elif not is_below and name != "workers/report.py write_stacks":
            kept.append(line)
    return "".join(kept)


def _say_what_is_done(kept: list[str], head: int) -> None:
    """Add a word for the outermost frame of ours that there is one for."""
    for index in reversed(range(head, len(kept))):
        name = _name_of_ours(kept[index])
        if name in _PAST_FUNCTION:
            kept[index + 1 :] = []
            kept.insert(head, f"  (its function has ended: {_PAST_FUNCTION[name]})\n")
        if not name or name in _PAST_FUNCTION:
            return


def _name_of_ours(line: str) -> str:
    """``folder/file.py function`` of a frame of this package; empty for any other."""
    frame = _OUR_FRAME.fullmatch(line)
    return f"{frame[1]} {frame[2]}" if frame else ""


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
