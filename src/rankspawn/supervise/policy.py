"""How a group is supervised: what its caller asked for, as one value."""

from __future__ import annotations

from collections.abc import Callable

from rankspawn.supervise.failures import OURS, Wording
from rankspawn.values import dataclass

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.supervise.group import Group
    from rankspawn.supervise.reports import Steps


@dataclass(frozen=True, slots=True)
class SupervisionPolicy:
    """How a context supervises its group."""

    grace_period: float = 10.0
    timeout: float | None = None
    max_restarts: int = 0
    wording: Wording = OURS
    # False while one rank is debugged: then the others do not hear a Ctrl-C in the terminal.
    interrupts_reach_workers: bool = True
    # Called with what ranks report, by a thread that waits for them.
    on_report: Callable[[int, Steps], object] | None = None
    # False: the others go on when a rank fails, and all failures are raised in the end.
    stops_on_failure: bool = True
    # Whether an error has the stacks of ranks that ran, and were stopped because of it.
    takes_stacks: bool = False
    # Whether a failure stops nothing before Ctrl-C.
    keeps_alive: bool = False
    # Seconds without a report and without output of any rank, after which they are stopped.
    stall_timeout: float | None = None
    # Called with the answer, None for success, before spectators finish for the last time.
    on_answer: Callable[[BaseException | None], None] | None = None
    # Called before a group is stopped because a rank failed.
    before_stop: Callable[[Group], None] | None = None
