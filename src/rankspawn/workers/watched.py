"""A child that a thread waits for, where the system has no pidfd."""

from __future__ import annotations

import errno
import os
import signal
import threading

from rankspawn.descriptors import Owned, Waker
from rankspawn.portable import WATCHING
from rankspawn.workers.popen import WorkerPopen

# macOS has it from Python 3.13 on.
_HAS_WAITID = hasattr(os, "waitid")


class WatchedPopen(WorkerPopen):
    """A child of this process, without a pidfd.

    A thread waits for its end and leaves the status, so that the number stays the child's until
    it is reaped. multiprocessing's way, a pipe that the worker holds, would not tell an end as long
    as a process lives that the worker forked, and would tell one if it closes what it did not open.
    """

    def __init__(self, pid: int) -> None:
        self._let_go_of = False
        # Of one that the thread had to reap.
        self._early_status: int | None = None
        super().__init__(pid)

    def _send(self, number: int) -> None:
        with self._reaping:  # until then the number is the worker's
            if not self._let_go_of:
                os.kill(self.pid, number)

    def _open(self) -> Owned:
        if _HAS_WAITID:  # fails for whoever is no child of ours
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        ended = Waker()
        name = f"{WATCHING}{self.pid}"
        try:
            threading.Thread(target=self._watch, args=(ended,), name=name, daemon=True).start()
        except RuntimeError as error:  # the limit of processes counts threads, too
            ended.close()
            raise OSError(errno.EAGAIN, str(error)) from None
        return ended

    def _watch(self, ended: Waker) -> None:
        # They are for the threads of the program, which may be waiting for one.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            if _HAS_WAITID:
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            else:  # there is no way to look without reaping
                status = os.waitpid(self.pid, 0)[1]
                self._let_go_of = True
                self._early_status = os.waitstatus_to_exitcode(status)
        except ChildProcessError:  # somebody else has collected its status
            self._let_go_of = True
        finally:
            ended.wake()

    def _look(self) -> int:
        if self._early_status is not None:
            return self._early_status
        if self._let_go_of and not _HAS_WAITID:
            raise ChildProcessError(errno.ECHILD, os.strerror(errno.ECHILD))
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "only with WNOHANG there may be nothing"
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _let_go(self) -> None:
        self._let_go_of = True
        if _HAS_WAITID:
            os.waitid(os.P_PID, self.pid, os.WEXITED)
