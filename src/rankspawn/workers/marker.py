"""The mark that every process of a job carries, and finding who carries it.

Teardown must reach whatever a worker started, also after a double fork or in a session of its
own, and must not touch anybody else. So each worker carries the job's id in two places:

* in its environment, which survives ``exec`` (``/proc/<pid>/environ``);
* as a mapping of a memory file with that name, which survives ``fork`` without ``exec``, even
  if all descriptors get closed (``/proc/<pid>/maps``).

The ids of nested jobs are added to those of the outer ones, so stopping an outer job finds the
inner one's processes as well.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rankspawn.descriptors import anonymous_file
from rankspawn.workers.inherited import MARK_SIZE

VARIABLE = "RANKSPAWN_JOB"
_PREFIX = "rankspawn-job-"
# How long a killed process may take to go. It is killed already; only the kernel can delay
# it, e.g. in an uninterruptible read from a network file system.
GONE_SECONDS = 5.0
# How often we look again if we found none, but somebody ended meanwhile: it may have been one of
# ours that had just started another. On a busy machine somebody always ends.
_LOOKS_IN_VAIN = 4
# About what it takes to become another program.
_EXECUTION_SECONDS = 0.001
# Places in /proc/<pid>/stat, counted from the state on, and a flag in it.
_STATE, _FLAGS, _START, _ENVIRONMENT = 0, 6, 19, slice(47, 49)
_IS_KERNEL_THREAD = 0x200000
# How /proc tells when a process was started.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def new_mark() -> str:
    """An id that no other job has; it begins with the time, see :func:`find_marked`."""
    return f"{time.clock_gettime_ns(_CLOCK) // _TICK_NS:012x}{os.urandom(16).hex()}"


def _time_of(mark: str) -> int:
    """When it was made, in the system's ticks since it was booted."""
    return int(mark[:12], 16)


def variable_value(mark: str) -> str:
    """The environment's entry for a job that is started by this process."""
    outer = os.environ.get(VARIABLE)
    return f"{outer}/{mark}" if outer else mark


def file_name(mark: str) -> str:
    """The name of the memory file that workers map."""
    return _PREFIX + mark


def make_mark_file(mark: str) -> int:
    """The file that workers map; nobody else may, or it would be taken for one of them."""
    fd = anonymous_file(_PREFIX + mark)
    os.ftruncate(fd, MARK_SIZE)
    return fd


@dataclass
class Doubts:
    """Why one look at all processes may have missed some that carry a mark.

    Attributes:
        ended: Those that ended while they were looked at. If one was of the job, what it started
            last may not have been listed yet.
        executing: One was just becoming another program. In that moment it has neither its old
            mappings nor its new environment.
    """

    ended: set[int] = field(default_factory=set)
    executing: bool = False


def find_marked(mark: str, doubts: Doubts | None = None) -> Iterator[int]:
    """The ids of all processes that carry the mark, this one excepted.

    Processes that are older than the mark are passed over: looking closer at every process of
    the machine would take longer than all else that a teardown does.
    """
    made = _time_of(mark)
    doubts = doubts or Doubts()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid() or _when_started(name) < made:
            continue
        if is_marked(int(name), mark, doubts):
            yield int(name)


def is_marked(pid: int, mark: str, doubts: Doubts) -> bool:
    """True if the process carries the mark; False also for one that we may not look at.

    Mappings first: if it becomes another program between the two looks, it had the mark as a
    mapping before, or has it in its environment after.
    """
    wanted = mark.encode()
    environ = b""
    with contextlib.suppress(OSError):
        if wanted in _read(f"/proc/{pid}/maps"):
            return True
    try:
        environ = _read(f"/proc/{pid}/environ")
    except PermissionError:  # somebody else's
        return False
    except OSError:
        pass
    if not environ:
        _say_why_empty(pid, doubts)
    return wanted in environ


def _say_why_empty(pid: int, doubts: Doubts) -> None:
    """Note it if nothing can be said of a process whose environment was found empty."""
    fields = _read_stat(str(pid))
    if not fields or fields[_STATE] in (b"Z", b"X"):
        doubts.ended.add(pid)
    elif not int(fields[_FLAGS]) & _IS_KERNEL_THREAD:
        start, end = fields[_ENVIRONMENT]
        # It has none yet, or it has one by now.
        doubts.executing |= end == b"0" or start != end


def _when_started(pid: str) -> float:
    """In ticks since boot; unknown, and so as late as can be, of one that is gone."""
    fields = _read_stat(pid)
    return int(fields[_START]) if fields else math.inf


def _read_stat(pid: str) -> list[bytes]:
    """From the third field on; the name, which may hold anything, is in parentheses before."""
    try:
        return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return []


def kill_marked(mark: str) -> list[int]:
    """Kill every process that carries the mark; return the ids of those that were there.

    All are stopped before the first is killed, so that none can fork while we look.
    """
    found: dict[int, int] = {}
    doubts = Doubts()
    deadline = time.monotonic() + GONE_SECONDS
    in_vain = 0
    try:
        while in_vain < _LOOKS_IN_VAIN:
            ended_before, doubts.executing = len(doubts.ended), False
            fresh = [pid for pid in find_marked(mark, doubts) if pid not in found]
            known = len(found)
            for pid in fresh:
                pidfd = _open_marked(pid, mark, doubts)
                if pidfd >= 0:
                    found[pid] = pidfd
                    _send(pidfd, signal.SIGSTOP)
            if len(found) > known:
                in_vain = 0
            elif (fresh or doubts.executing) and time.monotonic() < deadline:
                time.sleep(_EXECUTION_SECONDS)
            else:
                in_vain += 1 if len(doubts.ended) > ended_before else _LOOKS_IN_VAIN
        for pidfd in found.values():
            _send(pidfd, signal.SIGKILL)
        _wait_for_ends(found.values())
    finally:
        for pidfd in found.values():
            os.close(pidfd)
    return list(found)


def _open_marked(pid: int, mark: str, doubts: Doubts) -> int:
    """A pidfd; -1 if it ended, and its number may be a stranger's, or becomes another program."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return -1
    if is_marked(pid, mark, doubts):
        return pidfd
    os.close(pidfd)
    return -1


def _wait_for_ends(pidfds: Iterable[int]) -> None:
    """Until all are gone; bounded, because the kernel may hold one in a system call."""
    deadline = time.monotonic() + GONE_SECONDS
    for pidfd in pidfds:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll(max(0.0, deadline - time.monotonic()) * 1000)


def _send(pidfd: int, number: int) -> None:
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(pidfd, number)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()
