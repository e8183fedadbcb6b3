"""The parent's ``logging`` in a worker. Runs in the worker, if the parent has set up its own.

What the worker's program sets up itself counts in place of what is inherited, as if that were not
there: ``basicConfig`` finds no handlers, and beside a handler of the program's own that shows lines
the inherited one is silent.
"""

from __future__ import annotations

import functools
import logging
import os
import pickle
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TextIO


_get_logger = logging.getLogger


class InheritedHandler(logging.Handler):
    """Writes to whatever is the standard stream by then.

    Args:
        logger: Whose handler it is.
        stream: ``stdout`` or ``stderr``.
        level: Below it nothing is shown.
    """

    terminator = "\n"

    def __init__(self, logger: logging.Logger, stream: str, level: int) -> None:
        super().__init__(level)
        self._logger = logger
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, unless the program has a handler of its own for that."""
        if any(map(_shows_lines, self._logger.handlers)):
            return
        try:
            stream: TextIO | None = getattr(sys, self._stream)
            if stream is not None:
                stream.write(self.format(record) + self.terminator)
                stream.flush()
        except RecursionError:
            raise
        except Exception:  # as logging's own handlers do
            self.handleError(record)


class RelayingHandler(logging.Handler):
    """Appends records to a file of the parent, who has the handlers.

    Args:
        address: Whose file it is, its number there, its device and inode.
        rank: Of this worker.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, address: tuple[int, int, int, int], rank: int) -> None:
        super().__init__()
        from rankspawn.workers.log_frames import pack_record  # for those who relay only

        self._pack = pack_record
        self._path = f"/proc/{address[0]}/fd/{address[1]}"
        self._identity = address[2:]
        self._rank = rank
        self._fd = self._open()

    def emit(self, record: logging.LogRecord) -> None:
        """Append one record; nobody has to read it for that."""
        try:
            data = memoryview(self._pack(record, self._rank))
            # The program may have closed it, and have a file of its own by this number.
            if not self._is_ours(self._fd):
                self._fd = self._open()
            while data:
                data = data[os.write(self._fd, data) :]
        except RecursionError:
            raise
        except Exception:  # as logging's own handlers do
            self.handleError(record)

    def _open(self) -> int:
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if not self._is_ours(fd):
            os.close(fd)
            raise FileNotFoundError(f"{self._path} is another file by now")
        return fd

    def _is_ours(self, fd: int) -> bool:
        try:
            status = os.fstat(fd)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity


def _shows_lines(handler: logging.Handler) -> bool:
    is_stream = isinstance(handler, logging.StreamHandler)
    # Rich's, for one, is no StreamHandler, but has a console.
    return hasattr(handler, "console") or (
        is_stream and not isinstance(handler, logging.FileHandler)
    )


def apply(setup: bytes, rank: int) -> None:
    """Set up ``logging`` as the parent has it; see :mod:`rankspawn.workers.log_capture`."""
    told: dict[str, Any] = pickle.loads(setup)
    relayed_to = told["relayed_to"]
    relaying = None if relayed_to is None else _make_relaying(relayed_to, rank)
    for level, name in told["names"].items():
        logging.addLevelName(level, name)
    # What is so already in a copy of a process is not said again: each word has logging forget what
    # it knows of every logger.
    if logging.root.manager.disable != told["disable"]:
        logging.disable(told["disable"])
    for name, level, propagate, disabled, handlers in told["loggers"]:
        logger = _get_logger(name)
        if logger.level != level:
            logger.setLevel(level)
        logger.propagate, logger.disabled = propagate, disabled
        for handler in handlers:
            logger.addHandler(relaying or _make_handler(logger, rank, *handler))
    if relaying is None:
        _let_basic_config_replace()


def _make_relaying(address: tuple[int, int, int, int], rank: int) -> logging.Handler:
    """The handler of a rank; where it cannot reach its parent, one that shows plain lines."""
    try:
        handler = RelayingHandler(address, rank)
    except OSError:
        return _make_handler(logging.root, rank, "stderr", logging.NOTSET, (None, None), None)
    handler.addFilter(functools.partial(_name_process, f"rank-{rank}"))
    return handler


def _make_handler(
    logger: logging.Logger,
    rank: int,
    stream: str,
    level: int,
    formatter: Any,
    filters: bytes | None,
) -> InheritedHandler:
    handler = InheritedHandler(logger, stream, level)
    packed, (text, datefmt) = formatter[0], formatter[1] or (None, None)
    handler.setFormatter(_load(packed) or logging.Formatter(text, datefmt, validate=False))
    handler.addFilter(functools.partial(_name_process, f"rank-{rank}"))
    for each in _load(filters) or ():
        handler.addFilter(each)
    return handler


def _name_process(name: str, record: logging.LogRecord) -> bool:
    """Say the rank's name; logging has it of multiprocessing, which few ranks have to load."""
    if record.processName == "MainProcess":
        record.processName = name
    return True


def _load(packed: bytes | None) -> Any:
    """What was sent; None where it cannot be had: a module may be missing here."""
    try:
        return packed and pickle.loads(packed)
    except Exception:
        return None


def _let_basic_config_replace() -> None:
    """``basicConfig`` does nothing where there are handlers; ours are none of the program's."""
    configure = logging.basicConfig

    @functools.wraps(configure)
    def replace_and_configure(**options: Any) -> None:
        for handler in logging.root.handlers[:]:
            if isinstance(handler, InheritedHandler):
                logging.root.removeHandler(handler)
        configure(**options)

    logging.basicConfig = replace_and_configure


def apply_in_fork(setup: bytes, rank: int, before: Sequence[TextIO | None]) -> None:
    """The same in a forked worker, which has what the parent has.

    Args:
        setup: What was captured.
        rank: Of this worker.
        before: The parent's standard output and errors.
    """
    if pickle.loads(setup)["relayed_to"] is None:
        follow_streams(before)
        return
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            logger.handlers = []  # not closed: what they write to is the parent's
    apply(setup, rank)


def follow_streams(before: Sequence[TextIO | None]) -> None:
    """In a forked worker: handlers that wrote to these streams of the parent write to its own.

    Not by ``setStream``, which flushes what the parent has not written yet. That a thread of the
    parent may hold a handler's lock at the fork is seen to by logging itself.

    Args:
        before: The parent's standard output and errors.
    """
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            stream = getattr(handler, "stream", None)
            for old, new in zip(before, (sys.stdout, sys.stderr), strict=True):
                if stream is not None and stream is old and old is not new:
                    handler.stream = new
