"""Whether this system has the calls that supervision is built on, and what stands in for them.

Old kernels, sandboxes (gVisor, the seccomp profiles of older container engines) and other Unix
systems lack some of them. Then all of them are done without: one way that is tested as a whole,
rather than a patch for each combination. ``docs/reference.md`` says what it cannot promise.

The guardian imports this, which loads little.
"""

from __future__ import annotations

import errno
import os

from rankspawn.cpython import raw_signal

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable

# The name is in docs/reference.md: whoever sets it does without these calls also where they work.
FORCING_VARIABLE = "RANKSPAWN_PORTABLE"
# How names of threads begin that wait for workers. They hold no lock, so that forks may be made.
WATCHING = "rankspawn-waits-for-"
# How often a worker looks whether its parent is there, if its program wants to know.
_LOOK_SECONDS = 0.1
_is_portable: bool | None = None


def is_portable() -> bool:
    """Processes are started and supervised without the calls of newer Linux.

    Decided once, before the first start: descriptors of one kind and calls of the other do not
    go together.
    """
    global _is_portable  # noqa: PLW0603 - the process is in this state, not an object
    if _is_portable is None:
        # A fork server looks at itself in /proc before it forks.
        _is_portable = is_forced() or not has_proc() or bool(missing_calls())
    return _is_portable


def is_forced() -> bool:
    """Somebody wants to do without these calls."""
    return os.environ.get(FORCING_VARIABLE, "0") not in ("", "0")


def forced_alike() -> dict[str, str]:
    """Variables for a process of ours that has to decide as this one did."""
    return {FORCING_VARIABLE: "1"} if is_portable() else {}


def has_proc() -> bool:
    """Processes can be looked at in /proc; else only this process's children are known."""
    return os.path.exists("/proc/self/stat")


def missing_calls() -> list[str]:
    """The system calls that this Python lacks, or that the kernel does not have or allow."""
    # Tried, not looked up: a container's seccomp profile may forbid what the kernel has.
    return [name for name, attempt in _ATTEMPTS.items() if not _works(attempt)]


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError as error:
        # That there are too few of something says nothing of the call; whoever needs it will.
        return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    except AttributeError:
        return False
    return True


def _open_self() -> int:
    return os.pidfd_open(os.getpid())


def _try_signal() -> None:
    pidfd = _open_self()
    try:
        raw_signal.pidfd_send_signal(pidfd, 0)
    finally:
        os.close(pidfd)


def _try_wait() -> None:
    pidfd = _open_self()
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # it knows what was asked: this process is no child of its own
        pass
    finally:
        os.close(pidfd)


# close_range is not among them: Python itself does without it.
_ATTEMPTS: dict[str, Callable[[], object]] = {
    "pidfd_open": lambda: os.close(_open_self()),
    "pidfd_send_signal": _try_signal,
    "waitid(P_PIDFD)": _try_wait,
    "memfd_create": lambda: os.close(open_memory("rankspawn-try")),
    "eventfd": lambda: os.close(os.eventfd(0, os.EFD_CLOEXEC)),
}


def open_event(*, is_set: bool = False) -> int:
    """A descriptor that is readable once 8 bytes were written to it, until they are read."""
    if is_portable():
        fd = _open_fifo()
        if is_set:
            os.write(fd, bytes(8))
        return fd
    return os.eventfd(is_set, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def _open_fifo() -> int:
    """A pipe with one number for both ends, as an eventfd has it; its name is gone already."""
    import tempfile

    folder = tempfile.mkdtemp(prefix="rankspawn-", dir=_temporary_folder())
    path = os.path.join(folder, "event")
    try:
        os.mkfifo(path, 0o600)
        try:
            return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.unlink(path)
    finally:
        os.rmdir(folder)


def open_pipe() -> tuple[int, int]:
    """Both ends of a pipe that nobody waits for; macOS has no ``pipe2``."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def open_memory(name: str) -> int:
    """The descriptor of a new file in memory."""
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def open_unlinked(name: str) -> int:
    """The descriptor of a new file on disk whose name is gone already."""
    import tempfile

    fd, path = tempfile.mkstemp(prefix=name, dir=_temporary_folder())
    os.unlink(path)
    return fd


def _temporary_folder() -> str:
    """Where temporary files go; or what keeps any from being made."""
    import tempfile

    from rankspawn.file_limit import check_room

    # tempfile tries to write to one folder after the other, and that it found none is all that it
    # says, also where nothing can be opened or written at all.
    check_room()
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        os.close(os.open(os.devnull, os.O_RDONLY))
        raise


def open_parent(pid: int) -> int:
    """A descriptor that is readable once the parent of this worker is gone."""
    if is_portable():
        event = open_event()
        import _thread

        _thread.start_new_thread(_watch_parent, (pid, os.getppid(), event))
        return event
    try:
        return os.pidfd_open(pid)
    except OSError:  # it is
        return open_event(is_set=True)


def _watch_parent(pid: int, adopter: int, event: int) -> None:
    """Set the event when the parent is gone, or whoever forked this process in its name."""
    import time

    before = os.fstat(event)
    while os.getppid() == adopter and _exists(pid):
        time.sleep(_LOOK_SECONDS)
    try:
        # The program may have closed it, and have a file of its own by this number.
        if os.path.samestat(before, os.fstat(event)):
            os.write(event, bytes(8))
    except OSError:
        pass


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's by now
        return True
    return True
