"""What the launcher says in the end: how each program ended, and the root cause last.

Pure: takes endings and lines of logs, gives text and exit codes.
"""

from __future__ import annotations

from rankspawn.supervise.outcome import STATUS_LOST, End, signal_name

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.launch.pod import Ending
    from rankspawn.supervise.outcome import Outcome

# More programs than this are told of by what they have in common.
_EACH_BY_ITSELF = 16
# What is read of a failed program's log. Long tracebacks have some hundred lines.
LINES_READ = 400
_LINES_WITHOUT_TRACEBACK = 20
_LONGEST_TRACEBACK = 120
_TRACEBACK = "Traceback (most recent call last):"
# How faulthandler begins to tell of a crash in C code, which is no shorter.
_CRASH = "Fatal Python error: "
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


def exit_code_of(outcome: Outcome) -> int:
    """The launcher's exit code for a failure: the same, or 128 and the signal's number."""
    return 128 - outcome.exit_code if outcome.exit_code < 0 else outcome.exit_code


def describe_end(outcome: Outcome | None) -> str:
    """How a program ended, in a few words."""
    if outcome is None:
        return "still there, and cannot be reaped"
    code = outcome.exit_code
    if outcome.end is End.RETURNED:
        return "finished"
    if code == STATUS_LOST and outcome.end is not End.STOPPED:
        return "exit code 255, or not known"
    how = signal_name(-code) if code < 0 else f"exit code {code}"
    return f"stopped ({how})" if outcome.end is End.STOPPED else how


def summarize(endings: Sequence[Ending], *, host: str, tries: int) -> str:
    """A table of all programs: who, for how long, how it ended."""
    whole = max((ending.seconds for ending in endings), default=0.0)
    again = "" if tries == 1 else f"; started {tries} times, this is the last one"
    lines = [f"{count_workers(len(endings))} on {host}, {whole:.1f} s{again}"]
    rows = [(ending.name, ending.seconds, describe_end(ending.outcome)) for ending in endings]
    if len(endings) > _EACH_BY_ITSELF:
        rows = _together(endings)
    width = max((len(name) for name, _, _ in rows), default=0)
    lines += [f"  {name:<{width}}  {seconds:8.1f} s  {end}" for name, seconds, end in rows]
    return "\n".join(lines)


def count_workers(count: int) -> str:
    """``1 worker``, ``2 workers``."""
    return f"{count} worker{'' if count == 1 else 's'}"


def describe_cause(cause: Ending, lines: Sequence[str], *, host: str, no_restart: str = "") -> str:
    """The root cause: who, where, why, and the end of what it printed, the traceback last.

    Args:
        cause: The failure that came first.
        lines: The last lines of its log.
        host: The machine it ran on.
        no_restart: Why it is not started again, where it might have been.
    """
    assert cause.outcome is not None, "what failed has ended"
    shown = find_traceback(lines)
    why = f"; {cause.outcome.why_killed}" if cause.outcome.why_killed else ""
    text = (
        f"{cause.name} on {host} (pid {cause.outcome.pid}) failed after {cause.seconds:.1f} s: "
        f"{describe_end(cause.outcome)}{why}\n"
    )
    if no_restart:
        text += f"it is not started again: {no_restart}\n"
    if not shown:
        return text + f"it printed nothing to {cause.log}"
    # What a program says is marked as its own, or its last line would be read as our reason; a
    # traceback is the reason, and stays as people and tools know it.
    mark = "" if _ends_with_traceback(shown) else "  | "
    return text + f"the end of {cause.log}:\n" + "\n".join(f"{mark}{line}" for line in shown)


def find_traceback(lines: Sequence[str]) -> list[str]:
    """The last traceback with all it was caused by, to the end; without one, the last lines.

    The stacks of a crash are one as well.
    """
    starts = [
        index
        for index, line in enumerate(lines)
        if line.rstrip().endswith(_TRACEBACK) or line.startswith(_CRASH)
    ]
    if not starts:
        return list(lines[-_LINES_WITHOUT_TRACEBACK:])
    first = starts.pop()
    while starts and _is_chained(lines[starts[-1] : first]):
        first = starts.pop()
    found = list(lines[first:])
    if len(found) <= _LONGEST_TRACEBACK:
        return found
    # A recursion's traceback: where it began says as much as where it ended.
    half = _LONGEST_TRACEBACK // 2
    left_out = f"  … {len(found) - 2 * half} lines are left out here, see the log …"
    return [*found[:half], left_out, *found[-half:]]


def _ends_with_traceback(lines: Sequence[str]) -> bool:
    """Whether the last line is the one that an exception's traceback ends with."""
    starts = [index for index, line in enumerate(lines) if line.rstrip().endswith(_TRACEBACK)]
    if not starts:
        return False
    # Before it stand frames, which are indented, and nothing else.
    return all(line.startswith((" ", "\t")) for line in lines[starts[-1] + 1 : -1])


def _is_chained(lines: Sequence[str]) -> bool:
    """Whether a traceback, with what follows it, leads to the next one."""
    return any(line.rstrip().endswith(_CHAINED) for line in lines)


def _together(endings: Sequence[Ending]) -> list[tuple[str, float, str]]:
    """One row for all that have the same role and end, with the longest time."""
    groups: dict[tuple[str, str], list[Ending]] = {}
    for ending in endings:
        role = ending.name.rpartition(" ")[0]
        groups.setdefault((role, describe_end(ending.outcome)), []).append(ending)
    return [
        (
            f"{role} {_ranges([ending.spec.rank for ending in same])}",
            max(ending.seconds for ending in same),
            end,
        )
        for (role, end), same in groups.items()
    ]


def _ranges(ranks: Sequence[int]) -> str:
    """``0-3,5`` for 0, 1, 2, 3, 5."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
