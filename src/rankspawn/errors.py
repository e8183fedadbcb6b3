"""What can go wrong with a group of workers.

::

    ProcessException(Exception)          a rank failed: rank, pid, failures
    ├─ ProcessRaisedException            its function raised: exception, traceback
    ├─ ProcessExitedException            it died without reporting: exit_code, signal_name, crash
    ├─ NodeLostError                     a node of a cluster is gone, and its ranks with it: host
    └─ SpawnTimeoutError(TimeoutError)   the group ran out of time: stacks

    ProcessExceptionGroup(ExceptionGroup)    on_failure="continue": all failures, results

    CollectiveMismatchError(RuntimeError)    ranks called different things: ranks, calls
    RankLostError(RuntimeError)              a rank is gone that others wait for: rank, collective
    CollectiveTimeoutError(TimeoutError)     ranks have not come in time: missing, collective

The last three are raised in ranks, by :mod:`rankspawn.parallel`.
Bad arguments raise plain ``ValueError`` or ``TypeError`` before any process starts.
Every class survives pickling with all of its attributes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


class ProcessException(Exception):
    """Base of every worker failure; ``rank`` says whose.

    Attributes:
        rank: The rank whose failure came first; also as ``error_index``.
        pid: The process id of that rank.
        failures: Every independent failure of the group, in order of time, this one first.
            Ranks that were stopped because another one failed are not in it.
        stacks: Rank to the Python stacks of all its threads: of those that ran when this one
            failed, before they were stopped.
    """

    def __init__(self, msg: str, error_index: int = -1, error_pid: int = -1) -> None:
        # args equal the parameters, or unpickling would call __init__ with others. Not super():
        # in compat.torch it may be torch's class, whose attributes are properties here.
        Exception.__init__(self, msg, error_index, error_pid)
        self.rank = error_index
        self.pid = error_pid
        self.failures: tuple[ProcessException, ...] = (self,)
        self.stacks: dict[int, str] = {}

    @property
    def error_index(self) -> int:
        """The failed rank, under the name that torch uses."""
        return self.rank

    @property
    def error_pid(self) -> int:
        """The failed rank's process id, under the name that torch uses."""
        return self.pid

    @property
    def msg(self) -> str:
        """The message."""
        return str(self.args[0])

    def __str__(self) -> str:
        return str(self.args[0])

    def _origin(self) -> tuple[object, tuple[object, ...]]:
        """What makes another one of it, and with which arguments."""
        return type(self), self.args

    def __reduce__(self) -> tuple[object, ...]:
        return *self._origin(), self.__dict__


class ProcessRaisedException(ProcessException):
    """A worker's function raised.

    Attributes:
        exception: The worker's exception, also as ``__cause__``. Where it could not be sent
            whole, one of the same class with what could, or of the nearest known base class.
        traceback: The worker's traceback as text, never lost.
    """

    def __init__(
        self,
        msg: str,
        error_index: int = -1,
        error_pid: int = -1,
        exception: BaseException | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exception = exception
        self.traceback = traceback
        self.__cause__ = exception

    def __reduce__(self) -> tuple[object, ...]:
        # The original is a user's: it may not survive pickle as it is, so it goes in pieces.
        from rankspawn.workers.exceptions import pack

        packed = None if self.exception is None else pack(self.exception)
        return *self._origin(), {**self.__dict__, "exception": packed}

    def __setstate__(self, state: dict[str, Any] | None) -> None:
        from rankspawn.workers.exceptions import unpack

        attributes = dict(state or {})
        packed = attributes.pop("exception", None)
        self.__dict__.update(attributes)
        self.exception = self.__cause__ = None if packed is None else unpack(packed)


class ProcessExitedException(ProcessException):
    """A worker ended without a result: by a signal, an exit code, or silently.

    With ``rank`` -1 it is the process that hosts torch's store (``agent_store``).

    Attributes:
        exit_code: The code; minus the number for a signal.
        signal_name: ``"SIGKILL"`` and so on, or None if no signal ended it.
        crash: The Python stacks of all its threads when it crashed in C code; empty if it did not.
    """

    def __init__(
        self,
        msg: str,
        error_index: int = -1,
        error_pid: int = -1,
        exit_code: int = -1,
        signal_name: str | None = None,
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name
        self.crash: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        # By name: where it is torch's class as well, which has slots, they are not in __dict__.
        own = {"exit_code": self.exit_code, "signal_name": self.signal_name}
        return *self._origin(), {**self.__dict__, **own}


class NodeLostError(ProcessException):
    """A node of a cluster, or the agent that supervises its ranks, is gone.

    ``rank`` is the first one of that node, or -1 if none was started there yet.

    Attributes:
        host: The node.
    """

    def __init__(
        self, msg: str, error_index: int = -1, error_pid: int = -1, host: str = ""
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.host: str = host


class SpawnTimeoutError(ProcessException, TimeoutError):
    """The group did not end within ``timeout``.

    Attributes:
        stacks: Rank to the Python stacks of all its threads, taken before it was stopped.
    """

    def __init__(
        self,
        msg: str,
        error_index: int = -1,
        error_pid: int = -1,
        stacks: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.stacks: dict[int, str] = dict(stacks or {})
        # The system's errors take their arguments for a number and its text.
        self.errno: int | None = None
        self.strerror: str | None = None


class ProcessExceptionGroup(ExceptionGroup[ProcessException]):
    """Ranks failed while the others went on to their end (``on_failure="continue"``).

    Attributes:
        exceptions: The error of each rank that failed, the first in time first.
        results: Rank to result, of the ranks that did not fail.
    """

    # No __init__ of its own: an exception group makes its parts with two arguments.
    results: dict[int, Any] = {}  # noqa: RUF012 - of one that was made without any

    def derive(self, excs: Sequence[Exception]) -> ProcessExceptionGroup:  # type: ignore[override]
        """A part of it (``except*``, ``split``), which has the same results."""
        part = ProcessExceptionGroup(self.message, list(excs))  # type: ignore[arg-type]
        part.results = self.results
        return part

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, list(self.exceptions)), self.__dict__


class CollectiveMismatchError(RuntimeError):
    """Two ranks called different collectives, or one with different shapes, types or roots.

    Attributes:
        ranks: The two of them; the one that raised this is the first.
        calls: What each called, and where: ``all_reduce of float32[3] ... at train.py:12``.
    """

    def __init__(
        self, message: str, ranks: tuple[int, ...] = (), calls: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.ranks: tuple[int, ...] = ranks
        self.calls: tuple[str, ...] = calls

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, self.__dict__


class RankLostError(RuntimeError):
    """A rank died, raised, returned or gave up while this one waited for it.

    Attributes:
        rank: Who is gone.
        collective: What this rank waited in.
    """

    def __init__(self, message: str, rank: int = -1, collective: str = "") -> None:
        super().__init__(message)
        self.rank: int = rank
        self.collective: str = collective

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, self.__dict__


class CollectiveTimeoutError(TimeoutError):
    """Ranks have not come to a collective in time.

    Attributes:
        missing: The ranks that had not come.
        collective: What this rank waited in.
    """

    def __init__(self, message: str, missing: tuple[int, ...] = (), collective: str = "") -> None:
        # With one argument: the system's errors take two for a number and its text.
        super().__init__(message)
        self.missing: tuple[int, ...] = missing
        self.collective: str = collective

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, self.__dict__
