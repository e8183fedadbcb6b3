"""Pickling what users pass: by reference where it can, by value where it must.

Runs on both sides: the parent pickles the task, a worker pickles its result. The plain pickler
is tried first, so that neither side imports cloudpickle (45 ms) for payloads that need none.
If the plain one meets something that only goes by value, the whole object is pickled again
with cloudpickle: pickling only that part by value would break references shared with the rest.
"""

from __future__ import annotations

import copyreg
import functools
import sys
from types import FunctionType

from rankspawn.cpython import load_pickle

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pickle
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any, BinaryIO, ClassVar

    from rankspawn.workers.known_classes import KnownClasses
    from rankspawn.workers.tensors import Overlaps

_pickle = load_pickle()
_PlainPickler: Any = _pickle.Pickler
loads: Callable[..., Any] = _pickle.loads
PROTOCOL = 5
# What picklers raise for an object they cannot take. RecursionError: nested too deep.
CANNOT_PICKLE = (_pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError)
# Smaller buffers are cheaper in the stream than in pages of their own.
OUT_OF_BAND = 64 * 1024
BY_REFERENCE = "by reference"
BY_VALUE = "by value"
_CachedFunction: Any = type(functools.cache(len))
# What this process has in common with its parent, if it is a forked worker.
known_to_parent: KnownClasses | None = None


class ByValueNeeded(Exception):
    """The plain pickler met a function or class that has to go by value."""


class Rules:
    """How one side pickles; as they stand here they suit a worker's result.

    A worker may refer to whatever it imported, because the parent can import it too; what
    cannot be found by its name fails in the plain pickler, and then goes by value.
    """

    # Asked about whatever pickle sends by name; None leaves it to the pickler.
    choose_way: Callable[[Any], str | None] | None = None
    # Reducers beside copyreg's: multiprocessing's own, for what a starting process inherits.
    reducers: Mapping[type, Callable[[Any], Any]] | None = None
    # Classes that the other side has as well, whatever they are called.
    known: KnownClasses | None = None
    # Which tensors have memory in common; none where no framework is loaded.
    overlaps: Overlaps | None = None

    def begin(self) -> None:
        """Called before each attempt; forget what the last one recorded."""

    def end(self) -> None:
        """Called after the last attempt, however it ended."""

    def is_interruption(self, error: BaseException) -> bool:  # noqa: ARG002 - a worker's own
        """Whether this has nothing to do with what is pickled."""
        return False


def rules_of_worker() -> Rules:
    """Runs in the worker: how it pickles what it sends back."""
    rules = Rules()
    rules.reducers = _refuse_descriptors()
    rules.known = known_to_parent
    return rules


def _refuse_descriptors() -> dict[type, Callable[[Any], Any]]:
    """Reducers for a worker that refuse what is only a number in another process.

    pickle itself takes a pipe's end for plain data. The parent's copy would stand for whatever has
    the same number there, and close it in the end.
    """
    module = sys.modules.get("multiprocessing.connection")
    return {} if module is None else {module.Connection: _refuse}


def _refuse(connection: Any) -> Any:
    raise TypeError(f"the end of a pipe ({connection!r}) cannot be sent back to the parent")


def dump(obj: Any, stream: BinaryIO, rules: Rules) -> list[memoryview]:
    """Pickle ``obj`` into a seekable file; return the large buffers that were left out.

    Raises:
        One of ``CANNOT_PICKLE``, or what an object's own ``__reduce__`` raised.
    """
    start = stream.tell()
    by_name = (_plain_pickler,) if rules.known is None else (_plain_pickler, _referring_pickler)
    try:
        for make_pickler in by_name:
            try:
                return _attempt(make_pickler, obj, stream, rules)
            except (ByValueNeeded, *CANNOT_PICKLE) as error:
                if rules.is_interruption(error):
                    raise
                stream.seek(start)
                stream.truncate()
        return _attempt(_cloud_pickler, obj, stream, rules)
    finally:
        rules.end()
        if rules.overlaps is not None:
            rules.overlaps.forget()


def _attempt(
    make_pickler: Callable[..., Any], obj: Any, stream: BinaryIO, rules: Rules
) -> list[memoryview]:
    start = stream.tell()
    if rules.overlaps is not None:
        rules.overlaps.forget()
    left_out = _pickle_once(make_pickler, obj, stream, rules)
    if rules.overlaps is not None and rules.overlaps.are_new():
        stream.seek(start)
        stream.truncate()
        left_out = _pickle_once(make_pickler, obj, stream, rules)
    return left_out


def _pickle_once(
    make_pickler: Callable[..., Any], obj: Any, stream: BinaryIO, rules: Rules
) -> list[memoryview]:
    rules.begin()
    left_out: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous: pickle copies it into the stream
            return True
        if raw.nbytes < OUT_OF_BAND:
            return True
        left_out.append(raw)
        return False

    make_pickler(stream, keep_in_band, rules).dump(obj)
    return left_out


class _CheckingPickler(_PlainPickler):  # type: ignore[misc]  # of either module
    """Plain pickle that stops at the first thing which has to go by value."""

    choose_way: Callable[[Any], str | None]
    named: tuple[type, ...]

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, self.named) and self.choose_way(obj) is BY_VALUE:
            raise ByValueNeeded
        return NotImplemented


