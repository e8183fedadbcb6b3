"""What a supervisor asks of a group of ranks: protocols, which only views import to run.

``rankspawn.workers`` has the group of local processes. Another engine brings a class of its own:
nothing here asks for a descriptor per rank, for a file, or for a process of this machine.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from rankspawn.supervise.outcome import Outcome
from rankspawn.values import dataclass

TYPE_CHECKING = False  # typing's own, which would import both
if TYPE_CHECKING:
    from rankspawn.descriptors import Owned
    from rankspawn.parallel.statistics import Talk
    from rankspawn.supervise.context import RankProcess
    from rankspawn.view.ranks import Usage


@dataclass(frozen=True, slots=True)
class RankOutput:
    """A file of this machine that has, or gets, what a rank prints.

    What comes from another machine is written to such a file by its group.

    Attributes:
        file: A descriptor of its own; whoever asked for it closes it.
        start: Where the rank's output begins; what is before is an earlier try's.
        is_captured: The file is in memory, and nobody else reads it: what was read can be freed.
    """

    file: Owned
    start: int = 0
    is_captured: bool = False


class RankReport(Protocol):
    """What a rank said at its end. Nothing is unpickled before somebody asks for it."""

    @property
    def text(self) -> str:
        """The traceback, or what was given to ``sys.exit``."""

    @property
    def crash(self) -> str:
        """Its Python stacks when it crashed in C code, if they are known."""

    def result(self) -> Any:
        """The returned value; raises whatever unpickling raises."""

    def exception(self) -> BaseException | None:
        """The exception, or the nearest thing to it; None if there is no more than the text."""


class StartedProcess(Protocol):
    """A started process, as multiprocessing's ``Popen`` classes have it.

    multiprocessing leaves everything to such an object, which need not stand for a process of
    this machine.
    """

    @property
    def pid(self) -> int:
        """Its id, on the machine that it runs on."""

    @property
    def sentinel(self) -> int:
        """A descriptor of ours that is readable once it ended."""

    def poll(self, flag: int = ...) -> int | None:
        """The exit code, minus the number for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end; None if the time ran out first."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def interrupt(self) -> None:
        """Send SIGINT."""

    def close(self) -> None:
        """Let go of the sentinel."""


class Measured(Protocol):
    """What ranks take and exchange, as whoever is where they run has measured it."""

    def usage_of(self, index: int) -> Usage:
        """What a rank took when it was looked at last."""

    def talks(self) -> dict[int, Talk]:
        """Rank to what it has exchanged with others, of those that talk."""


class Group(Protocol):
    """The ranks of one start, by index: their place in this group, from 0 on.

    Any thread may call anything here.

    Attributes:
        owner: Whose job it is to close the group. Ranks run on if it is dropped; so a group
            with running ranks keeps itself alive.
        deadline: When its time is over, on the monotonic clock, should nobody join it.
        queued: Seconds in an engine's queue before it could start; no part of a ``timeout``.
        listeners: Called, from any thread, after something was noted and at the end.
    """

    owner: weakref.ref[object] | None
    deadline: float | None
    queued: float
    listeners: set[Callable[[], None]]

    @property
    def processes(self) -> Sequence[RankProcess]:
        """The ranks as multiprocessing has processes; made by the group."""

    @property
    def sentinels(self) -> dict[int, int]:
        """Sentinel to index of those that run; shrinks as they end."""

    @property
    def outcomes(self) -> Mapping[int, Outcome]:
        """Index to outcome; grows as ranks end, or report a failure before they end."""

    @property
    def all_ended(self) -> bool:
        """No rank runs any more."""

    @property
    def has_failed(self) -> bool:
        """One of the outcomes is a failure, or something is lost."""

    @property
    def lost(self) -> Outcome | None:
        """What became of a process, no rank, that all of them need; its evidence says all."""

    @property
    def measured(self) -> Measured | None:
        """What was measured of ranks on other machines; None if this process can look itself."""

    @property
    def closed(self) -> bool:
        """Nothing more happens in this group."""

    def wait(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        """Block until the condition holds or the (monotonic) deadline passes; say which.

        The condition is about what the group has noted. That it was closed counts as the
        former. In the main thread, a signal with a handler that raises ends the wait. They are
        held back when this is called, as for all the rest; where it waits, it lets them through
        (``rankspawn.handlers``).
        """

    def collect(self) -> None:
        """Take note of what happened, without waiting for more."""

    def fileno(self) -> int:
        """The one descriptor that is readable when :meth:`collect` has something to do."""

    def stop(self, grace: float, *, interrupted: bool = False) -> None:
        """End every rank that still runs, and what ranks started; blocks until they are gone.

        After a success there is nothing to stop. What ends from here on is a victim. An
        exception (a second Ctrl-C) cuts the grace period short.

        Args:
            grace: Seconds that they get before they are killed.
            interrupted: This process got SIGINT, and the ranks may have got it, too.
        """

    def kill(self) -> None:
        """End the ranks that run by force, without waiting; it hurries a :meth:`stop`."""

    def close(self) -> None:
        """Let go of what running ranks needed; what they left stays readable."""

    def has_ended(self, index: int) -> bool:
        """The rank is gone, and its outcome and report are final."""

    def report_of(self, index: int) -> RankReport:
        """What a rank that has an outcome said."""

    def last_lines(self, index: int) -> str:
        """What a rank printed last, for its error; empty if that is not kept."""

    def stacks(self, *, quickly: bool = False) -> dict[int, str]:
        """Rank to the Python stacks of all its threads, of the ranks that run.

        Args:
            quickly: Only of those that run their function, and answer at once.
        """

    def state_of(self, index: int) -> str:
        """One word for what a rank does, as far as it is known; neither blocks nor raises.

        It is ``starting``, ``loading``, ``running``, ``done``, ``failed``, ``stopped``, or
        ``exited`` for one that is gone without anybody having noted how.
        """

    def steps_of(self, index: int) -> bytes:
        """What the rank said last with ``rankspawn.report``, as a record; see ``step_records``."""

    def open_output(self, index: int) -> RankOutput | None:
        """Where what the rank prints can be read; None if it goes somewhere else."""


class Spectator(Protocol):
    """Shows people what the ranks do; see ``rankspawn.view``."""

    def begin(self, group: Group, /) -> None:
        """This group was started."""

    def watched(self) -> AbstractContextManager[None]:
        """In here somebody waits for the ranks."""

    def finish(self) -> None:
        """The group was closed: show the rest."""
