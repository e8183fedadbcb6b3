"""What ``breakpoint()`` does in a rank: a debugger where there is a terminal, else a sentence.

Runs in the worker, when a breakpoint is reached. While one rank is debugged, the others pass their
breakpoints, or wait there until the debugged one has passed as many (``debug="hold"``): it counts
them in the file at which the ranks of a group can meet.
"""

from __future__ import annotations

import os
import stat
import sys
import time

from rankspawn.parallel_env import get_rank
from rankspawn.plan.environ import DEBUG_VARIABLE
from rankspawn.workers.meeting import MEETING_VARIABLE, PASSED_AT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

# What a rank has passed that ends.
_ALL = (1 << 64) - 1
# How often a rank that waits at a breakpoint looks; a person is at the prompt.
_LOOK_SECONDS = 0.1
_reached = 0


def stop(*args: Any, **options: Any) -> None:
    """What ``PYTHONBREAKPOINT`` names in the programs of ``rankrun``."""
    stop_at(sys._getframe(1), *args, has_input=reads_pipe(), **options)


def stop_at(frame: FrameType, *_: Any, has_input: bool = False, **options: Any) -> None:
    """Stop at this frame, pass it, wait at it, or say that nobody could talk to a debugger.

    Args:
        frame: Where.
        has_input: Somebody can talk to it, though there is no terminal.
        options: What ``breakpoint()`` was called with.

    Raises:
        RuntimeError: There is no terminal, and no other rank that is debugged.
    """
    global _reached  # noqa: PLW0603 - the process has come so far
    _reached += 1
    asked = os.environ.get(DEBUG_VARIABLE)
    rank = get_rank()
    if asked is not None:
        debugged, comma = asked.partition(",")[:2]
        if debugged != str(rank):
            if comma:
                _wait_until_passed(_reached)
            return
        _open_debugger(frame, options, counts=bool(comma))
    elif has_input or reads_terminal():
        _open_debugger(frame, options, counts=False)
    else:
        raise RuntimeError(explain())


def explain() -> str:
    """The sentence for a debugger that nobody could talk to."""
    rank = get_rank()
    return (
        f"a breakpoint in rank {rank}, which has no terminal: give it the one of this program with "
        f"spawn(..., debug={rank}) or rankrun --debug {rank}, or set PYTHONBREAKPOINT=0 to pass it"
    )


def reads_terminal() -> bool:
    """Whether what this process reads from is a terminal, its own or one that it opened."""
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # it was closed
        return False


def reads_pipe() -> bool:
    """Whether it reads what may hold words for a debugger: no terminal, but no ``/dev/null``."""
    try:
        return not stat.S_ISCHR(os.fstat(0).st_mode)
    except OSError:  # it was closed
        return False


def _open_debugger(frame: FrameType, options: dict[str, Any], *, counts: bool) -> None:
    import pdb

    class Debugger(pdb.Pdb):
        """Tells those who wait at the same breakpoint that this rank goes on."""

        def set_continue(self) -> None:
            super().set_continue()
            _note_passed(_reached)

    debugger = (Debugger if counts else pdb.Pdb)()
    if options.get("header") is not None:
        debugger.message(options["header"])
    if counts:
        import atexit

        atexit.register(_note_passed, _ALL)
    debugger.set_trace(frame)


def _note_passed(count: int) -> None:
    fd = _open_meeting(os.O_WRONLY)
    if fd is not None:
        os.pwrite(fd, count.to_bytes(8, "little"), PASSED_AT)
        os.close(fd)


def _wait_until_passed(count: int) -> None:
    fd = _open_meeting(os.O_RDONLY)
    if fd is None:
        return
    while int.from_bytes(os.pread(fd, 8, PASSED_AT), "little") < count:
        time.sleep(_LOOK_SECONDS)
    os.close(fd)


def _open_meeting(mode: int) -> int | None:
    """The file of the group; None if it is not to be had."""
    pid, number, *_ = os.environ.get(MEETING_VARIABLE, ":").split(":")
    try:
        return os.open(f"/proc/{pid}/fd/{number}", mode | os.O_CLOEXEC)
    except OSError:
        return None
