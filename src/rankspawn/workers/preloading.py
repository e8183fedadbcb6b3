"""Importing modules once for all workers of a fork server, and looking at what they left behind.

Runs in the fork server.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from importlib import import_module

_LONGEST_ERROR = 30_000
# What a driver's context is reached through. A forked copy of one does not work.
_ACCELERATORS = ("/dev/nvidia", "/dev/kfd", "/dev/xpu", "/dev/davinci", "/dev/cambricon")
# What a worker loads when it comes to need it, loaded once for all of them.
_NEEDED_BY_WORKERS = (
    *("_ctypes", "_pickle", "mmap", "rankspawn.workers.mp_identity"),
    # For its report: a rank that fails shall not take time to find out how to say so.
    *("ast", "traceback", "rankspawn.workers.exceptions", "rankspawn.workers.pickling"),
)


def load_what_workers_need() -> None:
    """Our own part; an interpreter may lack some of it."""
    for module in _NEEDED_BY_WORKERS:
        with contextlib.suppress(ImportError):
            import_module(module)


def preload(modules: Sequence[str]) -> tuple[str | None, list[str]]:
    """Import the modules.

    Returns:
        The traceback of the first one that fails, if any, and warnings about the others.
    """
    warnings: list[str] = []
    known = _obstacles()
    for module in modules:
        try:
            import_module(module)
        except BaseException:
            import traceback

            text = traceback.format_exc()[-_LONGEST_ERROR:]
            return f"preload={module!r} failed in the fork server:\n{text}", warnings
        found = _obstacles()
        warnings += [
            f"preload={module!r} {story}: workers are copies of the fork server, in which that "
            "does not work. Leave this module out of preload, or have it start nothing when it "
            "is imported."
            for story in found - known
        ]
        known |= found
    return None, warnings


def _obstacles() -> set[str]:
    """What this process has that does not survive a fork, in words."""
    stories = {f"opened {device}" for device in _open_accelerators()}
    python_threads = [one for one in threading.enumerate() if one is not threading.main_thread()]
    stories.update(f"started the thread {one.name!r}" for one in python_threads)
    if not python_threads and _foreign_threads():
        stories.add("started threads that stay while this process forks")
    return stories


def _open_accelerators() -> set[str]:
    paths = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.startswith(_ACCELERATORS):
                paths.add(path)
    return paths


def _foreign_threads() -> bool:
    """Threads of C code that do not make way for a fork.

    OpenBLAS, for one, has threads, ends them before each fork and starts them anew when they are
    needed; so a fork is tried, and those that are still there afterwards count.
    """
    if _count_threads() == 1:
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return _count_threads() > 1


def _count_threads() -> int:
    return len(os.listdir("/proc/self/task"))
