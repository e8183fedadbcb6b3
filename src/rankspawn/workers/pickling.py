"""Pickling what users pass: by reference where it can, by value where it must.

Runs on both sides: the parent pickles the task, a worker pickles its result. The plain pickler
is tried first, so that neither side imports cloudpickle (45 ms) for payloads that need none.
If the plain one meets something that only goes by value, the whole object is pickled again
with cloudpickle: pickling only that part by value would break references shared with the rest.
"""

from __future__ import annotations

import copyreg
import sys

try:
    # Not from pickle, which takes a worker 1.5 ms to load.
    from _pickle import Pickler as _PlainPickler
    from _pickle import PicklingError
    from _pickle import loads as loads  # for others
except ImportError:  # an interpreter without the C accelerator
    from pickle import Pickler as _PlainPickler
    from pickle import PicklingError
    from pickle import loads as loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pickle
    from collections.abc import Callable, Mapping
    from typing import Any, BinaryIO, ClassVar

PROTOCOL = 5
# What picklers raise for an object they cannot take. RecursionError: nested too deep.
CANNOT_PICKLE = (PicklingError, TypeError, AttributeError, ValueError, RecursionError)
# Smaller buffers are cheaper in the stream than in pages of their own.
OUT_OF_BAND = 64 * 1024
BY_REFERENCE = "by reference"
BY_VALUE = "by value"


class ByValueNeeded(Exception):
    """The plain pickler met a function or class that has to go by value."""


class Rules:
    """How one side pickles; as they stand here they suit a worker's result.

    A worker may refer to whatever it imported, because the parent can import it too; what
    cannot be found by its name fails in the plain pickler, and then goes by value.
    """

    # Asked about whatever pickle sends by name; a verdict of None leaves it to the pickler.
    verdict: Callable[[Any], str | None] | None = None
    # Reducers beside copyreg's: multiprocessing's own, for what a starting process inherits.
    reducers: Mapping[type, Callable[[Any], Any]] | None = None

    def begin(self) -> None:
        """Called before each attempt; forget what the last one recorded."""

    def end(self) -> None:
        """Called after the last attempt, however it ended."""


def refuse_descriptors() -> dict[type, Callable[[Any], Any]]:
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
    try:
        rules.begin()
        try:
            return _attempt(_plain_pickler, obj, stream, rules)
        except (ByValueNeeded, *CANNOT_PICKLE):
            stream.seek(start)
            stream.truncate()
        rules.begin()
        return _attempt(_cloud_pickler, obj, stream, rules)
    finally:
        rules.end()


def _attempt(
    make_pickler: Callable[..., Any], obj: Any, stream: BinaryIO, rules: Rules
) -> list[memoryview]:
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


class _CheckingPickler(_PlainPickler):
    """Plain pickle that stops at the first thing which has to go by value."""

    verdict: Callable[[Any], str | None]
    named: tuple[type, ...]

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, self.named) and self.verdict(obj) is BY_VALUE:
            raise ByValueNeeded
        return NotImplemented


def _plain_pickler(stream: BinaryIO, buffer_callback: Any, rules: Rules) -> Any:
    kind = _PlainPickler if rules.verdict is None else _CheckingPickler
    pickler: Any = kind(stream, PROTOCOL, buffer_callback=buffer_callback)
    if rules.verdict is not None:
        from rankspawn.workers.by_value import SENT_BY_NAME

        pickler.verdict, pickler.named = rules.verdict, SENT_BY_NAME
    if rules.reducers:
        pickler.dispatch_table = {**copyreg.dispatch_table, **rules.reducers}
    return pickler


def _cloud_pickler(stream: BinaryIO, buffer_callback: Any, rules: Rules) -> Any:
    from functools import cached_property

    import cloudpickle

    from rankspawn.workers import by_value

    def verdict(obj: Any) -> str | None:
        if rules.verdict is None or not isinstance(obj, by_value.SENT_BY_NAME):
            return None
        return rules.verdict(obj)

    class CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        # Of the class, because pickle reads it while the pickler is being made.
        dispatch_table: ClassVar[Any] = {
            **cloudpickle.Pickler.dispatch_table,
            cached_property: by_value.reduce_cached_property,
            **(rules.reducers or {}),
        }

        def reducer_override(self, obj: Any) -> Any:
            how = verdict(obj)
            if how is BY_REFERENCE:
                return NotImplemented  # cloudpickle would send a script's functions by value
            if isinstance(obj, by_value.UNKNOWN_TO_CLOUDPICKLE):
                by_name = how is not BY_VALUE and by_value.is_found_by_name(obj)
                return NotImplemented if by_name else by_value.reduce_by_value(obj)
            return super().reducer_override(obj)

    return CloudPickler(stream, PROTOCOL, buffer_callback=buffer_callback)
