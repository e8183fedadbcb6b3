"""Ending a job from outside: in order if it can, by force if it has to be.

The process that started it is asked, as by a scheduler: it passes the request on, and its program
sees how it ends. If it does not do that in time, what is left is killed.
"""

from __future__ import annotations

import re
import time
from contextlib import ExitStack, suppress

from rankspawn.cpython import raw_signal
from rankspawn.inspect.asking import Stranger
from rankspawn.workers.marker import GONE_SECONDS, kill_marked

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.inspect.finding import RunningJob

# Beside the grace period of its ranks: what their parent takes to kill and to reap.
_MARGIN_SECONDS = 5.0
_REST_OF_MARK = rb"[0-9a-f]*"


def stop_job(job: RunningJob, grace: float | None) -> tuple[bool, str]:
    """End it, and tell what happened.

    Args:
        job: Which one.
        grace: Seconds until what is left is killed; None for those that the job has, and some.

    Returns:
        Whether nothing of it is left, and a sentence.
    """
    began = time.monotonic()
    limit = job.grace + _MARGIN_SECONDS if grace is None else grace
    with ExitStack() as stack:
        ranks = _hold([rank.pid for rank in job.ranks if rank.is_alive], stack)
        marks = {mark for rank in ranks if (mark := full_mark(rank.pid, job.mark))}
        for parent in _hold([job.parent], stack):
            parent.send_signal(raw_signal.SIGTERM)
            # One that is stopped acts on it only when it goes on.
            parent.send_signal(raw_signal.SIGCONT)
        deadline = began + limit
        left = [rank for rank in ranks if not rank.wait(deadline)]
        seconds = time.monotonic() - began
        name = f"job {job.id} ({job.what})"
        if not left:
            count = f"all {len(ranks)} ranks" if len(ranks) > 1 else "its rank"
            return True, f"stopped {name}: {count} ended within {seconds:.1f} s of SIGTERM"
        for rank in left:
            rank.send_signal(raw_signal.SIGKILL)
        for mark in marks:
            kill_marked(mark)
        deadline = time.monotonic() + GONE_SECONDS
        stubborn = [rank for rank in left if not rank.wait(deadline)]
    if stubborn:
        pids = ", ".join(str(rank.pid) for rank in stubborn)
        return False, f"{name}: process {pids} is still there {GONE_SECONDS:.0f} s after SIGKILL"
    count = f"{len(left)} of {len(ranks)} ranks" if len(ranks) > 1 else "its rank"
    return True, f"stopped {name}: {count} did not end within {limit:g} s and had to be killed"


def _hold(pids: Sequence[int], stack: ExitStack) -> list[Stranger]:
    held = []
    for pid in pids:
        with suppress(OSError):  # it has ended
            stranger = Stranger(pid)
            stack.callback(stranger.close)
            held.append(stranger)
    return held


def full_mark(pid: int, part: str) -> str:
    """The whole of the mark that a rank carries; empty if it has ended."""
    for name in ("environ", "maps"):
        with suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
            if found := re.search(part.encode() + _REST_OF_MARK, file.read()):
                return found[0].decode()
    return ""
