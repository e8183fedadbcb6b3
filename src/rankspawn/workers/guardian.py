"""The guardian: the process that ends one group's workers if their parent dies.

It is two programs, one after the other in the same process:

* a shell, which starts in less than a millisecond and sleeps, so that a group that ends soon
  has paid for no more (an interpreter takes ten times that);
* this Python (``orphans``), which the shell becomes after a moment, or when the parent dies
  before. It watches the parent by pidfd, and from then on needs no fork and no other program.

``benchmarks/guardians.py`` measures this beside what was rejected.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys

from rankspawn.descriptors import Owned, anonymous_file
from rankspawn.portable import forced_alike, has_proc, is_portable
from rankspawn.telling import get_logger
from rankspawn.workers.marker import ticks_since_boot

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import logging
    from typing import Any

    from rankspawn.workers.worker import Worker

# The name is in docs/reference.md, for whoever wants to hear of it.
logger: logging.Logger = get_logger(__name__)

_SHELL = "/bin/sh"
# Builtins only: where no more processes may be made, it becomes Python all the same. ``read``
# ends with the lifeline, or after the nap, which for a shell is an error of its input. Busybox
# polls before it reads, so it never sees that one; it has -t, as dash has not, which then says 2.
_SCRIPT = 'trap "" HUP INT TERM QUIT; read -r -t 1 _; [ $? -ne 2 ] || read -r _; exec "$@"'
# How long it stays a shell. Long against starting a group, and all that a parent's death can
# come late if a copy of it keeps the lifeline open.
_NAP_SECONDS = 0.25
_LONGEST_GRACE = 1e6
# This package's folder, found by its place: the guardian needs nothing of the program's path.
_ROOT = os.path.abspath(__file__).removesuffix(os.path.join("rankspawn", "workers", "guardian.py"))
_CODE = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); from rankspawn.workers.orphans import main; main()"
)


class Guardian:
    """A process that ends one group's workers if this process dies; ``close`` ends itself.

    This process is dead when its pidfd says so, or when the lifeline closes, whose other end only
    this process should have. Both are needed: C code may fork a copy of this process, which keeps
    the lifeline; and a process that becomes another program goes on to live.
    """

    # Rejected: PR_SET_PDEATHSIG fires when the *thread* that started the worker ends, does not
    # reach grandchildren, and means nothing under a fork server. A watching thread in each worker
    # needs the GIL, which a worker in C code may hold for ever. A guardian that is Python from the
    # start takes 6 ms of a core from a start that takes 4. A fork of this process keeps its
    # memory, and takes the longer the larger it is. One guardian for all groups would stay when
    # they are gone, a child that the program did not start.

    def __init__(self, mark: str, grace: float) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        ours, theirs = socket.socketpair()
        self._lifeline = Owned(ours.detach())
        # A line for each worker; in a file, which the guardian need not read until it matters.
        self._table = Owned(anonymous_file("rankspawn-guarded"))
        with theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(_NAP_SECONDS))
            try:
                if has_proc():  # or it would find nobody
                    seconds = min(max(0.0, grace), _LONGEST_GRACE)
                    self._process = _start(theirs.fileno(), self._table.fileno(), mark, seconds)
            except OSError as error:
                logger.warning(
                    "workers would outlive a killed parent: a guardian cannot be started (%s)",
                    error,
                )

    def watch(self, pid: int) -> None:
        """End this worker, too, which nobody has reaped yet."""
        if not self._table.closed:
            # Whoever has this number and was started later is somebody else.
            line = f"{pid} {ticks_since_boot()}\n"
            try:
                os.write(self._table.fileno(), line.encode())
            except OSError as error:  # e.g. no memory; then there is still the mark
                logger.warning("pid %d could outlive a killed parent: %s", pid, error)

    def close(self) -> None:
        """End it; a second call does nothing."""
        if self._process is not None and not self._lifeline.closed:
            # It may not have come to its first line yet, so asking it to leave would take longer.
            try:
                self._process.kill()
            except PermissionError:
                # This process has given up the rights it had, and the guardian still has them: it
                # ends what is left of the workers, as if this process had died.
                self._lifeline.close()
            self._process.wait()
        self._lifeline.close()
        self._table.close()


class Guarded(list["Worker"]):
    """The workers that run so far; the guardian hears of each at once."""

    def __init__(self, guardian: Guardian) -> None:
        super().__init__()
        self._guardian = guardian

    def append(self, worker: Worker) -> None:
        """Have it watched over."""
        super().append(worker)
        if not worker.popen.status_lost:  # then its number may be a stranger's
            self._guardian.watch(worker.popen.pid)


class _Process(subprocess.Popen[bytes]):
    def __del__(self) -> None:
        """Say nothing: a copy of it that a forked process drops still runs, and shall."""


def _start(lifeline: int, table: int, mark: str, seconds: float) -> subprocess.Popen[bytes]:
    # Without a pidfd there is only the lifeline, which a copy of this process may keep open. To
    # look at /proc from time to time would wake an idle machine.
    this = os.dup(lifeline) if is_portable() else os.pidfd_open(os.getpid())
    try:
        arguments = [mark, str(seconds), str(table), str(this)]
        python = [_interpreter(), "-I", "-S", *_flags(), "-c", _CODE, *arguments]
        # Where there is none, it is Python at once, which takes a little longer.
        shell = [_SHELL, "-c", _SCRIPT, "rankspawn-guardian"] if os.path.exists(_SHELL) else []
        return _Process(
            [*shell, *python],
            stdin=lifeline,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(table, this),
            cwd="/",
            # Not the job's own environment: the guardian must not carry the mark. But what Python
            # needs to be loaded, and which way is taken.
            env={
                **{name: value for name, value in os.environ.items() if name.startswith("LD_")},
                **forced_alike(),
            },
            # A terminal that closes, or Ctrl-C in it, must not end the guardian.
            start_new_session=True,
        )
    finally:
        os.close(this)


def _interpreter() -> str:
    """The Python that workers are started with.

    Raises:
        FileNotFoundError: There is none.
    """
    # Not imported for this: only what the program told multiprocessing counts.
    spawn: Any = sys.modules.get("multiprocessing.spawn")
    executable = (spawn and spawn.get_executable()) or sys.executable
    if not executable:
        raise FileNotFoundError("sys.executable is empty")
    path = os.fsdecode(executable)
    # Now rather than when it is needed, where nobody would hear of it.
    if os.sep in path and not os.path.exists(path):
        raise FileNotFoundError(f"there is no {path}")
    return path


def _flags() -> list[str]:
    """What a variable may have told this Python, and would not tell an isolated one."""
    return ["-B"] if sys.dont_write_bytecode else []


def _timeval(seconds: float) -> bytes:
    """As a socket's options have it."""
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
