"""Ends the workers of a dead parent, and what they started. Runs in the guardian.

The workers are known by number and time of start, so nothing of them has to be read but that
time, which everybody may; a process that is not dumpable hides all else from a user who is not
root. What they started is found by the mark; or, if it hides that, as a child of one that is known,
which it is as long as that one lives. All are signalled by pidfd, or what stands in for it.

Loads little, and all of it before it is needed: each group that lasts has one such process.
"""

from __future__ import annotations

import os
import resource
import select
import sys
import time

from rankspawn.cpython import raw_signal
from rankspawn.workers.marker import (
    GONE_SECONDS,
    find_marked,
    hides_mark,
    kill_marked,
    list_processes,
    open_marked,
    open_process,
    parent_of,
    send,
    wait_for_ends,
    when_started,
)

# A process that was being started when its parent died carries the mark a little later. As long
# as it does not, it may have the lifeline; but so may a copy of the parent, and that for ever.
_CALM_LOOKS = 3
_LOOKS = 50
_LOOK_SECONDS = 0.1
_LIFELINE = 0


def main() -> None:
    """Wait for the parent's death, and end what it left."""
    mark, grace, table, parent = sys.argv[1:]
    for number in (raw_signal.SIGHUP, raw_signal.SIGINT, raw_signal.SIGTERM, raw_signal.SIGQUIT):
        raw_signal.signal(number, raw_signal.SIG_IGN)
    # Nothing is ever sent on either.
    _is_over(None, _LIFELINE, int(parent))
    end_orphans(mark, float(grace), int(table), _LIFELINE)


def _is_over(milliseconds: int | None, *fds: int) -> bool:
    """Wait until a lifeline is closed, or the process of a pidfd is gone; False if none is."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return bool(poller.poll(milliseconds))


def end_orphans(mark: str, grace: float, table: int, lifeline: int) -> None:
    """SIGTERM, the grace period, SIGKILL.

    Args:
        mark: What descendants of the workers are found by.
        grace: Seconds that all of them get.
        table: A file with a line for each worker.
        lifeline: Open as long as somebody has a copy of the parent's end.
    """
    _allow_many_descriptors()
    deadline = time.monotonic() + grace
    held: dict[int, int] = {}
    # Once more when all are gone: they may have left others.
    while _terminate_others(held, mark, table) and wait_for_ends(held.values(), deadline):
        pass
    calm = 0
    for _ in range(_LOOKS):
        # Those that cannot be found by the mark; none may fork while the others are looked for.
        _send(held, raw_signal.SIGSTOP)
        while hidden := _open_hidden(held):
            _send(hidden, raw_signal.SIGSTOP)
            held.update(hidden)
        _send(held, raw_signal.SIGKILL)
        calm = 0 if kill_marked(mark) else calm + 1
        if calm >= _CALM_LOOKS and _is_over(0, lifeline):
            break
        time.sleep(_LOOK_SECONDS)
    wait_for_ends(held.values(), time.monotonic() + GONE_SECONDS)


def _terminate_others(held: dict[int, int], mark: str, table: int) -> bool:
    """Send SIGTERM to all that are not held yet, and hold them; False if there were none."""
    fresh = {**_open_workers(table, held), **_open_descendants(mark, held)}
    # Before any of them is told to end, and its children are somebody else's.
    while hidden := _open_hidden({**held, **fresh}):
        fresh.update(hidden)
    _send(fresh, raw_signal.SIGTERM)
    _send(fresh, raw_signal.SIGCONT)  # which a stopped one needs to act
    held.update(fresh)
    return bool(fresh)


def _send(held: dict[int, int], number: int) -> None:
    for handle in held.values():
        send(handle, number)


def _open_workers(table: int, held: dict[int, int]) -> dict[int, int]:
    """Pid to handle of the workers that are still there."""
    found: dict[int, int] = {}
    # All but what follows the last end of a line: the parent may have died in the middle of one.
    for line in os.pread(table, os.fstat(table).st_size, 0).split(b"\n")[:-1]:
        pid, noted = map(int, line.split())
        if pid in held:
            continue
        try:
            handle = open_process(pid)
        except OSError:
            continue
        # In this order: if it ends between the two, whoever gets its number was started later.
        if when_started(pid) <= noted:
            found[pid] = handle
        else:
            os.close(handle)
    return found


def _open_descendants(mark: str, held: dict[int, int]) -> dict[int, int]:
    """Pid to handle of all others that carry the mark."""
    opened = ((pid, open_marked(pid, mark)) for pid in find_marked(mark) if pid not in held)
    return {pid: handle for pid, handle in opened if handle >= 0}


def _open_hidden(held: dict[int, int]) -> dict[int, int]:
    """Pid to handle of their children that are not held yet, and hide whether they are marked."""
    found: dict[int, int] = {}
    for pid in list_processes():
        parent = parent_of(pid)
        if parent not in held or pid in held or not hides_mark(pid):
            continue
        try:
            handle = open_process(pid)
        except OSError:
            continue
        # Not one that cannot be signalled, as with sudo. In this order: the parent still is who it
        # was when the child named it.
        if send(handle, 0) and parent_of(pid) == parent and send(held[parent], 0):
            found[pid] = handle
        else:
            os.close(handle)
    return found


def _allow_many_descriptors() -> None:
    """One for each process; the parent's limit was made for fewer."""
    try:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass
