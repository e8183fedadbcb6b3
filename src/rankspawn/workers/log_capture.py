"""How the parent's ``logging`` is set up, as one value for its workers.

Levels, and for each logger with handlers what its lines look like. Handlers themselves stay: a
file or a socket of the parent is not the workers' to write to.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import sys

from rankspawn.caller import warn_caller

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_warned: list[bool] = []


def is_configured() -> bool:
    """Whether the program has set up ``logging``: some logger writes where somebody reads."""
    return any(_real_handlers(logger) for _, logger in _loggers())


def capture(relayed_to: tuple[int, int, int, int] | None = None) -> bytes:
    """The set-up, for :func:`rankspawn.workers.log_setup.apply`.

    Args:
        relayed_to: The file that gets all records, in place of handlers: whose it is, its number
            there, device and inode.
    """
    describe = _describe_handlers if relayed_to is None else _describe_relayed
    loggers = [
        (name, logger.level, logger.propagate, logger.disabled, describe(logger))
        for name, logger in _loggers()
    ]
    is_default: tuple[Any, ...] = (logging.NOTSET, True, False, [])
    kept = [entry for entry in loggers if entry[1:] != is_default]
    names = {level: logging.getLevelName(level) for level in _own_levels()}
    disable = logging.root.manager.disable
    setup = {"disable": disable, "names": names, "loggers": kept, "relayed_to": relayed_to}
    return pickle.dumps(setup)


def _own_levels() -> list[int]:
    standard = {0, 10, 20, 30, 40, 50}
    return [level for level in logging.getLevelNamesMapping().values() if level not in standard]


def _loggers() -> Iterator[tuple[str, logging.Logger]]:
    """Name and logger; the root, which has none, first."""
    yield "", logging.root
    for name, logger in sorted(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            yield name, logger


def _real_handlers(logger: logging.Logger) -> list[tuple[str, logging.Handler]]:
    """Those that people read, with the stream that they write to, or what else they are."""
    found = [(_kind_of(handler), handler) for handler in logger.handlers]
    return [(kind, handler) for kind, handler in found if kind]


def _kind_of(handler: logging.Handler) -> str:
    if isinstance(handler, logging.NullHandler):
        return ""
    if isinstance(handler, logging.FileHandler):
        return "" if handler.baseFilename == os.devnull else "file"
    if not isinstance(handler, logging.StreamHandler):
        return "other"
    stream = handler.stream
    if stream in (sys.stdout, sys.__stdout__):
        return "stdout"
    if stream in (sys.stderr, sys.__stderr__):
        return "stderr"
    try:
        number = stream.fileno()
    except (AttributeError, OSError, ValueError, io.UnsupportedOperation):
        return ""  # it collects text for the program itself
    return {1: "stdout", 2: "stderr"}.get(number, "file")


def _describe_handlers(logger: logging.Logger) -> list[tuple[str, int, Any, Any]]:
    """For each that shows lines its stream, level, formatter and filters.

    Where nothing is shown but kept in files, or sent away, the first of those says how.
    """
    handlers = _real_handlers(logger)
    shown = [(kind, handler) for kind, handler in handlers if kind in ("stdout", "stderr")]
    chosen = shown or [("stderr", handler) for _, handler in handlers[:1]]
    return [
        (kind, handler.level, _pack_formatter(handler.formatter), _pack(list(handler.filters)))
        for kind, handler in chosen
    ]


def _describe_relayed(logger: logging.Logger) -> list[None]:
    """One, where a record would go no further: each comes to the parent once."""
    is_last = logger is logging.root or (logger.handlers and not logger.propagate)
    return [None] if is_last else []


def _pack_formatter(formatter: logging.Formatter | None) -> tuple[bytes | None, Any]:
    """The formatter, and what stands in for it where it cannot be had."""
    if formatter is None:
        return None, None
    style = getattr(formatter, "_style", None)
    text = getattr(style, "_fmt", None)
    return _pack(formatter), (text, getattr(formatter, "datefmt", None))


def _pack(thing: Any) -> bytes | None:
    """It by reference, else by value; None, and a warning, if neither can be."""
    if not thing:
        return None
    try:
        packed = pickle.dumps(thing)
        if b"__main__" not in packed:
            return packed
    except Exception:  # anybody's class; by value it may work
        packed = b""
    try:
        import cloudpickle

        return bytes(cloudpickle.dumps(thing))
    except Exception as error:
        if not _warned:
            _warned.append(True)
            warn_caller(
                f"a {'formatter' if isinstance(thing, logging.Formatter) else 'filter'} of this "
                "program's logging cannot be sent to the ranks, whose lines have the plain format "
                f"string, or no such filter: {error}",
                UserWarning,
            )
        return None
