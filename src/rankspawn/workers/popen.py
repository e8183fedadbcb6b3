"""One process: what it is started with, and how it is signalled and reaped."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Mapping, Sequence

from rankspawn.cpython import interpreter_flags
from rankspawn.descriptors import Owned
from rankspawn.portable import is_portable, open_event
from rankspawn.supervise.outcome import STATUS_LOST

# The folder that holds this package: a worker finds it there whatever its own path says.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class WorkerPopen:
    """A started worker, a child of this process.

    A handler of a signal may raise, or wait for the same worker, between any two lines. So its
    status is looked at first, which can be done again, and let go of once it is kept here.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.status_lost: bool = False
        # This process was not permitted to signal it.
        self.out_of_reach: bool = False
        # What its report may refer to, and so has to be kept as long as that.
        self.referred_to: object = None
        # Two threads may see the end at once; a handler waits in the thread that it interrupts.
        self._reaping = threading.RLock()
        # multiprocessing's own sentinel is a pipe whose other end the worker's children inherit,
        # so it does not fire while one of them lives. And a signal through a pidfd cannot hit a
        # stranger who got the same process id.
        try:
            self._pidfd = self._open()
        except (ProcessLookupError, ChildProcessError):
            # It ended already, and the system or somebody else has collected its status. An
            # event that is readable from the start stands for it in every selector.
            self._pidfd = Owned(open_event(is_set=True))
            self.returncode, self.status_lost = STATUS_LOST, True
        self._seen: int | None = None
        self.sentinel: int = self._pidfd.fileno()

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code, minus the number for a signal; None while it runs."""
        return self.wait(0.0 if flag & os.WNOHANG else None)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end, and reap; None if the time ran out first, and in a forked child."""
        if self._pidfd.closed:
            return self.returncode
        if self.returncode is None and is_readable(self.sentinel, timeout):
            with self._reaping:
                if self.returncode is None:
                    self._collect()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens if the process ended."""
        if self.returncode is None:
            try:
                self._send(number)
            except ProcessLookupError:
                return
            except PermissionError:
                self.out_of_reach = True
                raise

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def interrupt(self) -> None:
        """Send SIGINT."""
        self.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Let go of the descriptor, unless the end is still to be seen by it.

        Without it nobody could: multiprocessing, which waits for its children at exit, would look
        at whatever has its number by then. What is kept goes with this object.
        """
        if self.poll() is not None:
            self._pidfd.close()

    def _send(self, number: int) -> None:
        signal.pidfd_send_signal(self.sentinel, number)

    def _collect(self) -> None:
        try:
            if self._seen is None:
                self._seen = self._look()
            self._let_go()
        except ChildProcessError:
            # SIGCHLD is ignored in this program, or something waited for every child; or an
            # exception came right after we let go of it, and its status is known.
            self.status_lost = self._seen is None
        self.returncode = STATUS_LOST if self._seen is None else self._seen

    def _open(self) -> Owned:
        """A pidfd; ProcessLookupError or ChildProcessError if it was reaped already."""
        return Owned(_open_child(self.pid))

    def _look(self) -> int:
        """The exit code of the ended process, which stays there to be looked at."""
        ended = os.waitid(os.P_PIDFD, self.sentinel, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "only with WNOHANG there may be nothing"
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _let_go(self) -> None:
        """Have the system forget it."""
        os.waitid(os.P_PIDFD, self.sentinel, os.WEXITED)


def _open_child(pid: int) -> int:
    """A pidfd of a child of this process, not of a stranger who got its number meanwhile."""
    pidfd = os.pidfd_open(pid)
    try:
        # Fails for whoever is no child of ours; WNOWAIT leaves the status to be reaped.
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except BaseException:
        os.close(pidfd)
        raise
    return pidfd


def adopt_child(pid: int) -> WorkerPopen:
    """Take charge of a process that was just started; if that fails, it is ended."""
    try:
        if is_portable():
            from rankspawn.workers.watched import WatchedPopen

            return WatchedPopen(pid)
        return WorkerPopen(pid)
    except BaseException:
        end_child(pid)
        raise


def end_child(pid: int) -> None:
    """Kill and reap a process that was just started."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def is_readable(fd: int, timeout: float | None) -> bool:
    """Wait until there is something to read, or the time is over."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if timeout is None else max(0.0, timeout) * 1000))


def whole_environment(changes: Mapping[str, str | None], *, has_log: bool) -> dict[str, str]:
    """This process's environment with the changes; None removes a variable."""
    # What a killed worker printed last is what its log is read for.
    unbuffered = {"PYTHONUNBUFFERED": "1"} if has_log else {}
    merged = {**unbuffered, **os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def command(module: str, arguments: Sequence[object]) -> list[str]:
    """This interpreter, with this process's flags, running ``main()`` of the module."""
    # Our folder comes first only for our own package, and the current one not at all: neither
    # may stand before the standard library while the worker gets ready.
    code = (
        f"import sys; sys.path.insert(0, {_ROOT!r}); import rankspawn; "
        f"sys.path[:] = filter(None, sys.path[1:]); from {module} import main; main()"
    )
    from multiprocessing import spawn  # programs are executed without it

    # What multiprocessing.set_executable() was given counts, as it does for multiprocessing.
    executable = spawn.get_executable() or sys.executable
    if not executable:
        raise RuntimeError(
            "there is no interpreter to start workers with: sys.executable is not set, as in a "
            "program that embeds Python; call multiprocessing.set_executable(), or use "
            "start_method='fork'"
        )
    return [os.fsdecode(executable), *interpreter_flags(), "-c", code, *map(str, arguments)]


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
