"""What is to be started: the task of all ranks, how to start them, and each rank's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankspawn.descriptors import Owned
from rankspawn.workers.environment import whole_environment
from rankspawn.workers.process import RankProcess

# Variables as the system has them; None removes one.
EncodedChanges = Sequence[tuple[bytes, bytes | None]]


@dataclass(frozen=True, slots=True)
class Task:
    """What every rank calls: ``func(*args, *rank_args[rank], **kwargs)``."""

    func: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    rank_args: Sequence[Sequence[Any]] | None = None

    def bind(self, local_rank: int) -> Callable[[], Any]:
        """The call of one rank, where nothing has to be sent."""
        own = self.rank_args[local_rank] if self.rank_args is not None else ()
        return lambda: self.func(*self.args, *own, **self.kwargs)


@dataclass(frozen=True, slots=True)
class StartSettings:
    """How the workers of a group are started."""

    start_method: str = "spawn"
    daemon: bool = False
    preload: tuple[str, ...] = ()
    log_dir: str | None = None
    # Output goes to files without a name, for somebody to show it.
    captures: bool = False
    # Somebody looks at what workers say with rankspawn.report().
    looked_at: bool = False
    # The rank that gets this process's terminal.
    debug_rank: int | None = None
    # Tensors among the arguments are put into shared memory, as torch's own spawn does.
    shares_tensors: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """Where one worker's output goes; without a ``target`` to where this process's own goes.

    Attributes:
        target: What it writes to; needed until it was started.
        path: Of its log, if it has one.
        start: Where its output begins in its log; what is before is an earlier try's.
        captured: The file that has its output, if that is kept without a log.
    """

    target: Owned | None = None
    path: str | None = None
    start: int = 0
    captured: Owned | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What one worker is started with."""

    rank: int
    index: int
    changes: Mapping[str, str | None]
    outcome: Owned
    output: Output
    process: RankProcess
    # This rank reads and writes the terminal of the parent.
    has_terminal: bool = False

    def environment(self) -> dict[str, str]:
        """All of its environment."""
        return whole_environment(self.changes, has_log=self.output.target is not None)

    def close(self) -> None:
        """Let go of it, if the worker is not started."""
        for one in (self.outcome, self.output.target, self.output.captured):
            if one is not None:
                one.close()