def _plain_pickler(stream: BinaryIO, buffer_callback: Any, rules: Rules) -> Any:
    kind = _PlainPickler if rules.choose_way is None else _CheckingPickler
    pickler: Any = kind(stream, PROTOCOL, buffer_callback=buffer_callback)
    if rules.choose_way is not None:
        pickler.choose_way, pickler.named = rules.choose_way, _sent_by_name()
    if rules.reducers:
        pickler.dispatch_table = {**copyreg.dispatch_table, **rules.reducers}
    return pickler


class _ReferringPickler(_PlainPickler):  # type: ignore[misc]  # of either module
    """Plain pickle that also knows classes without a name.

    Not the first one to be tried: it is asked about every object that is not of a built-in type.
    """

    known: KnownClasses

    def reducer_override(self, obj: Any) -> Any:
        return _refer(obj, self.known) or NotImplemented


def _referring_pickler(stream: BinaryIO, buffer_callback: Any, rules: Rules) -> Any:
    pickler: Any = _ReferringPickler(stream, PROTOCOL, buffer_callback=buffer_callback)
    pickler.known = rules.known
    if rules.reducers:
        pickler.dispatch_table = {**copyreg.dispatch_table, **rules.reducers}
    return pickler


def _refer(obj: Any, known: KnownClasses | None) -> tuple[Any, ...] | None:
    """What stands for a class that is not found by its name; None if nothing does."""
    # Not isinstance: it asks the object for its class, which may be anybody's code.
    if known is None or not issubclass(type(obj), type):
        return None
    # cloudpickle would send the main module's classes by value.
    in_main = getattr(obj, "__module__", None) in ("__main__", "__mp_main__")
    return known.refer_to(obj) if in_main or not _is_found_by_name(obj) else None


def _cloud_pickler(stream: BinaryIO, buffer_callback: Any, rules: Rules) -> Any:
    import cloudpickle

    sent_by_name, unknown = _sent_by_name(), _unknown_to_cloudpickle()

    def choose_way(obj: Any) -> str | None:
        if rules.choose_way is None or not isinstance(obj, sent_by_name):
            return None
        return rules.choose_way(obj)

    class CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        # Of the class, because pickle reads it while the pickler is being made.
        dispatch_table: ClassVar[Any] = {
            **cloudpickle.Pickler.dispatch_table,
            functools.cached_property: _reduce_cached_property,
            **(rules.reducers or {}),
        }

        def reducer_override(self, obj: Any) -> Any:
            if (reference := _refer(obj, rules.known)) is not None:
                return reference
            how = choose_way(obj)
            if how is BY_REFERENCE:
                return NotImplemented  # cloudpickle would send a script's functions by value
            if not isinstance(obj, (FunctionType, *unknown)):
                return super().reducer_override(obj)
            by_name = how is not BY_VALUE and _is_found_by_name(obj)
            if not isinstance(obj, FunctionType):
                return NotImplemented if by_name else _reduce_by_value(obj)
            if not by_name:
                obj = _with_readable_annotations(obj)
            return super().reducer_override(obj)

    return CloudPickler(stream, PROTOCOL, buffer_callback=buffer_callback)


def _sent_by_name() -> tuple[type, ...]:
    return (type, FunctionType, *_unknown_to_cloudpickle())


def _unknown_to_cloudpickle() -> tuple[type, ...]:
    """What pickle sends by name although it is no function or class: caches and ``NewType``.

    cloudpickle sends only functions and classes by value. One of these that was typed into a
    notebook would be looked up in a worker that has never heard of it.
    """
    # Not imported for this: whoever has a NewType has imported it.
    typing: Any = sys.modules.get("typing")
    return (_CachedFunction,) if typing is None else (_CachedFunction, typing.NewType)


def _reduce_by_value(obj: Any) -> tuple[Any, ...]:
    """How to make again what cloudpickle does not know; a cache starts empty."""
    if isinstance(obj, _CachedFunction):
        return _cache_again, (obj.__wrapped__, obj.cache_parameters())
    return copyreg.__newobj__, (type(obj),), obj.__dict__  # type: ignore[attr-defined]


def _reduce_cached_property(prop: functools.cached_property[Any]) -> tuple[Any, ...]:
    """Without the lock that it has before Python 3.12."""
    return _cached_property, (prop.func, prop.attrname)


def _with_readable_annotations(func: FunctionType) -> FunctionType:
    """The function, or a copy of it whose annotations are text.

    cloudpickle sends the values of annotations. From Python 3.14 on they are only evaluated when
    somebody asks, and then may name what exists for type checkers only.
    """
    try:
        func.__annotations__  # noqa: B018 - whether that works is the question
    except Exception:
        import annotationlib  # type: ignore[import-not-found, unused-ignore]  # 3.14

        copy = FunctionType(
            func.__code__, func.__globals__, func.__name__, func.__defaults__, func.__closure__
        )
        for name in ("__module__", "__qualname__", "__doc__", "__kwdefaults__"):
            setattr(copy, name, getattr(func, name))
        copy.__dict__.update(func.__dict__)
        copy.__annotations__ = annotationlib.get_annotations(
            func, format=annotationlib.Format.STRING
        )
        return copy
    return func


def holds(module: ModuleType | None, qualname: str, obj: object) -> bool:
    """True if looking up ``qualname`` in the module gives this very object."""
    found: object = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found is obj


def _is_found_by_name(obj: Any) -> bool:
    """Looking up its name gives this very object."""
    module = sys.modules.get(str(getattr(obj, "__module__", None)))
    return holds(module, getattr(obj, "__qualname__", ""), obj)


def _cache_again(func: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(func)


def _cached_property(func: Callable[..., Any], name: str | None) -> Any:
    prop = functools.cached_property(func)
    prop.attrname = name
    return prop
