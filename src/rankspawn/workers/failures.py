"""From an outcome to the error that people read: who, what, why, what next.

The wording is data, because programs match it: ours here, torch's in ``compat.torch``.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from rankspawn.errors import ProcessException, ProcessExitedException, ProcessRaisedException
from rankspawn.workers.outcome import End, Outcome, Remains
from rankspawn.workers.popen import STATUS_LOST


@dataclass(frozen=True, slots=True)
class Wording:
    """How an error begins; ``{rank}``, ``{signal}`` and ``{code}`` are filled in."""

    raised: str = "Process {rank} terminated with the following error:\n"
    signalled: str = "Process {rank} terminated with signal {signal}"
    exited: str = "Process {rank} terminated with exit code {code}"
    # torch's messages end in a line feed, and do not explain. What was given to sys.exit is kept.
    explains: bool = True


OURS = Wording()


def make_error(
    outcome: Outcome, remains: Remains, wording: Wording, tail: str = ""
) -> ProcessException:
    """The error of one rank whose end is no success.

    Args:
        outcome: How it ended.
        remains: What it left.
        wording: How to say it.
        tail: Its last lines and where they are, if they are kept.
    """
    if outcome.end is not End.RAISED:
        detail = remains.text if outcome.end is End.EXITED else ""
        return _exited(outcome, detail, tail, wording)
    message = wording.raised.format(rank=outcome.rank) + tail + remains.text
    if wording.explains:
        message = message.rstrip("\n")
    return ProcessRaisedException(
        message, outcome.rank, outcome.pid, remains.exception(), remains.text
    )


def first_of(errors: Sequence[ProcessException], *, tries: int) -> ProcessException:
    """The first failure in time, knowing all others."""
    first = errors[0]
    first.failures = tuple(errors)
    if tries > 1:
        first.add_note(f"The group was started {tries} times; this is how the last try failed.")
    return first


def _exited(outcome: Outcome, detail: str, tail: str, wording: Wording) -> ProcessExitedException:
    name = None if outcome.end is End.EXITED else _signal_name(outcome.exit_code)
    template = wording.exited if name is None else wording.signalled
    message = template.format(rank=outcome.rank, signal=name, code=outcome.exit_code)
    explanation = detail or (_explain(outcome, name) if wording.explains else "")
    if explanation:
        message += f": {explanation}"
    if tail:
        message += "\n" + tail.rstrip("\n")
    return ProcessExitedException(message, outcome.rank, outcome.pid, outcome.exit_code, name)


def _explain(outcome: Outcome, signal_name: str | None) -> str:
    """What is known or likely, and what to do next."""
    if outcome.end is End.STOPPED:
        return "it was stopped because another rank failed or the caller stopped the group"
    if outcome.end is End.EXITED:
        return "its function called sys.exit"
    if outcome.had_returned:
        return (
            f"its function had returned, but process {outcome.pid} failed on its way out "
            "(an atexit handler, a thread, or a library's cleanup)"
        )
    if signal_name == "SIGKILL":
        return f"process {outcome.pid} was killed; " + (
            outcome.evidence
            or "if nobody did that on purpose, the memory may have run out "
            "(see `dmesg` or the container's memory limit)"
        )
    if signal_name is not None:
        return f"process {outcome.pid} was ended by the signal, without a Python exception"
    if outcome.exit_code == STATUS_LOST:
        return (
            f"process {outcome.pid} ended without a report, and its status is not known: SIGCHLD "
            "is ignored in this program, something else waited for it, or it exited with that"
        )
    if outcome.exit_code == 0:
        return (
            f"process {outcome.pid} exited without returning: something called os._exit(0), "
            "or ended the interpreter, before func returned"
        )
    return f"process {outcome.pid} ended without a Python exception, e.g. by os._exit"


def _signal_name(exit_code: int) -> str | None:
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:  # real-time signals have numbers only
        return f"SIG{-exit_code}"
