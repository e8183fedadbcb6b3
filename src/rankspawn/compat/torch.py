"""``torch.multiprocessing``, with a ``spawn`` of our own; torch itself is not imported for that.

As there, the function gets the worker's index first, the environment is the parent's own, and
joining returns None. What differs is what does not work there: results and tracebacks of any
size, functions that plain pickle refuses, and workers that vanish without an error.

All other names (``Queue``, ``get_context``, ``set_sharing_strategy``, …) are torch's own, which is
imported when the first of them is used. Where torch is loaded, exceptions and contexts are of
torch's classes, too.
"""

from __future__ import annotations

# A worker runs the script once more, and imports this module with it: so nothing more is loaded
# here, and what starts workers has a module of its own.
from rankspawn.errors import ProcessException, ProcessExitedException, ProcessRaisedException

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Literal, TypeVar, TypeVarTuple, overload

    from rankspawn.compat.torch_context import ProcessContext as ProcessContext
    from rankspawn.compat.torch_context import ProcessContext as SpawnContext
    from rankspawn.option_types import StartMethod

    _T = TypeVar("_T")
    _Ts = TypeVarTuple("_Ts")
    _F = TypeVar("_F")

__all__ = [
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "spawn",
    "start_processes",
]


if TYPE_CHECKING:
    # The order counts: a tuple must not get to those that take any, or its items go unchecked.
    @overload
    def start_processes(
        fn: Callable[[int], _T],
        *,
        nprocs: int = 1,
        join: Literal[False],
        daemon: bool = False,
        start_method: StartMethod | None = "spawn",
    ) -> ProcessContext[_T]: ...
    @overload
    def start_processes(
        fn: Callable[[int], _T],
        *,
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: StartMethod | None = "spawn",
    ) -> ProcessContext[_T] | None: ...
    @overload
    def start_processes(
        fn: Callable[..., _T],
        args: list[Any],
        nprocs: int = 1,
        *,
        join: Literal[False],
        daemon: bool = False,
        start_method: StartMethod | None = "spawn",
    ) -> ProcessContext[_T]: ...
    @overload
    def start_processes(
        fn: Callable[..., _T],
        args: list[Any],
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: StartMethod | None = "spawn",
    ) -> ProcessContext[_T] | None: ...
    @overload
    def start_processes(
        fn: Callable[[int, *_Ts], _T],
        args: tuple[*_Ts],
        nprocs: int = 1,
        *,
        join: Literal[False],
        daemon: bool = False,
        start_method: StartMethod | None = "spawn",
    ) -> ProcessContext[_T]: ...
    @overload
    def start_processes(
        fn: Callable[[int, *_Ts], _T],
        args: tuple[*_Ts],
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: StartMethod | None = "spawn",
    ) -> ProcessContext[_T] | None: ...


def start_processes(
    fn: Callable[..., Any],
    args: Iterable[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: StartMethod | None = "spawn",
) -> ProcessContext[Any] | None:
    """Run ``fn(i, *args)`` in ``nprocs`` processes, i from 0.

    Args:
        fn: The function to run.
        args: Its arguments after the index, of any iterable.
        nprocs: How many processes to start.
        join: Whether to wait for their end.
        daemon: The daemon flag of the processes.
        start_method: ``spawn``, ``fork`` or ``forkserver``; None for multiprocessing's default.

    Returns:
        None if joined, else the context.

    Raises:
        ProcessRaisedException: ``fn`` raised.
        ProcessExitedException: A process ended in another way.
    """
    from rankspawn.handlers import handlers_held

    with handlers_held():  # as in rankspawn.spawn
        from rankspawn.compat.starting import start_indexed

    context = start_indexed(IndexFirst(fn), args, nprocs, join, daemon, start_method)
    return None if join else context


def _typed_like(_: _F) -> Callable[[Callable[..., Any]], _F]:
    """A decorator that changes nothing but what checkers know."""
    return lambda function: function  # type: ignore[return-value]  # that is its purpose


@_typed_like(start_processes)
def spawn(
    fn: Callable[..., Any],
    args: Iterable[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: StartMethod | None = "spawn",
) -> ProcessContext[Any] | None:
    """:func:`start_processes` with the start method spawn; another method gets a warning."""
    if start_method != "spawn":
        from rankspawn.caller import warn_caller

        warn_caller(
            f"spawn() starts with 'spawn' only, as torch's does; call "
            f"start_processes(start_method={start_method!r}) for the other",
            FutureWarning,
        )
    from rankspawn.handlers import handlers_held

    with handlers_held():  # as in rankspawn.spawn
        from rankspawn.compat.starting import start_indexed

    context = start_indexed(IndexFirst(fn), args, nprocs, join, daemon, "spawn")
    return None if join else context


class IndexFirst:
    """A callable that calls ``fn(index, *args)``, though the index arrives last.

    Runs in the worker.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def __call__(self, *arguments: Any) -> Any:
        *args, index = arguments
        return self.fn(index, *args)


def __getattr__(name: str) -> Any:
    if name in ("ProcessContext", "SpawnContext"):
        from rankspawn.compat.torch_context import context_class

        return context_class()
    from rankspawn.compat.peers import forward

    return forward(name, module=__name__, to="torch.multiprocessing")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
