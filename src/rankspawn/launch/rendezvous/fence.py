"""Kills workers whose node may have lost its lease, whatever became of the launcher.

A small process outside of the launcher, which tells it up to when the lease is good and which
marks the workers carry. When that time passes without another word it kills all that carry
them. It does not matter whether the launcher is stopped, swapped out, blocked or dead.

The guardian of a group (``workers.guardian``) is the gentle one of the two: it gives the workers
of a dead launcher their grace period, which may be longer than the lease. Where they are gone
before, the fence, which then is all that is left of the node, gives its lease back (``last_word``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time

from rankspawn.descriptors import Owned
from rankspawn.portable import forced_alike, has_proc
from rankspawn.workers.marker import kill_marked

logger: logging.Logger = logging.getLogger(__name__)

_READY = b"ready\n"
_START_SECONDS = 30.0
# How often it looks for stragglers once the time has passed; and at least how often it looks at
# the clock, because a wait of the system does not count the time of a suspended machine.
_SWEEP_SECONDS = 0.2
_LOOK_SECONDS = 0.5
# The same once the launcher is dead, and the other nodes wait to hear that its workers are gone.
_LAST_LOOK_SECONDS = 0.1
# This package's folder, found by its place: the fence needs nothing of the launcher's path.
_ROOT = os.path.abspath(__file__).removesuffix(
    os.path.join("rankspawn", "launch", "rendezvous", "fence.py")
)
_CODE = (
    "import sys; sys.path.insert(0, {root!r}); "
    "from rankspawn.launch.rendezvous.fence import main; main()"
)
# Of the lease: nothing starts or goes on after the first part, nothing is left after the second.
_SAFE = 0.6
_FENCE = 0.8
# Several renewals can be lost before anything has to be done about it; and none is waited for so
# long that a store which is back stays unheard.
_RENEWALS = 5
_LONGEST_INTERVAL = 3.0
# Seconds without an answer after which a node that has no workers to lose looks for another store.
_IDLE_SECONDS = 6.0


class LeaseTimes:
    """The times that follow from the length of a lease, in seconds.

    A store ends a lease of L seconds when its clock has counted L since it *received* the last
    renewal. The node counts from when it *sent* that renewal, which is never later, and does

    * nothing new from 0.6 L on: it stops its workers, with what is left as their grace period;
    * at 0.8 L a process outside of the launcher kills whatever is left of them (``fence``), also if
      the launcher is stopped, swapped out or dead.

    So with clocks whose rates are off by at most r, a node's workers are gone before the store lets
    go of its lease if killing them takes no longer than ``L/(1+r) - 0.8 L/(1-r)``. **The
    assumptions**: r is at most 1 % (quartz is off by 0.01 %, and a clock that is being corrected by
    0.05 %), and a killed process is gone after at most 0.18 L, 1.8 s with the usual 10 s. A machine
    that is suspended stops its workers, too; see :func:`now`.

    Where nobody goes on after a loss, none of that is needed: the node waits for the whole of L
    to hear from the others, and then its workers have their grace period.

    Args:
        seconds: The length of the lease.
        fenced: A next generation may start when the lease has ended.
    """

    def __init__(self, seconds: float, *, fenced: bool = True) -> None:
        self.seconds = seconds
        self.renew_every: float = min(seconds / _RENEWALS, _LONGEST_INTERVAL)
        # A request that takes longer is given up for another try.
        self.answer_within: float = self.renew_every
        self._safe = (_SAFE if fenced else 1.0) * seconds
        # What of this time a node does without that has nothing to lose.
        self.spare: float = max(0.0, self._safe - _IDLE_SECONDS)

    def safe_until(self, sent: float) -> float:
        """Up to when workers may start and run, by a renewal that was sent at this time."""
        return sent + self._safe

    def fence_at(self, sent: float) -> float:
        """When workers that still run are killed, by a renewal that was sent at this time."""
        return sent + _FENCE * self.seconds


def now() -> float:
    """This machine's clock: never set, and going on while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        # It counts a suspension, so that the kill comes first thing after it, though not before
        # the workers got to run again. CLOCK_MONOTONIC would give them the rest of their time.
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class FenceError(OSError):
    """There is no fence, so nothing may be started."""


