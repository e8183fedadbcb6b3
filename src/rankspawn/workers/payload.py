"""The task of a group, serialized once for all ranks.

One anonymous file holds what every rank needs, and beside it each rank's own arguments. The
descriptors that objects bring along (queues, pipes, shared tensors) are recorded per part, so
that a pipe end meant for rank 0 is not also open in rank 1, where it would hide the end of file.
"""

from __future__ import annotations

import copyreg
import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import context, reduction
from types import MethodDescriptorType, MethodType, ModuleType, WrapperDescriptorType
from typing import Any

from rankspawn.descriptors import Owned, anonymous_file
from rankspawn.file_limit import is_too_large, too_large
from rankspawn.handlers import handlers_held, is_from_handler
from rankspawn.values import dataclass
from rankspawn.workers.inherited import ReceivedFd, SameFd
from rankspawn.workers.main_origin import MainOrigin, find_main, names_defined_again
from rankspawn.workers.parcel import open_parcel, write_parcel
from rankspawn.workers.pickling import BY_REFERENCE, BY_VALUE, Rules, dump, holds

_ADVICE = (
    "Create it inside the function, leave it out with __getstate__, "
    'or use start_method="fork", which sends nothing.'
)
_SHARED_ADVICE = (
    'Create it with multiprocessing.get_context("spawn"), whose objects can be shared under '
    "every start method."
)
_ELSEWHERE_ADVICE = (
    "It connects processes of one machine. On a cluster, ranks talk through "
    "rankspawn.init_parallel_env(), or a multiprocessing.Manager that all nodes can reach."
)
_MAIN = re.compile(rb"__(mp_)?main__")
_PICKLE_KNOWS = (MethodType, MethodDescriptorType, WrapperDescriptorType, partial)


@dataclass(frozen=True, slots=True)
class Part:
    """One pickle in the payload file, with the descriptors that it refers to.

    Attributes:
        table: Where to begin reading it.
        fds: The descriptors.
        end: Where it ends in the file; it begins where the one before ends.
    """

    table: int
    fds: tuple[int, ...]
    end: int = 0


class Payload:
    """The file, and where each part of it begins."""

    __slots__ = ("duplicates", "end", "file", "main", "own", "task")

    def __init__(
        self,
        file: Owned,
        end: int,
        task: Part,
        own: tuple[Part, ...],
        main: MainOrigin | None,
        duplicates: tuple[Owned, ...],
    ) -> None:
        self.file: Owned = file
        self.end: int = end
        self.task: Part = task
        self.own: tuple[Part, ...] = own
        self.main: MainOrigin | None = main
        self.duplicates: tuple[Owned, ...] = duplicates

    def add(self, value: Any) -> int:
        """Add a value made of built-in types; return its table."""
        write = partial(os.pwrite, self.file.fileno())
        table, self.end = write_parcel(write, self.end, lambda stream: dump(value, stream, Rules()))
        return table

    def close(self) -> None:
        """Let go of the file; workers that were started have it open themselves."""
        for file in (self.file, *self.duplicates):
            file.close()

    def part_of(self, index: int) -> Part:
        """A worker's own arguments; table 0 where workers have none."""
        return self.own[index] if self.own else Part(0, ())


def write_payload(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rows: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    inheritance: Inheritance,
    *,
    main_by_value: bool = False,
) -> Payload:
    """Serialize the task for every rank.

    Args:
        func: What to call.
        args: With which arguments.
        kwargs: By name.
        rows: And which of its own for each rank, by place and by name.
        inheritance: What becomes of objects that only inherit.
        main_by_value: What the main module defines is not there for a worker to import.

    Raises:
        TypeError: Something cannot be pickled; the message names the path to it.
    """
    # Workers call the main module so, and results refer to it. multiprocessing sets this once,
    # when it is imported, which may be before a runner (coverage, IPython) put it in place.
    sys.modules["__mp_main__"] = sys.modules["__main__"]
    with handlers_held():
        file = Owned(anonymous_file("rankspawn-payload"))
    rules = SendingRules(inheritance)
    if main_by_value:
        rules.main = None
    names = {"func": func, "args": tuple(args), "kwargs": dict(kwargs)}
    task, end = _write_part(file, 0, tuple(names.values()), rules, names)
    rules.first_place = len(task.fds)
    own: list[Part] = []
    for index, row in enumerate(rows):
        names = {f"rank_args[{index}]": row[0], f"rank_kwargs[{index}]": row[1]}
        part, end = _write_part(file, end, row, rules, names)
        own.append(part)
    main = rules.main if rules.main_is_needed else None
    return Payload(file, end, task, tuple(own), main, inheritance.duplicates)


