"""Run one function once per device, and get every result or the real error.

A worker imports this package before anything else of its job, so nothing here loads more
than it must: every name but ``spawn`` is looked up when it is first used.

pytest would like to rewrite the assertions of its plugins' packages, and warns in a worker of a
test, where this one is imported before it: PYTEST_DONT_REWRITE tells it not to.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import, which costs each worker 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TypeVar, TypeVarTuple, Unpack, overload

    from rankspawn.errors import CollectiveMismatchError as CollectiveMismatchError
    from rankspawn.errors import CollectiveTimeoutError as CollectiveTimeoutError
    from rankspawn.errors import NodeLostError as NodeLostError
    from rankspawn.errors import ProcessException as ProcessException
    from rankspawn.errors import ProcessExceptionGroup as ProcessExceptionGroup
    from rankspawn.errors import ProcessExitedException as ProcessExitedException
    from rankspawn.errors import ProcessRaisedException as ProcessRaisedException
    from rankspawn.errors import RankLostError as RankLostError
    from rankspawn.errors import SpawnTimeoutError as SpawnTimeoutError
    from rankspawn.option_types import CommonOptions
    from rankspawn.option_types import Options as Options
    from rankspawn.parallel.data_parallel import DataParallel as DataParallel
    from rankspawn.parallel.environment import init_parallel_env as init_parallel_env
    from rankspawn.parallel.gradients import all_reduce_gradients as all_reduce_gradients
    from rankspawn.parallel_env import ParallelEnv as ParallelEnv
    from rankspawn.parallel_env import get_local_rank as get_local_rank
    from rankspawn.parallel_env import get_rank as get_rank
    from rankspawn.parallel_env import get_world_size as get_world_size
    from rankspawn.reporting import report as report
    from rankspawn.supervise.context import MultiprocessContext as MultiprocessContext
    from rankspawn.supervise.reports import Steps as Steps
    from rankspawn.sweep import map as map

    _T = TypeVar("_T")
    _Ts = TypeVarTuple("_Ts")

__version__ = "0.2.0"

__all__ = [
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "DataParallel",
    "MultiprocessContext",
    "NodeLostError",
    "Options",
    "ParallelEnv",
    "ProcessException",
    "ProcessExceptionGroup",
    "ProcessExitedException",
    "ProcessRaisedException",
    "RankLostError",
    "SpawnTimeoutError",
    "Steps",
    "__version__",
    "all_reduce_gradients",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
    "report",
    "spawn",
]

_HOMES = {
    "CollectiveMismatchError": "rankspawn.errors",
    "CollectiveTimeoutError": "rankspawn.errors",
    "DataParallel": "rankspawn.parallel.data_parallel",
    "MultiprocessContext": "rankspawn.supervise.context",
    "NodeLostError": "rankspawn.errors",
    "Options": "rankspawn.option_types",
    "ParallelEnv": "rankspawn.parallel_env",
    "ProcessException": "rankspawn.errors",
    "ProcessExceptionGroup": "rankspawn.errors",
    "ProcessExitedException": "rankspawn.errors",
    "ProcessRaisedException": "rankspawn.errors",
    "RankLostError": "rankspawn.errors",
    "SpawnTimeoutError": "rankspawn.errors",
    "Steps": "rankspawn.supervise.reports",
    "all_reduce_gradients": "rankspawn.parallel.gradients",
    "get_local_rank": "rankspawn.parallel_env",
    "get_rank": "rankspawn.parallel_env",
    "get_world_size": "rankspawn.parallel_env",
    "init_parallel_env": "rankspawn.parallel.environment",
    # Not in __all__: a star import must not take the place of Python's own.
    "map": "rankspawn.sweep",
    "report": "rankspawn.reporting",
}


if TYPE_CHECKING:
    # The order counts: a tuple must not get to those that take any, or its items go unchecked.
    @overload
    def spawn(
        func: Callable[[], _T],
        *,
        nprocs: int | Sequence[int] = -1,
        join: bool = True,
        daemon: bool = False,
        **options: Unpack[CommonOptions],
    ) -> MultiprocessContext[_T]: ...
    @overload
    def spawn(
        func: Callable[..., _T],
        args: list[Any],
        nprocs: int | Sequence[int] = -1,
        join: bool = True,
        daemon: bool = False,
        **options: Unpack[CommonOptions],
    ) -> MultiprocessContext[_T]: ...
    @overload
    def spawn(
        func: Callable[[*_Ts], _T],
        args: tuple[*_Ts],
        nprocs: int | Sequence[int] = -1,
        join: bool = True,
        daemon: bool = False,
        **options: Unpack[CommonOptions],
    ) -> MultiprocessContext[_T]: ...

    # With these two, args alone are not what func is called with.
    @overload
    def spawn(
        func: Callable[..., _T],
        args: tuple[Any, ...] | list[Any] = (),
        nprocs: int | Sequence[int] = -1,
        join: bool = True,
        daemon: bool = False,
        *,
        kwargs: Mapping[str, Any] | None,
        rank_args: Iterable[tuple[Any, ...] | list[Any]] | None = None,
        rank_kwargs: Iterable[Mapping[str, Any]] | None = None,
        **options: Unpack[CommonOptions],
    ) -> MultiprocessContext[_T]: ...
    @overload
    def spawn(
        func: Callable[..., _T],
        args: tuple[Any, ...] | list[Any] = (),
        nprocs: int | Sequence[int] = -1,
        join: bool = True,
        daemon: bool = False,
        *,
        rank_args: Iterable[tuple[Any, ...] | list[Any]] | None,
        rank_kwargs: Iterable[Mapping[str, Any]] | None = None,
        **options: Unpack[CommonOptions],
    ) -> MultiprocessContext[_T]: ...
    @overload
    def spawn(
        func: Callable[..., _T],
        args: tuple[Any, ...] | list[Any] = (),
        nprocs: int | Sequence[int] = -1,
        join: bool = True,
        daemon: bool = False,
        *,
        rank_kwargs: Iterable[Mapping[str, Any]] | None,
        **options: Unpack[CommonOptions],
    ) -> MultiprocessContext[_T]: ...


def spawn(
    func: Callable[..., Any],
    args: tuple[Any, ...] | list[Any] = (),
    nprocs: int | Sequence[int] = -1,
    join: bool = True,
    daemon: bool = False,
    **options: Unpack[Options],
) -> MultiprocessContext[Any]:
    """Run ``func(*args)`` in ``nprocs`` ranked worker processes.

    With ``join=True`` it blocks until all workers ended well; with ``join=False`` it returns
    as soon as they are started, and the caller supervises them through the context. If one
    worker fails, all others are stopped and its error is raised by whoever joins.

    Args:
        func: Any callable; it gets no rank argument, see :func:`get_rank`.
        args: Its positional arguments, a tuple or list, the same for every rank.
        nprocs: How many workers; -1 means one per visible device, or per usable CPU. With
            ``cluster``, on each node; or a sequence with a number for each.
        join: Wait for the workers before returning.
        daemon: The processes' daemon flag.
        **options: See the reference: ``backend``, ``gpus``, ``start_method``, ``env``,
            ``kwargs``, ``rank_args``, ``timeout``, ``on_failure``, ``log_dir`` and so on.

    Returns:
        The context: ``results()``, ``return_queues``, ``join()``, ``processes`` and more.

    Raises:
        TypeError: An argument of the wrong kind, or one that cannot be sent to a worker.
        ValueError: An unknown option or an impossible value.
        RuntimeError: The machine cannot do it, e.g. fewer devices than ranks.
        ProcessRaisedException: A worker's function raised; its exception is the cause.
        ProcessExitedException: A worker died without reporting, e.g. by a signal.
        NodeLostError: A node of a cluster is gone, or no agent came up on it.
        SpawnTimeoutError: The ``timeout`` passed; the stacks of all ranks are in it.
        ProcessExceptionGroup: With ``on_failure="continue"``, all failures at once.
    """
    from rankspawn.handlers import handlers_held

    # What a handler raises may be an OSError, as TimeoutError is, and an import takes such for a
    # file that is not there: the first call has many of them.
    with handlers_held():
        from rankspawn.caller import at_users_line
        from rankspawn.spawning import spawn_ranks

    context: MultiprocessContext | None = None
    try:
        with at_users_line:
            context = spawn_ranks(func, args, nprocs, join, daemon, options)
        return context  # noqa: RET504, TRY300 - a signal may come until the last line
    except BaseException:
        if context is not None:  # a signal on the way out: the caller has nothing to stop it with
            context.terminate()
        raise


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _answer_as_program() -> None:
    """A program of ``rankrun`` says from now on where it is to whoever asks."""
    import os

    if "RANKSPAWN_STEPS" in os.environ:
        from rankspawn.workers.program_stacks import answer_stack_requests

        answer_stack_requests()


_answer_as_program()
