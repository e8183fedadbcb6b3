"""From an outcome to the error that people read: who, what, why, what next.

The wording is data, because programs match it: ours here, torch's in ``compat.torch``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rankspawn.errors import (
    NodeLostError,
    ProcessException,
    ProcessExceptionGroup,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnTimeoutError,
)
from rankspawn.supervise.outcome import STATUS_LOST, End, Outcome, signal_name
from rankspawn.values import dataclass

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from rankspawn.supervise.group import RankReport

    _E = TypeVar("_E", bound=ProcessException)


# Of how many ranks an error shows where they were when another one failed; it keeps all.
_MOST_SHOWN = 3
# What ends a process whose own code went wrong.
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGFPE", "SIGBUS", "SIGILL")
# A frame of a collective, as faulthandler writes it; the outermost is what the user called.
_COLLECTIVE = re.compile(
    r'^  File ".*/rankspawn/parallel/(?:shared_memory|over_engine|environment)\.py", '
    r"line \d+ in ([a-z]\w*)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Wording:
    """How an error begins; ``{rank}``, ``{signal}`` and ``{code}`` are filled in."""

    raised: str = "Process {rank} terminated with the following error:\n"
    signalled: str = "Process {rank} terminated with signal {signal}"
    exited: str = "Process {rank} terminated with exit code {code}"
    # torch's messages end in a line feed, and do not explain. What was given to sys.exit is kept.
    explains: bool = True
    # The class to raise in place of one of ours.
    class_for: Callable[[type[_E]], type[_E]] = lambda ours: ours


OURS = Wording()


def make_error(
    outcome: Outcome, report: RankReport, wording: Wording, tail: str = ""
) -> ProcessException:
    """The error of one rank whose end is no success.

    Args:
        outcome: How it ended.
        report: What it said at its end.
        wording: How to say it.
        tail: Its last lines and where they are, if they are kept.
    """
    if outcome.end is End.LOST:
        lost = wording.class_for(NodeLostError)
        return lost(outcome.evidence or "", outcome.rank, outcome.pid, outcome.host)
    if outcome.end is not End.RAISED:
        detail = report.text if outcome.end is End.EXITED else ""
        return _exited(outcome, detail, tail, wording, report.crash)
    message = wording.raised.format(rank=outcome.rank) + tail + report.text
    if wording.explains:
        message = message.rstrip("\n")
    class_ = wording.class_for(ProcessRaisedException)
    return class_(message, outcome.rank, outcome.pid, report.exception(), report.text)


def make_loss_error(lost: Outcome, wording: Wording) -> ProcessException:
    """The error of a group that lost what all its ranks need, and so of none of them."""
    name = signal_name(-lost.exit_code) if lost.exit_code < 0 else None
    class_ = wording.class_for(ProcessExitedException)
    return class_(lost.evidence or "", lost.rank, lost.pid, lost.exit_code, name)


def first_of(errors: Sequence[ProcessException], *, tries: int) -> ProcessException:
    """The first failure in time, knowing all others."""
    first = errors[0]
    first.failures = tuple(errors)
    if tries > 1:
        first.add_note(f"The group was started {tries} times; this is how the last try failed.")
    return first


def make_group_error(
    errors: Sequence[ProcessException], answers: Mapping[int, Any]
) -> ProcessExceptionGroup:
    """The error of a group whose ranks went on after a failure.

    Args:
        errors: Of those that failed, the first in time first.
        answers: Rank to its result, or to what is raised in its place.
    """
    names = ", ".join(str(rank) for rank in sorted(error.rank for error in errors))
    who = f"rank {names}" if len(errors) == 1 else f"{len(errors)} ranks ({names})"
    rest = len(answers) - len(errors)
    text = f"{who} of {len(answers)} failed"
    if rest:
        text += f"; what the other {rest} returned is in .results, by rank"
    error = ProcessExceptionGroup(text, list(errors))
    error.results = {
        rank: answer for rank, answer in answers.items() if not isinstance(answer, Exception)
    }
    return error


def make_timeout_error(
    timeout: float | None, ended: Sequence[int], stacks: Mapping[int, str], stalled: str = ""
) -> SpawnTimeoutError:
    """The error of a group whose time is over.

    Args:
        timeout: How many seconds it had.
        ended: The ranks that had ended by then.
        stacks: Rank to where the others were.
        stalled: What is said of ranks of which nothing was heard, if that is why.
    """
    text = stalled or f"the workers did not end within {timeout or 0:g} s and were stopped.\n"
    if ended:  # what the others wait for, as a rule
        text += f"rank {', '.join(map(str, ended))} had returned before.\n"
    return SpawnTimeoutError(text + describe_stacks(stacks), stacks=stacks)


def describe_survivors(stacks: Mapping[int, str]) -> str:
    """Of the ranks that ran when another one failed, those that were not where most were."""
    odd = _differing({rank: _place(_main_thread(text)) for rank, text in stacks.items()})
    if not odd:
        return ""
    rest = len(stacks) - len(odd)
    head = f"meanwhile rank {', '.join(map(str, odd))} was not where the other {rest} were:"
    shown = [f"--- rank {rank} ---\n{stacks[rank].rstrip()}" for rank in odd[:_MOST_SHOWN]]
    return "\n".join([head, *shown, "---", ""])


def describe_stacks(stacks: Mapping[int, str]) -> str:
    """All stacks, those first that differ from what most ranks do, or that others wait for."""
    # Threads beside the main one are anywhere, and count only if the main ones are all alike.
    odd = _differing({rank: _place(_main_thread(text)) for rank, text in stacks.items()})
    odd = odd or _differing({rank: _place(text) for rank, text in stacks.items()})
    inside = {rank: _collective(_main_thread(text)) for rank, text in stacks.items()}
    lines = _say_who_waits(inside)
    if odd:
        names, others = ", ".join(str(rank) for rank in odd), len(stacks) - len(odd)
        lines.append(f"rank {names} differs from the other {others}, look there first:")
    for rank in sorted(stacks, key=lambda rank: (rank not in odd, inside[rank], rank)):
        lines.append(f"--- rank {rank} ---\n{stacks[rank].rstrip()}")
    return "\n".join(lines)


def _say_who_waits(inside: Mapping[int, str]) -> list[str]:
    """A line that names who is in which collective and who is in none, if not all are in one."""
    names = sorted({*inside.values()})
    if len(names) < 2:
        return []
    parts = []
    for name in sorted(names, key=lambda name: (not name, name)):
        ranks = [str(rank) for rank, its in inside.items() if its == name]
        who, verbs = ("rank", ("waits", "is")) if len(ranks) == 1 else ("ranks", ("wait", "are"))
        what = f"{verbs[0]} in {name}" if name else f"{verbs[1]} in no collective"
        parts.append(f"{who} {', '.join(ranks)} {what}")
    return [f"{'; '.join(parts)}."]


def _collective(text: str) -> str:
    """The collective that a stack is in, as the user called it; empty for none."""
    return next(reversed(_COLLECTIVE.findall(text)), "")


def _differing(places: Mapping[int, str]) -> list[int]:
    """The ranks that are not where most are; none if most are not in one place."""
    common, count = Counter(places.values()).most_common(1)[0] if places else ("", 0)
    has_majority = count > len(places) / 2
    return [rank for rank, place in places.items() if has_majority and place != common]


def _main_thread(text: str) -> str:
    """The last one: faulthandler begins with the youngest, and leaves a line empty between two."""
    return text.rstrip().rpartition("\n\n")[2]


def _place(text: str) -> str:
    """The stack without what always differs: thread numbers."""
    return "\n".join(line for line in text.splitlines() if line.lstrip().startswith("File "))


def _exited(
    outcome: Outcome, detail: str, tail: str, wording: Wording, crash: str
) -> ProcessExitedException:
    by_signal = outcome.exit_code < 0 and outcome.end is not End.EXITED
    name = signal_name(-outcome.exit_code) if by_signal else None
    template = wording.exited if name is None else wording.signalled
    message = template.format(rank=outcome.rank, signal=name, code=outcome.exit_code)
    explanation = detail or (_explain(outcome, name) if wording.explains else "")
    if explanation:
        message += f": {explanation}"
    if tail:
        message += "\n" + tail.rstrip("\n")
    crash = crash if name in _CRASHES else ""
    if crash and wording.explains:
        message += f"\nIts Python stacks when it crashed:\n{crash}"
    class_ = wording.class_for(ProcessExitedException)
    error = class_(message, outcome.rank, outcome.pid, outcome.exit_code, name)
    error.crash = crash
    return error


def _explain(outcome: Outcome, signalled_by: str | None) -> str:
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
    if outcome.why_killed is not None:
        return f"process {outcome.pid} was killed; {outcome.why_killed}"
    if outcome.evidence is not None:
        return f"process {outcome.pid}: {outcome.evidence}"
    if signalled_by is not None:
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
