"""``rankspawn.map``: a function over many items, dealt to ranks; results in their order."""

from __future__ import annotations

import os

from rankspawn.caller import at_users_line
from rankspawn.errors import ProcessExceptionGroup, ProcessRaisedException, SpawnTimeoutError
from rankspawn.functions import check_callable, check_func, name_of
from rankspawn.machine import RealMachine
from rankspawn.options import check_nprocs, read_options
from rankspawn.plan.job import resolve
from rankspawn.spawning import refuse_while_loading, spawn_ranks

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TypeVar, Unpack

    from rankspawn.errors import ProcessException
    from rankspawn.option_types import Options
    from rankspawn.options import SpawnOptions

    _A = TypeVar("_A")
    _T = TypeVar("_T")

# What a sweep decides itself, or what would have every machine do all of it.
_NOT_HERE = {
    "rank_args": "the items are what ranks get",
    "rank_kwargs": "the items are what ranks get",
    "cluster": "the items are dealt to the ranks of one machine",
    "ips": "the items are dealt to the ranks of one machine",
}
_SELECTIONS = ("gpus", "xpus", "devices", "selected_devices")


@at_users_line
def map(
    func: Callable[[_A], _T],
    iterable: Iterable[_A],
    nprocs: int = -1,
    **options: Unpack[Options],
) -> list[_T]:
    """Call ``func(item)`` for every item, on ``nprocs`` ranks; the results in the items' order.

    Items are dealt before the start: rank r has those at r, r + nprocs, r + 2 nprocs and so on, and
    calls ``func`` with one after the other. So a model that is loaded once serves many items.

    Args:
        func: Any callable, or a coroutine function; it gets one item, and ``kwargs``.
        iterable: The items; it is read to its end before anything is started.
        nprocs: How many ranks; -1 as with ``spawn``, but no more than there are items.
        **options: Those of ``spawn``, without ``rank_args``, ``rank_kwargs``, ``cluster``, ``ips``.
            With ``on_failure="continue"`` all other items are done after one has failed.

    Returns:
        What ``func`` returned for each item.

    Raises:
        ProcessRaisedException: It raised for an item, which a note names; all ranks were stopped.
        ProcessExceptionGroup: With ``on_failure="continue"``: an error for each item that failed
            and each rank that died; ``results`` has the others', by the place of their item.
    """
    refuse_while_loading()
    for name, why in _NOT_HERE.items():
        if options.get(name) is not None:
            raise ValueError(f"rankspawn.map() has no option {name!r}: {why}")
    items = list(iterable)
    checked = read_options(options)
    count = check_nprocs(nprocs)
    if not items:
        return []
    check_callable(func)
    func = check_func(func, items[:1], checked)
    if count == -1:
        count = _count(len(items), checked)
    rows = [(list(enumerate(items))[rank::count],) for rank in range(count)]
    goes_on = checked.on_failure == "continue"
    given = {**options, "rank_args": rows}
    context = spawn_ranks(_Sweep(func, goes_on=goes_on), (), count, not goes_on, False, given)
    if goes_on:
        return _gather(context.outcomes(), context.pids(), len(items))
    found = {place: value for answers in context.results() for place, value in answers}
    return [found[place] for place in range(len(items))]


def _count(items: int, options: SpawnOptions) -> int:
    """As many ranks as there would be, but none without an item unless its device is named."""
    most = resolve(-1, options, os.environ, RealMachine()).resources.nprocs
    is_named = any(getattr(options, name) is not None for name in _SELECTIONS)
    return most if is_named else min(most, items)


class _Failed:
    """What became of an item whose call raised, on its way to the parent."""

    def __init__(self, packed: Mapping[str, Any], text: str) -> None:
        self.packed, self.text = packed, text


class _Sweep:
    """What each rank runs: the function, for each of its items."""

    def __init__(self, func: Callable[..., Any], *, goes_on: bool) -> None:
        self.func, self.goes_on = func, goes_on
        # What people call it.
        self.__qualname__ = name_of(func)

    def __call__(self, items: Sequence[tuple[int, Any]], /, **kwargs: Any) -> list[Any]:
        """Place and result of each item."""
        return [(place, self._call(place, item, kwargs)) for place, item in items]

    def _call(self, place: int, item: Any, kwargs: Mapping[str, Any]) -> Any:
        try:
            return self.func(item, **kwargs)
        except Exception as error:
            error.add_note(f"rankspawn.map was at item {place}.")
            if not self.goes_on:
                raise
            from rankspawn.workers.exceptions import describe, pack

            return _Failed(pack(error), describe(error))


def _gather(answers: Sequence[Any], pids: Sequence[int], count: int) -> list[Any]:
    """The results in order, or all that went wrong."""
    errors: list[ProcessException] = []
    found: dict[int, Any] = {}
    for rank, answer in enumerate(answers):
        if isinstance(answer, SpawnTimeoutError):
            raise answer
        if isinstance(answer, Exception):
            errors.append(answer)  # type: ignore[arg-type]  # of a rank, as all of them
            continue
        for place, value in answer:
            if isinstance(value, _Failed):
                errors.append(_error_of(place, value, rank, pids[rank]))
            else:
                found[place] = value
    if errors:
        text = f"{count - len(found)} of {count} items have no result; the others' are in .results"
        group = ProcessExceptionGroup(text, errors)
        group.results = found
        raise group
    return [found[place] for place in range(count)]


def _error_of(place: int, failed: _Failed, rank: int, pid: int) -> ProcessRaisedException:
    from rankspawn.workers.exceptions import unpack

    message = f"Item {place}, on rank {rank}, failed with the following error:\n{failed.text}"
    error = unpack(dict(failed.packed))
    return ProcessRaisedException(message.rstrip("\n"), rank, pid, error, failed.text)
