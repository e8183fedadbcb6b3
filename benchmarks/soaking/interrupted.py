"""A program whose signal handlers raise, again and again, while groups start, run and close.

It says of each round what came of it. Its exit is a part of it: nothing may hang there.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
from types import FrameType
from typing import Any

from soaking.groups import descriptors, leaks
from soaking.work import GRACE_SECONDS, HANG_SECONDS, work

import rankspawn

ERRORS = {
    signal.SIGALRM: TimeoutError,
    signal.SIGTERM: SystemExit,
    signal.SIGINT: KeyboardInterrupt,
}
# Where a group is closed: its lines, and those of all that is called from there, are counted.
_CLOSING = ("close", "_finish")
_MOST_LINES = 160
_SOURCE = os.path.dirname(rankspawn.__file__)


class Trap:
    """A handler that raises once, in this process, at the moment that is chosen for it."""

    def __init__(self, number: signal.Signals) -> None:
        self.error = ERRORS[number]("of a handler")
        self.fired = False
        self.is_excused = False
        self._number = number
        self._armed = True
        self._pid = os.getpid()
        self._lines_left: int | None = None
        signal.signal(number, self._handle)
        sys.unraisablehook = self._note_unraisable

    def at(self, seconds: float) -> None:
        """It is sent after so many seconds, wherever the program is."""
        if self._number is not signal.SIGALRM:
            signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(self._number))
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))

    def at_line(self, lines: int) -> None:
        """It is sent so many lines after a group began to close."""
        self._lines_left = lines
        self._is_closing = False
        sys.settrace(self._trace)

    def disarm(self) -> None:
        """From here on nothing is raised any more."""
        self._armed = False
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        # A mend may put handlers back late: what is pending must not be the end of the program.
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def _handle(self, *_: object) -> None:
        if os.getpid() != self._pid:
            sys.exit(128 + self._number)  # a forked worker, which is being stopped
        if self._armed:
            self._armed = False
            self.fired = True
            raise self.error

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if os.getpid() != self._pid:
            sys.settrace(None)
            return None
        if not frame.f_code.co_filename.startswith(_SOURCE):
            return None
        self._is_closing |= frame.f_code.co_name in _CLOSING
        if self._is_closing and event == "line" and self._lines_left is not None:
            self._lines_left -= 1
            if self._lines_left < 0:
                self._lines_left = None
                signal.raise_signal(self._number)  # raises here, and so in the line
        return self._trace

    def _note_unraisable(self, told: Any) -> None:
        """What is raised in a finalizer is lost by Python itself, wherever it comes from."""
        name = getattr(told.object, "__qualname__", "")
        if told.exc_value is self.error:
            module = getattr(told.object, "__module__", "")
            self.is_excused = name.endswith("__del__") or module in ("weakref", "_weakrefset")
        else:
            sys.__unraisablehook__(told)


def run_rounds(seed: int, method: str, moment: str, rounds: int) -> None:
    """Run as a program of its own; a line of JSON for each round."""
    faulthandler.enable()  # who finds it hanging sends SIGABRT to see where
    rng = random.Random(seed)
    _run(method, 1, "none")  # starts the resource tracker
    began = time.monotonic()
    _run(method, 2, "none")
    span = 1.2 * (time.monotonic() - began)
    for _ in range(rounds):
        print(json.dumps(_round(rng, method, moment, span)), flush=True)


def _round(rng: random.Random, method: str, moment: str, span: float) -> dict[str, Any]:
    before = descriptors()
    nprocs, what = rng.randint(1, 3), rng.choice(["none", "wait"])
    trap = Trap(rng.choice(list(ERRORS)))
    verdict = _interrupt(trap, rng, method, nprocs, what, moment, span)
    # What an exception holds, a program that goes on has dropped.
    trap.error.__traceback__ = trap.error.__context__ = None
    if verdict == "expected":
        verdict = _run_after(method, nprocs)
    about = f"{type(trap.error).__name__}, {nprocs} ranks that {what}"
    return {"fired": trap.fired, "verdict": verdict, "about": about, "left": leaks(before)}


def _interrupt(
    trap: Trap,
    rng: random.Random,
    method: str,
    nprocs: int,
    what: str,
    moment: str,
    span: float,
) -> str:
    """Whether what the handler raised came to the caller, as it was."""
    try:
        try:
            if moment == "close":
                context = _start(method, nprocs, what)
                trap.at_line(rng.randrange(_MOST_LINES))
                if what == "wait":
                    context.terminate()
                else:
                    context.join()
            else:
                trap.at(rng.random() * span)
                what = "wait" if rng.random() < 0.5 else what
                _run(method, nprocs, what)
        finally:
            trap.disarm()
    except BaseException as error:
        if error is trap.error:
            return "expected"
        kind = "instead of what a handler raised: " if trap.fired else ""
        return f"{kind}{type(error).__name__}: {str(error)[:300]}"
    if trap.fired and not trap.is_excused:
        return "what a handler raised was swallowed"
    return "expected"


def _start(method: str, nprocs: int, what: str) -> rankspawn.MultiprocessContext:
    return rankspawn.spawn(
        work,
        args=(-1, what, False),
        nprocs=nprocs,
        backend="gloo",
        start_method=method,
        join=False,
        grace_period=GRACE_SECONDS,
        timeout=HANG_SECONDS / 4,
    )


def _run(method: str, nprocs: int, what: str) -> list[Any]:
    context: rankspawn.MultiprocessContext | None = None
    try:
        context = _start(method, nprocs, what)
        return context.results()
    finally:  # also after what came between the two, when nobody waited for it
        if context is not None:
            context.terminate()


def _run_after(method: str, nprocs: int) -> str:
    """The next group must not notice anything."""
    try:
        results = _run(method, nprocs, "none")
    except BaseException as error:
        return f"the next group: {type(error).__name__}: {str(error)[:300]}"
    return "expected" if results == list(range(nprocs)) else f"the next group: {results}"
