"""The mark that every process of a job carries, and finding who carries it.

Teardown must reach whatever a worker started, also after a double fork or in a session of its
own, and must not touch anybody else. So each worker carries the job's id in two places:

* in its environment, which survives ``exec`` (``/proc/<pid>/environ``);
* as a mapping of a memory file with that name, which survives ``fork`` without ``exec``, even
  if all descriptors get closed (``/proc/<pid>/maps``).

The ids of nested jobs are added to those of the outer ones, so stopping an outer job finds the
inner one's processes as well.

The guardian and the fence import this as well, each a process of its own: it loads little.
"""

from __future__ import annotations

import os
import select
import time

from rankspawn.cpython import raw_signal
from rankspawn.portable import is_portable
from rankspawn.workers.inherited import MARK_SIZE

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VARIABLE = "RANKSPAWN_JOB"
_PREFIX = "rankspawn-job-"
# How long a killed process may take to go. It is killed already; only the kernel can delay
# it, e.g. in an uninterruptible read from a network file system.
GONE_SECONDS = 5.0
# How often we look again if we found none, but somebody ended meanwhile: it may have been one of
# ours that had just started another. On a busy machine somebody always ends.
_LOOKS_IN_VAIN = 4
# The system's waits cannot take more than 24 days.
_LONGEST_WAIT = 1e6
# How often a process is looked at that cannot be waited for.
_LOOK_SECONDS = 0.01
# About what it takes to become another program.
_EXECUTION_SECONDS = 0.001
# Places in /proc/<pid>/stat, counted from the state on, and a flag in it.
_STATE, _PARENT, _FLAGS, _START, _ENVIRONMENT = 0, 1, 6, 19, slice(47, 49)
_IS_KERNEL_THREAD = 0x200000
# Later than any process was started.
_NEVER = 1 << 63
# How /proc tells when a process was started.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def new_mark() -> str:
    """An id that no other job has; it begins with the time, see :func:`find_marked`."""
    return f"{ticks_since_boot():012x}{os.urandom(16).hex()}"


def ticks_since_boot() -> int:
    """The time as /proc tells when a process was started."""
    return time.clock_gettime_ns(_CLOCK) // _TICK_NS


def _time_of(mark: str) -> int:
    """When it was made, in the system's ticks since it was booted."""
    return int(mark[:12], 16)


def variable_value(mark: str) -> str:
    """The environment's entry for a job that is started by this process."""
    outer = os.environ.get(VARIABLE)
    return f"{outer}/{mark}" if outer else mark


def make_mark_file(mark: str) -> int:
    """The file that workers map; nobody else may, or it would be taken for one of them."""
    from rankspawn.descriptors import anonymous_file  # not in the guardian

    fd = anonymous_file(_PREFIX + mark)
    os.ftruncate(fd, MARK_SIZE)
    return fd


class Uncertainty:
    """Why one look at all processes may have missed some that carry a mark.

    Attributes:
        ended: Those that ended while they were looked at. If one was of the job, what it started
            last may not have been listed yet.
        executing: One was just becoming another program. In that moment it has neither its old
            mappings nor its new environment.
    """

    def __init__(self) -> None:
        self.ended: set[int] = set()
        self.executing: bool = False


def find_marked(mark: str, unsure: Uncertainty | None = None) -> Iterator[int]:
    """The ids of all processes that carry the mark, this one excepted.

    Processes that are older than the mark are passed over: looking closer at every process of
    the machine would take longer than all else that a teardown does.
    """
    made = _time_of(mark)
    unsure = unsure or Uncertainty()
    for pid in list_processes():
        if pid == os.getpid() or when_started(pid) < made:
            continue
        if is_marked(pid, mark, unsure):
            yield pid


