"""The names of ``torch.multiprocessing.spawn``; torch itself is not imported.

As there, the function gets the worker's index first, the environment is the parent's own, and
joining returns None. What differs is what does not work there: results and tracebacks of any
size, functions that plain pickle refuses, and workers that vanish without an error.

A worker runs the script once more, and imports this module with it: nothing here loads more than it
must.
"""

from __future__ import annotations

from rankspawn.errors import ProcessException, ProcessExitedException, ProcessRaisedException

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from rankspawn.workers.context import MultiprocessContext
    from rankspawn.workers.context import MultiprocessContext as ProcessContext
    from rankspawn.workers.context import MultiprocessContext as SpawnContext

__all__ = [
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "spawn",
    "start_processes",
]


def start_processes(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> MultiprocessContext | None:
    """Run ``fn(i, *args)`` in ``nprocs`` processes, i from 0.

    Args:
        fn: What to run.
        args: Its arguments after the index.
        nprocs: How many.
        join: Wait for them.
        daemon: Their daemon flag.
        start_method: ``spawn``, ``fork`` or ``forkserver``.

    Returns:
        None if joined, else the context.

    Raises:
        ProcessRaisedException: ``fn`` raised.
        ProcessExitedException: A process ended in another way.
    """
    from rankspawn.compat.starting import start_indexed

    context = start_indexed(IndexFirst(fn), args, nprocs, join, daemon, start_method)
    return None if join else context


def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> MultiprocessContext | None:
    """:func:`start_processes` with the start method spawn; another one gets a warning."""
    if start_method != "spawn":
        from rankspawn.warned import warn_caller

        warn_caller(
            f"spawn() starts with 'spawn' only, as torch's does; call "
            f"start_processes(start_method={start_method!r}) for the other",
            FutureWarning,
        )
    return start_processes(fn, args, nprocs, join, daemon, "spawn")


class IndexFirst:
    """Runs in the worker: calls ``fn(index, *args)``; the index arrives last."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def __call__(self, *arguments: Any) -> Any:
        *args, index = arguments
        return self.fn(index, *args)


def __getattr__(name: str) -> object:
    if name not in ("ProcessContext", "SpawnContext"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rankspawn.workers.context import MultiprocessContext

    return MultiprocessContext


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