class Fence:
    """The launcher's end of the fence, which it tells times and marks; any thread may use it."""

    def __init__(self) -> None:
        import subprocess  # not in the fence itself, which imports this module, too

        self._lock = threading.Lock()
        self._marks: set[str] = set()
        self._ready = False
        self._warned = False
        read, write = os.pipe()
        self._pipe = Owned(write)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CODE.format(root=_ROOT)],
                stdin=read,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                # It must carry no mark of any job, or it would be ended with that.
                env={"PATH": os.environ.get("PATH", os.defpath), **forced_alike()},
                # Neither a closed terminal nor Ctrl-C in it is meant for the fence.
                start_new_session=True,
            )
        except BaseException:
            self._pipe.close()
            raise
        finally:
            os.close(read)

    def extend(self, until: float) -> None:
        """The lease is good up to this time of :func:`now`."""
        try:
            self._say(f"until {until!r}")
        except FenceError as error:
            if not self._warned:
                self._warned = True
                logger.warning("workers could outlive a lost lease: %s", error)

    def guard(self, mark: str) -> None:
        """Kill those who carry this mark, too, when the time has passed.

        Raises:
            FenceError: The process is not there, does not come up, or would find nobody.
        """
        if not has_proc():
            raise FenceError("without /proc nobody finds the workers of a node that lost its lease")
        self._wait_until_ready()
        self._marks.add(mark)
        self._say(f"guard {mark}")

    def release(self, mark: str) -> None:
        """Leave those with this mark alone; none of them is there any more."""
        self._marks.discard(mark)
        with contextlib.suppress(FenceError):
            self._say(f"release {mark}")

    def give_back(self, lease: str) -> None:
        """Have this lease end early if the launcher dies, as soon as nobody of it is left.

        Args:
            lease: As ``last_word`` reads it.
        """
        with contextlib.suppress(FenceError):
            self._say(f"lease {lease}")

    def close(self) -> None:
        """End it, if it guards nobody; else it stays until its time has passed."""
        with contextlib.suppress(FenceError):
            self._say("closed")  # who dies does not
        with self._lock:
            self._pipe.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._marks:
            # Not waited for, on purpose; this is how its object gets to know.
            self._process.returncode = 0
        else:
            self._process.wait()

    def _say(self, line: str) -> None:
        with self._lock:
            try:
                # Short enough for one write that is never in pieces.
                os.write(self._pipe.fileno(), f"{line}\n".encode())
            except (OSError, ValueError) as error:
                raise FenceError("the process that guards the workers is gone") from error

    def _wait_until_ready(self) -> None:
        if self._ready:
            return
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        readable, _, _ = select.select([fd], [], [], _START_SECONDS)
        if not readable or os.read(fd, len(_READY)) != _READY:
            raise FenceError(
                "the process that would kill the workers of a node that lost its lease cannot be "
                f"started with {sys.executable}"
            )
        self._ready = True


def main() -> None:
    """Guard workers until the launcher is gone and none of them is left; runs in the fence."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, _READY)
    watch(0)


def watch(fd: int) -> None:
    """Do what is said on ``fd`` until it is closed and nobody is left to be guarded."""
    marks: set[str] = set()
    until, lease = 0.0, ""
    heard = bytearray()
    while True:
        left = until - now()
        if marks and left <= 0:
            # Again and again until the lease is good: a launcher that was asleep may start a
            # worker a moment too late.
            for mark in marks:
                kill_marked(mark)
        wait = max(_SWEEP_SECONDS, min(left, _LOOK_SECONDS)) if marks else None
        if not select.select([fd], [], [], wait)[0]:
            continue
        data = os.read(fd, 4096)
        if not data:
            break  # the launcher is dead, or has closed its end
        *lines, rest = (bytes(heard) + data).split(b"\n")
        heard = bytearray(rest)
        for line in lines:
            verb, _, what = line.decode().partition(" ")
            if verb == "until":
                until = float(what)
            elif verb == "guard":
                marks.add(what)
            elif verb == "release":
                marks.discard(what)
            else:
                lease = what if verb == "lease" else ""
    # The lease of a dead launcher is good for as long as it said; its guardian is gentler.
    wait = _LAST_LOOK_SECONDS if lease else _LOOK_SECONDS
    while marks and (left := until - now()) > 0:
        if lease and _give_back(lease, marks):
            return
        select.select([], [], [], min(left, wait))
    _sweep_up(marks)


def _give_back(lease: str, marks: set[str]) -> bool:
    """Say that nobody of a dead launcher is left, if that is so, and can be said."""
    from rankspawn.launch.rendezvous import last_word  # a launcher that ends well needs none of it

    return last_word.nobody_is_left(marks) and last_word.give_back(lease)


def _sweep_up(marks: set[str]) -> None:
    """A process that was being started when its launcher died carries the mark a little later."""
    calm = 0
    while marks and calm < 3:
        found = [pid for mark in marks for pid in kill_marked(mark)]
        calm = 0 if found else calm + 1
        select.select([], [], [], _SWEEP_SECONDS)
