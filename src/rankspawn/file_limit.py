"""The limit on the size of files (``ulimit -f``), which holds for files in memory as well.

Arguments, results and tracebacks are in such files, so a limit for logs or checkpoints may hit
them. The system says no more than "File too large"; here is what to say about it.
"""

from __future__ import annotations

import errno
import resource

# A worker's header, its mark, and a short traceback need this much.
_LEAST = 16 * 1024


def file_limit(pid: int = 0) -> int | None:
    """The limit of a process, of this one by default, in bytes; None if there is none."""
    try:
        soft, _ = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    except (OSError, AttributeError):  # not ours to look at; or there is no such call here
        return None
    return None if soft == resource.RLIM_INFINITY else soft


def check_room() -> None:
    """Make sure, before anything is started and half written, that workers can report.

    Raises:
        OSError: The limit leaves no room for that.
    """
    limit = file_limit()
    if limit is not None and limit < _LEAST:
        raise too_large(f"no worker can be started: its report takes {_LEAST} bytes at least")


def too_large(what: str) -> OSError:
    """The error for something that the limit leaves no room for: what it is that cannot be done."""
    return OSError(errno.EFBIG, f"{what}: File too large: {describe_limit()}")


def describe_limit() -> str:
    """The limit of this process, in words, and what to do about it."""
    return (
        f"the limit on the size of files is {file_limit()} bytes (RLIMIT_FSIZE); raise it "
        "(`ulimit -f unlimited`), or write less"
    )


def is_too_large(error: BaseException) -> bool:
    """Whether the limit is the cause, without any code of the error's class."""
    if not issubclass(type(error), OSError):
        return False
    number: object = OSError.__dict__["errno"].__get__(error)
    return number == errno.EFBIG and file_limit() is not None
