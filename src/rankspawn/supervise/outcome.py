"""What became of a rank: plain values, which every engine can give."""

from __future__ import annotations

import signal
from enum import Enum

from rankspawn.values import dataclass

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
    LOST = "was lost with its node"


# What people are told of ranks that ended; all others failed.
STATES = {End.RETURNED: "done", End.STOPPED: "stopped"}


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
        follows: It failed because it lost another rank; that one is the cause, whenever its end
            was noticed.
        evidence: What is known about a death that it could not report: of one by SIGKILL by the
            system; of a lost node, what is said of that.
        host: The node, if it is another one than this process's.
    """

    rank: int
    pid: int
    end: End
    exit_code: int
    when_ns: int
    reached_function: bool
    had_returned: bool = False
    evidence: str | None = None
    follows: bool = False
    host: str = ""

    @property
    def is_failure(self) -> bool:
        """True for a failure of its own; a rank that we stopped is a victim."""
        return self.end not in (End.RETURNED, End.STOPPED)

    @property
    def why_killed(self) -> str | None:
        """Why a signal ended it, if one did: what the system knows, or what is likely."""
        if self.exit_code == -signal.SIGKILL:
            return self.evidence or (
                "if nobody did that on purpose, the memory may have run out "
                "(see `dmesg` or the container's memory limit)"
            )
        if self.exit_code == -signal.SIGXFSZ:
            return "a file came to the limit on the size of files (RLIMIT_FSIZE, see `ulimit -f`)"
        return None


def signal_name(number: int) -> str:
    """``SIGTERM`` and so on; real-time signals have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def failures_in(outcomes: Mapping[int, Outcome]) -> list[tuple[int, Outcome]]:
    """Index and outcome of the ranks that failed by themselves, the first in time first.

    Those that follow come after all others: a rank can notice the death of another one, and say
    so, before the process that supervises both gets to look. A lost node is one failure, however
    many ranks it had: that of its first one.
    """
    failed = [(index, outcome) for index, outcome in outcomes.items() if outcome.is_failure]
    failed.sort(key=lambda entry: (entry[1].follows, entry[1].when_ns, entry[0]))
    lost: set[str] = set()
    return [entry for entry in failed if entry[1].end is not End.LOST or _is_first(entry[1], lost)]


def _is_first(outcome: Outcome, lost: set[str]) -> bool:
    """The first one of its node, of those that were lost so far."""
    is_first = outcome.host not in lost
    lost.add(outcome.host)
    return is_first
