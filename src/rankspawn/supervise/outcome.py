"""What became of a rank: plain values, which every engine can give."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping

# What a process is said to have exited with if nobody can tell: somebody else has collected it.
STATUS_LOST = 255


class End(Enum):
    """How a rank ended."""

    RETURNED = "returned"
    RAISED = "raised"
    EXITED = "called sys.exit"
    DIED = "died"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one rank.

    Attributes:
        rank: Whose outcome.
        pid: Of which process.
        end: How it ended.
        exit_code: Minus the number for a signal.
        when_ns: When that began, on this process's monotonic clock; a group of other machines
            converts the times that it is told.
        reached_function: It came as far as calling the user's function.
        had_returned: It reported a result, whatever happened to it afterwards.
        evidence: What is known about a death that it could not report: of one by SIGKILL by the
            system.
    """

    rank: int
    pid: int
    end: End
    exit_code: int
    when_ns: int
    reached_function: bool
    had_returned: bool = False
    evidence: str | None = None

    @property
    def is_failure(self) -> bool:
        """True for a failure of its own; a rank that we stopped is a victim."""
        return self.end not in (End.RETURNED, End.STOPPED)

    @property
    def why_killed(self) -> str:
        """Why SIGKILL may have ended it, if it did: what the system knows, or what is likely."""
        return self.evidence or (
            "if nobody did that on purpose, the memory may have run out "
            "(see `dmesg` or the container's memory limit)"
        )


def signal_name(number: int) -> str:
    """``SIGTERM`` and so on; real-time signals have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def failures_in(outcomes: Mapping[int, Outcome]) -> list[tuple[int, Outcome]]:
    """Index and outcome of the ranks that failed by themselves, the first in time first."""
    failed = [(index, outcome) for index, outcome in outcomes.items() if outcome.is_failure]
    return sorted(failed, key=lambda entry: entry[1].when_ns)
