"""The mark that every process of a job carries, finding who carries it, and the guardian.

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
import logging
import math
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rankspawn.descriptors import Owned, anonymous_file
from rankspawn.workers.inherited import MARK_SIZE

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import subprocess

# The name is in docs/reference.md, for whoever wants to hear of it.
logger: logging.Logger = logging.getLogger("rankspawn.workers.guardian")

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
_SHELL = "/bin/sh"
_LONGEST_GRACE = 1e6
# $1: what is searched for in /proc/*/environ, $2: in /proc/*/maps, $3: hundredths of a second.
# The time is the system's, because looking at all processes takes long where there are many.
_SCRIPT = r"""
trap "" HUP INT TERM QUIT
read -r _
marked() {
    # In this order: what becomes another program meanwhile is found in one of them.
    { grep -lsF -e "$2" /proc/[0-9]*/maps; grep -lsF -e "$1" /proc/[0-9]*/environ; } |
        while IFS=/ read -r _ _ pid _; do echo "$pid"; done
}
now() {
    IFS=". " read -r seconds hundredths _ < /proc/uptime
    echo $((seconds * 100 + 1$hundredths - 100))  # 09 alone would be read as octal
}
end=$(($(now) + $3))
kill -TERM $(marked "$1" "$2") 2>/dev/null
kill -CONT $(marked "$1" "$2") 2>/dev/null
while [ "$(now)" -lt "$end" ] && [ -n "$(marked "$1" "$2")" ]; do
    sleep 0.1
done
# A process that was being started at that moment may carry the mark a little later.
tries=50
calm=0
while [ "$tries" -gt 0 ] && [ "$calm" -lt 3 ]; do
    pids=$(marked "$1" "$2")
    if [ -z "$pids" ]; then
        calm=$((calm + 1))
        sleep 0.1
    else
        calm=0
        kill -STOP $pids 2>/dev/null
        kill -KILL $(marked "$1" "$2") $pids 2>/dev/null
    fi
    tries=$((tries - 1))
done
"""


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


def make_mark_file(mark: str) -> int:
    """The file that workers map; nobody else may, or it would be taken for one of them."""
    fd = anonymous_file(_PREFIX + mark)
    os.ftruncate(fd, MARK_SIZE)
    return fd


@dataclass
class Uncertainty:
    """Why one look at all processes may have missed some that carry a mark.

    Attributes:
        ended: Those that ended while they were looked at. If one was of the job, what it started
            last may not have been listed yet.
        executing: One was just becoming another program. In that moment it has neither its old
            mappings nor its new environment.
    """

    ended: set[int] = field(default_factory=set)
    executing: bool = False


def find_marked(mark: str, unsure: Uncertainty | None = None) -> Iterator[int]:
    """The ids of all processes that carry the mark, this one excepted.

    Processes that are older than the mark are passed over: looking closer at every process of
    the machine would take longer than all else that a teardown does.
    """
    made = _time_of(mark)
    unsure = unsure or Uncertainty()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid() or _when_started(name) < made:
            continue
        if is_marked(int(name), mark, unsure):
            yield int(name)


def is_marked(pid: int, mark: str, unsure: Uncertainty) -> bool:
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
    unsure = Uncertainty()
    deadline = time.monotonic() + GONE_SECONDS
    in_vain = 0
    try:
        while in_vain < _LOOKS_IN_VAIN:
            ended_before, unsure.executing = len(unsure.ended), False
            fresh = [pid for pid in find_marked(mark, unsure) if pid not in found]
            known = len(found)
            for pid in fresh:
                pidfd = _open_marked(pid, mark, unsure)
                if pidfd >= 0:
                    found[pid] = pidfd
                    _send(pidfd, signal.SIGSTOP)
            if len(found) > known:
                in_vain = 0
            elif (fresh or unsure.executing) and time.monotonic() < deadline:
                time.sleep(_EXECUTION_SECONDS)
            else:
                in_vain += 1 if len(unsure.ended) > ended_before else _LOOKS_IN_VAIN
        for pidfd in found.values():
            _send(pidfd, signal.SIGKILL)
        _wait_for_ends(found.values())
    finally:
        for pidfd in found.values():
            os.close(pidfd)
    return list(found)


def _open_marked(pid: int, mark: str, unsure: Uncertainty) -> int:
    """A pidfd; -1 if it ended, and its number may be a stranger's, or becomes another program."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return -1
    if is_marked(pid, mark, unsure):
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


class Guardian:
    """A tiny shell that ends one group's workers if this process dies; ``close`` ends itself.

    It blocks on a pipe whose other end only this process has. If that closes, this process is
    gone, by whatever signal and from whatever thread, and the shell does the teardown: SIGTERM,
    grace, SIGKILL to all that carry the job's mark.
    """

    # Rejected: PR_SET_PDEATHSIG fires when the *thread* that started the worker ends, does not
    # reach grandchildren, and means nothing under a fork server. A watching thread in each worker
    # needs the GIL, which a worker in C code may hold for ever.

    def __init__(self, mark: str, grace: float) -> None:
        read, write = os.pipe()
        self._lifeline = Owned(write)
        hundredths = str(int(min(max(0.0, grace), _LONGEST_GRACE) * 100))
        try:
            self._process: subprocess.Popen[bytes] | None = _start_shell(
                ["rankspawn-guardian", mark, _PREFIX + mark, hundredths], read
            )
        except OSError as error:
            logger.warning(
                "workers would outlive a killed parent: %s cannot be started (%s)", _SHELL, error
            )
            self._process = None
        finally:
            os.close(read)

    def close(self) -> None:
        """End it; a second call does nothing."""
        if self._process is not None and not self._lifeline.closed:
            # It may not have come to its first line yet, so asking it to leave would take longer.
            self._process.kill()
            self._process.wait()
        self._lifeline.close()


def _start_shell(arguments: list[str], lifeline: int) -> subprocess.Popen[bytes]:
    import subprocess  # not in the fence, a process that imports this module to find the marked

    class Shell(subprocess.Popen[bytes]):
        def __del__(self) -> None:
            """Say nothing: a copy of it that a forked process drops still runs, and shall."""

    return Shell(
        [_SHELL, "-c", _SCRIPT, *arguments],
        stdin=lifeline,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        # Not the job's own environment: the guardian must not carry the mark. And it needs grep
        # and sleep also if the program's PATH leads to neither.
        env={"PATH": os.environ.get("PATH", "") + os.pathsep + os.defpath},
        # A terminal that closes, or Ctrl-C in it, must not end the guardian.
        start_new_session=True,
    )