def list_processes() -> list[int]:
    """The numbers of all processes that there are."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:  # another system, or not mounted: then nobody can be found
        return []


def is_marked(pid: int, mark: str, unsure: Uncertainty) -> bool:
    """True if the process carries the mark; False also for one that we may not look at.

    Mappings first: if it becomes another program between the two looks, it had the mark as a
    mapping before, or has it in its environment after.
    """
    wanted = mark.encode()
    environ = b""
    try:
        if wanted in _read(f"/proc/{pid}/maps"):
            return True
    except OSError:
        pass
    try:
        environ = _read(f"/proc/{pid}/environ")
    except PermissionError:  # somebody else's
        return False
    except OSError:
        pass
    if not environ:
        _say_why_empty(pid, unsure)
    return wanted in environ


def _say_why_empty(pid: int, unsure: Uncertainty) -> None:
    """Note it if nothing can be said of a process whose environment was found empty."""
    fields = _read_stat(str(pid))
    if not fields or fields[_STATE] in (b"Z", b"X"):
        unsure.ended.add(pid)
    elif not int(fields[_FLAGS]) & _IS_KERNEL_THREAD:
        start, end = fields[_ENVIRONMENT]
        # It has none yet, or it has one by now.
        unsure.executing |= end == b"0" or start != end


def when_started(pid: int) -> int:
    """In ticks since boot; unknown, and so as late as can be, of one that is gone."""
    fields = _read_stat(str(pid))
    return int(fields[_START]) if fields else _NEVER


def parent_of(pid: int) -> int:
    """Whose child it is, which everybody may know; 0 of one that is gone."""
    fields = _read_stat(str(pid))
    return int(fields[_PARENT]) if fields else 0


def hides_mark(pid: int) -> bool:
    """We may not look at it: it is not dumpable, or somebody else's."""
    try:
        _read(f"/proc/{pid}/environ")
    except PermissionError:
        return True
    except OSError:
        pass
    return False


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
    unsure = Uncertainty()
    deadline = time.monotonic() + GONE_SECONDS
    in_vain = 0
    try:
        while in_vain < _LOOKS_IN_VAIN:
            ended_before, unsure.executing = len(unsure.ended), False
            fresh = [pid for pid in find_marked(mark, unsure) if pid not in found]
            known = len(found)
            for pid in fresh:
                handle = open_marked(pid, mark, unsure)
                if handle >= 0:
                    found[pid] = handle
                    send(handle, raw_signal.SIGSTOP)
            if len(found) > known:
                in_vain = 0
            elif (fresh or unsure.executing) and time.monotonic() < deadline:
                time.sleep(_EXECUTION_SECONDS)
            else:
                in_vain += 1 if len(unsure.ended) > ended_before else _LOOKS_IN_VAIN
        for handle in found.values():
            send(handle, raw_signal.SIGKILL)
        # Bounded, because the kernel may hold one in a system call.
        wait_for_ends(found.values(), time.monotonic() + GONE_SECONDS)
    finally:
        for handle in found.values():
            os.close(handle)
    return list(found)


def open_marked(pid: int, mark: str, unsure: Uncertainty | None = None) -> int:
    """A handle; -1 if it ended, and its number may be a stranger's, or becomes another program."""
    try:
        handle = open_process(pid)
    except OSError:
        return -1
    if is_marked(pid, mark, unsure or Uncertainty()):
        return handle
    os.close(handle)
    return -1


def open_process(pid: int) -> int:
    """A handle of a process, which cannot become a stranger's: a pidfd, or its folder in /proc.

    Raises:
        OSError: There is no such process.
    """
    if not is_portable():
        return os.pidfd_open(pid)
    # What is opened below it is that process, or nothing, whoever has the number by then.
    return os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _pid_of(folder: int) -> int:
    """The number of a process that is held by its folder; 0 if it has ended."""
    try:
        fd = os.open("stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return 0
    try:
        number, _, rest = os.read(fd, 4096).partition(b" ")
        return 0 if rest.rpartition(b")")[2].split()[_STATE] in (b"Z", b"X") else int(number)
    except OSError:  # it ended just now
        return 0
    finally:
        os.close(fd)


def wait_for_ends(handles: Iterable[int], deadline: float) -> bool:
    """Wait until all are gone; False if one is not when the (monotonic) time has come."""
    gone = True
    wait = _look_at_folder if is_portable() else _poll_pidfd
    for handle in handles:
        gone = wait(handle, deadline) and gone
    return gone


def _poll_pidfd(pidfd: int, deadline: float) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    left = min(max(0.0, deadline - time.monotonic()), _LONGEST_WAIT)
    return bool(poller.poll(left * 1000))


def _look_at_folder(folder: int, deadline: float) -> bool:
    while _pid_of(folder):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def send(handle: int, number: int) -> bool:
    """Send a signal; False, and nothing happens, if it ended, or is not ours to signal."""
    try:
        if not is_portable():
            raw_signal.pidfd_send_signal(handle, number)
        elif pid := _pid_of(handle):
            # By number after all, but of one that was there a moment ago.
            os.kill(pid, number)
        else:
            return False
    except OSError:
        return False
    return True


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()