class Inheritance:
    """Stands for "a process is being started" while multiprocessing's objects are pickled.

    Locks, queues and connections refuse to be pickled at any other moment. The descriptors
    that they want in the worker are recorded. What stands for one in the pickle depends on the
    start method: its number (spawn), or its place among those that are sent (forkserver).
    """

    def __init__(
        self, *, by_place: bool = False, shares_tensors: bool = False, elsewhere: bool = False
    ) -> None:
        self._by_place = by_place
        # Workers are on other machines: they inherit nothing, and share no memory with us.
        self.elsewhere = elsewhere
        # Every tensor goes into shared memory, as with torch's own spawn.
        self.shares_tensors = shares_tensors
        self._first_place = 0
        self._fds: list[int] = []
        self._duplicates: list[Owned] = []
        self._taken: set[int] = set()
        # multiprocessing calls DupFd(duplicate_for_child(fd)).
        self.DupFd: type[ReceivedFd | SameFd] = ReceivedFd if by_place else SameFd

    def duplicate_for_child(self, fd: int) -> int:
        """Record a descriptor; what it returns goes into the pickle."""
        if fd in self._taken:
            # Each user of a descriptor closes it, so a second user needs one of its own.
            with handlers_held():  # or one could come before somebody closes it
                copy = Owned(os.dup(fd))
            self._duplicates.append(copy)
            fd = copy.fileno()
        self._taken.add(fd)
        self._fds.append(fd)
        return self._first_place + len(self._fds) - 1 if self._by_place else fd

    def begin_part(self, first_place: int) -> None:
        """Start recording for one part; what an unfinished attempt recorded is forgotten."""
        self._taken.difference_update(self._fds)
        self._first_place = first_place
        self._fds = []

    def finish_part(self) -> tuple[int, ...]:
        """The descriptors of the part."""
        fds, self._fds = tuple(self._fds), []
        return fds

    @property
    def duplicates(self) -> tuple[Owned, ...]:
        """Copies made on the way; to be kept open until the workers are started."""
        return tuple(self._duplicates)


class SendingRules(Rules):
    """What goes to a worker by reference: whatever the worker can import."""

    def __init__(self, inheritance: Inheritance) -> None:
        self.inheritance = inheritance
        self.first_place: int = 0
        self.main: MainOrigin | None = find_main()
        self.main_is_needed: bool = False
        self._names_in_main: frozenset[str] | None = None
        self._importable: dict[str, bool] = {}
        self._registered: list[ModuleType] = []
        # What multiprocessing and torch registered for sharing with a starting process. Methods
        # and partials, which it registers as well, go without: pickle knows them by now, and
        # its way would have every worker import multiprocessing.
        pickler: Any = reduction.ForkingPickler(io.BytesIO())
        self.reducers: dict[type, Any] = {
            kind: reduce
            for kind, reduce in pickler.dispatch_table.items()
            if kind not in _PICKLE_KNOWS and copyreg.dispatch_table.get(kind) is not reduce
        }
        self.reducers[MethodType] = _reduce_method
        if "torch" in sys.modules or "paddle" in sys.modules:
            from rankspawn.workers.tensors import add_reducers

            add_reducers(
                self,
                shared_stay_shared=not self.inheritance.elsewhere,
                torch_too=not self.inheritance.shares_tensors,
            )

    def begin(self) -> None:
        """Called before each attempt."""
        self.inheritance.begin_part(self.first_place)

    def end(self) -> None:
        """Called after the last attempt."""
        if self._registered:
            import cloudpickle

            while self._registered:
                cloudpickle.unregister_pickle_by_value(self._registered.pop())

    def is_interruption(self, error: BaseException) -> bool:
        """Whether a handler of a signal raised it, in the middle of pickling."""
        return is_from_handler(error)

    def choose_way(self, obj: Any) -> str | None:
        """By value for what a worker could not import; None for what it can."""
        if (name := str(getattr(obj, "__module__", None))) == "builtins":
            return None
        qualname = getattr(obj, "__qualname__", "")  # a cache around a partial has none
        module = sys.modules.get(name)
        if module is None or not holds(module, qualname, obj):
            return BY_VALUE
        if name in ("__main__", "__mp_main__"):
            return self._way_of_main(qualname)
        if self._is_registered(name):
            return BY_VALUE
        if self._worker_can_import(name):
            return None
        self._send_by_value(module)
        return BY_VALUE

    def _way_of_main(self, qualname: str) -> str:
        if self.main is None:
            return BY_VALUE
        if self._names_in_main is None:
            self._names_in_main = names_defined_again(self.main)
        if qualname.partition(".")[0] not in self._names_in_main:
            return BY_VALUE
        self.main_is_needed = True
        return BY_REFERENCE

    def _worker_can_import(self, name: str) -> bool:
        if name not in self._importable:
            self._importable[name] = _is_importable(name)
        return self._importable[name]

    def _is_registered(self, name: str) -> bool:
        """The user wants this module, or a package around it, to go by value."""
        cloudpickle: Any = sys.modules.get("cloudpickle")
        if cloudpickle is None:
            return False
        registered = cloudpickle.list_registry_pickle_by_value()
        return any(name == module or name.startswith(f"{module}.") for module in registered)

    def _send_by_value(self, module: ModuleType) -> None:
        import cloudpickle

        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            self._registered.append(module)


