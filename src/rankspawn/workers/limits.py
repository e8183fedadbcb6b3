"""Limits of the system that a start runs into, and what to do about them."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Mapping

# Descriptors that the rest of a program opens while workers are being started.
_SPARE = 64


def make_room_for_descriptors(count: int) -> None:
    """Raise the soft limit of open files if ``count`` more would not fit.

    Raises:
        OSError: They would not fit under the hard limit either.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + count + _SPARE
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise OSError(
            errno.EMFILE,
            f"{needed} open files are needed, but this process may have {hard} at most "
            "(the hard limit, see `ulimit -Hn`)",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def explain_start_failure(
    error: OSError, environ: Mapping[str, str], started: int, wanted: int
) -> str:
    """One sentence on a process that could not be started, and on the others."""
    story = f"{started} of {wanted} workers had been started and were ended again."
    if error.errno in (errno.EMFILE, errno.ENFILE):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"{story} The limit of open files is {soft} (hard limit {hard}): see `ulimit -n`."
    if error.errno == errno.EAGAIN:
        soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        return f"{story} The limit of processes is {soft} (`ulimit -u`), or the container's."
    if error.errno == errno.E2BIG:
        name = max(environ, key=lambda key: len(environ[key]))
        size = len(environ[name])
        return (
            f"{story} The environment is too large: its largest variable is {name}, {size} bytes."
        )
    if error.errno == errno.ENOMEM:
        return f"{story} There is not enough memory for another process."
    return story
