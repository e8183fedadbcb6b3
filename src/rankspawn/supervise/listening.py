"""What ranks report while somebody waits for them: told, and missed if nothing comes any more."""

from __future__ import annotations

import time

from rankspawn.handlers import handlers_let_through
from rankspawn.telling import get_logger

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import logging

    from rankspawn.supervise.group import Group
    from rankspawn.supervise.policy import SupervisionPolicy
    from rankspawn.supervise.reports import ReportTeller
    from rankspawn.supervise.stalls import StallWatch

logger: logging.Logger = get_logger(__name__)


class Listener:
    """Looks at reports for those who asked for that, from a thread that waits for the ranks.

    Args:
        policy: Who is told of them, and how long they may keep silent.
    """

    def __init__(self, policy: SupervisionPolicy) -> None:
        self._teller: ReportTeller | None = None
        if policy.on_report is not None:
            from rankspawn.supervise.reports import ReportTeller

            self._teller = ReportTeller(policy.on_report)
        self._stalls: StallWatch | None = None
        if policy.stall_timeout is not None:
            from rankspawn.supervise.stalls import StallWatch

            self._stalls = StallWatch(policy.stall_timeout)

    @property
    def due(self) -> float | None:
        """When to look again, on the monotonic clock; None for never."""
        return min((each.due for each in (self._teller, self._stalls) if each), default=None)

    @property
    def has_stalled(self) -> bool:
        """Nothing was heard of any rank for too long."""
        return self._stalls is not None and self._stalls.has_stalled

    def describe_stall(self) -> str:
        """Who was last heard of when; empty if they have not stalled."""
        return "" if self._stalls is None else self._stalls.describe()

    def look(self, group: Group) -> None:
        """Tell what ranks reported, and note who is silent, if it is time to."""
        if self._teller is not None and time.monotonic() >= self._teller.due:
            with handlers_let_through():  # runs the program's own code
                self._teller.tell(group)
        if self._stalls is not None:
            self._stalls.look(group)

    def look_last(self, group: Group, *, has_failed: bool) -> None:
        """After the end; then the job's own error is told rather than one that is raised here."""
        if self._teller is None:
            return
        try:
            with handlers_let_through():
                self._teller.tell(group)
        except Exception:
            if not has_failed:
                raise
            logger.exception("on_report raised after the ranks had failed")

    def close(self) -> None:
        """Let go of what ranks print to."""
        if self._stalls is not None:
            self._stalls.close()
