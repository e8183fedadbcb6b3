"""Groups with a fault in one of their ranks, started by this process."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal

import psutil
from soaking.work import GRACE_SECONDS, HANG_SECONDS, HUGE, work

import rankspawn
from rankspawn import ProcessException, ProcessExitedException, ProcessRaisedException
from rankspawn.workers import forkserver, marker

FAULTS = ("none", "raise", "exit", "vanish", "kill", "segfault", "stop", "huge")


def run_group(fault: str, method: str, rng: random.Random) -> tuple[str, list[str]]:
    """The verdict on a group, and what it left."""
    before = descriptors()
    nprocs = rng.randint(1, 4)
    which = rng.randrange(nprocs)
    leave_children = fault not in ("none", "huge") and rng.random() < 0.3
    mark, verdict = _run_group(fault, method, nprocs, which, leave_children)
    left = [f"process {pid}" for pid in marker.find_marked(mark)]
    return verdict, left + leaks(before)


def descriptors() -> set[str]:
    """The open ones of this process."""
    return set(os.listdir("/proc/self/fd"))


def leaks(before: set[str]) -> list[str]:
    """Children that run or were not reaped, and descriptors that were not open before."""
    gc.collect()
    forkserver.stop_servers()
    left = [_end(child) for child in psutil.Process().children() if not _is_tracker(child)]
    after = descriptors()
    if len(after) <= len(before):
        return left
    opened = sorted(_target(number) for number in after - before)
    return [*left, f"{len(after) - len(before)} descriptors: {', '.join(filter(None, opened))}"]


def _target(number: str) -> str:
    """What a descriptor stands for; nothing if it was closed meanwhile."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{number}")
    return ""


def _is_tracker(child: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):  # a zombie has no command line
        return "resource_tracker" in " ".join(child.cmdline())
    return False


def _end(child: psutil.Process) -> str:
    """What it is; the next round shall not find it again."""
    story = f"child {child.pid} ({child.status()})"
    child.kill()
    child.wait()
    return story


def _run_group(
    fault: str, method: str, nprocs: int, which: int, leave_children: bool
) -> tuple[str, str]:
    context = rankspawn.spawn(
        work,
        args=(which, fault, leave_children),
        nprocs=nprocs,
        backend="gloo",
        start_method=method,
        join=False,
        grace_period=GRACE_SECONDS,
    )
    mark = context._group.mark
    try:
        if fault == "stop":
            context.join(timeout=0.2)
            context.terminate()
        elif not context.join(timeout=HANG_SECONDS):
            context.terminate()
            return mark, "hang"
        context.join()
        results = context.results()
    except ProcessException as error:
        return mark, _judge(fault, which, error)
    expected = [HUGE] * nprocs if fault == "huge" else list(range(nprocs))
    got = [len(one) if isinstance(one, bytes) else one for one in results]
    return mark, "expected" if got == expected else f"results {got}"


def _judge(fault: str, which: int, error: ProcessException) -> str:
    wanted: dict[str, tuple[type[ProcessException], int | None]] = {
        "raise": (ProcessRaisedException, None),
        "exit": (ProcessExitedException, 7),
        "vanish": (ProcessExitedException, 0),
        "kill": (ProcessExitedException, -signal.SIGKILL),
        "segfault": (ProcessExitedException, -signal.SIGSEGV),
        "stop": (ProcessExitedException, None),
    }
    kind, code = wanted.get(fault, (ProcessException, -1))
    fits = isinstance(error, kind) and (fault == "stop" or error.rank == which)
    fits &= code is None or getattr(error, "exit_code", None) == code
    return "expected" if fits else f"{type(error).__name__}: {str(error)[:200]}"