def _reduce_method(method: MethodType) -> tuple[Any, ...]:
    """A bound method by its name, or, where that leads elsewhere (``self.__run``), in parts."""
    owner, name = method.__self__, method.__func__.__name__
    if getattr(owner, name, None) == method:
        return getattr, (owner, name)
    return MethodType, (method.__func__, owner)


def _is_importable(name: str) -> bool:
    """True if an import of this name, in a fresh process, finds the module that is loaded here.

    False for modules that were made in memory or loaded from a path (configuration files,
    pytest's importlib mode).
    """
    if name.partition(".")[0] in sys.stdlib_module_names:
        return True
    module = sys.modules[name]
    parent = sys.modules.get(name.rpartition(".")[0])
    try:
        spec = _find_spec(name, getattr(parent, "__path__", None))
    except Exception as error:
        if is_from_handler(error):
            raise
        return True
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    origin = origin or getattr(module, "__file__", None)
    return spec is not None and (origin is None or origin == spec.origin)


def _find_spec(name: str, path: Sequence[str] | None) -> Any:
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def _write_part(
    file: Owned, offset: int, value: Any, rules: SendingRules, names: Mapping[str, Any]
) -> tuple[Part, int]:
    # Of this thread alone: multiprocessing keeps it in a threading.local.
    before = context.get_spawning_popen()
    # It has what is used of a Popen while pickling; on another machine nothing is inherited.
    spawning: Any = None if rules.inheritance.elsewhere else rules.inheritance
    context.set_spawning_popen(spawning)
    try:
        write = partial(os.pwrite, file.fileno())
        table, end = write_parcel(write, offset, lambda stream: dump(value, stream, rules))
        # Also what is pickled by its name without being a function or class, such as a
        # function with a cache. A text that merely says so costs an import, nothing else.
        rules.main_is_needed |= bool(_MAIN.search(open_parcel(file.fileno(), table)[0]))
        return Part(table, rules.inheritance.finish_part(), end), end
    except Exception as error:
        if is_from_handler(error):
            raise
        if is_too_large(error):
            raise too_large("func and its arguments cannot be sent to a worker") from None
        with handlers_held():  # the search takes every exception for one of what it pickles
            explained = _explain(error, names, rules)
        raise explained from error
    finally:
        context.set_spawning_popen(before)


def _explain(error: Exception, names: Mapping[str, Any], rules: SendingRules) -> TypeError:
    """The error that names the culprit; ``names`` maps how users call the parts to the parts."""
    from rankspawn.workers.culprit import find_culprit

    for name, value in names.items():
        if (found := find_culprit(value, name, rules)) is not None:
            path, culprit, reason = found
            kind = type(culprit)
            advice = _ADVICE
            if kind.__module__.startswith("multiprocessing"):
                advice = _ELSEWHERE_ADVICE if rules.inheritance.elsewhere else _SHARED_ADVICE
            why = str(reason).rstrip(".")
            return TypeError(
                f"{path} cannot be sent to a worker: {kind.__name__} object: {why}. {advice}"
            )
    return TypeError(f"func and its arguments cannot be sent to a worker: {error}")
