"""Where a worker's output goes: a log file, or one without a name; and its last lines."""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from rankspawn.descriptors import Owned, anonymous_file
from rankspawn.interrupts import sigint_let_through
from rankspawn.values import dataclass

# Enough to see what a rank did before it failed; the file has the rest.
TAIL_LINES = 20
# What files in memory are called that have a rank's output; rankspawn logs finds them by it.
CAPTURE_FILE = "rankspawn-output"
# Far more than a line has, as a rule; of longer ones fewer are shown.
_BYTES_PER_LINE = 800


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


def log_path(folder: str, rank: int) -> str:
    """Where a rank's output is kept."""
    return os.path.join(folder, f"workerlog.{rank}")


def open_log(path: str, *, keep: bool) -> Owned:
    """A descriptor that appends to the log; what is in it goes, unless ``keep``.

    Raises:
        OSError: The folder cannot be made, the file not be written, or it is a pipe.
    """
    # Appending, because descendants and restarts write to it as well. Without waiting, which is
    # what the open of a pipe without a reader does.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    # A file system that does not answer holds nobody who presses Ctrl-C.
    with sigint_let_through():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            log = Owned(os.open(path, flags if keep else flags | os.O_TRUNC, 0o644))
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise _no_file(path) from None
            raise
    if stat.S_ISFIFO(os.fstat(log.fileno()).st_mode):
        log.close()
        raise _no_file(path)
    os.set_blocking(log.fileno(), True)
    return log


def _no_file(path: str) -> OSError:
    return OSError(errno.ESPIPE, "a log is read again, so it cannot be a pipe or a socket", path)


def open_capture() -> tuple[Owned, Owned]:
    """A file without a name for a rank's output: one descriptor to append to it, one to read.

    A file and no pipe, so that a worker never waits for whoever shows its output.
    """
    read = Owned(anonymous_file(CAPTURE_FILE))
    try:
        # Opened once more: descendants append to it, and the system tells of no changes that
        # are made through the descriptor it was created with.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        return Owned(os.open(f"/proc/self/fd/{read.fileno()}", flags)), read
    except FileNotFoundError:  # there is no /proc; whoever shows it looks for changes then
        fcntl.fcntl(read, fcntl.F_SETFL, os.O_APPEND)
        return Owned(os.dup(read.fileno())), read
    except BaseException:
        read.close()
        raise


def open_output(rank: int, *, log_dir: str | None, keep: bool) -> Output:
    """Where a rank's output goes: to its log, or without a folder to a file without a name.

    Args:
        rank: Whose output.
        log_dir: The folder of logs.
        keep: What is in the log stays.
    """
    if log_dir is None:
        target, captured = open_capture()
        return Output(target, captured=captured)
    path = log_path(log_dir, rank)
    log = open_log(path, keep=keep)
    # An error shows the last lines of this try, not of the one before.
    return Output(log, path, start=os.fstat(log.fileno()).st_size)


def read_tail(file: str | int, *, start: int = 0, lines: int = TAIL_LINES) -> list[str]:
    """The last lines, as they look in the end; none if the file is empty or gone.

    Args:
        file: The path of the log, or a descriptor, which stays open.
        start: Where it began this time; what is before it belongs to others.
        lines: At most so many.
    """
    data = read_end(file, start=start, most=lines * _BYTES_PER_LINE)
    if not data:
        return []
    from rankspawn.workers.lines import LineAssembler  # on the way to an error only

    assembler = LineAssembler()
    found = [*assembler.feed(data), *assembler.finish()]
    return [line.decode("utf-8", "replace") for line in found[-lines:]]


def read_end(file: str | int, *, start: int, most: int) -> bytes:
    """The last bytes of a log, at most so many; none if the file is empty or gone.

    Args:
        file: Its path, or a descriptor, which stays open.
        start: Where it began this time, unless somebody has emptied it since.
        most: The number of bytes.
    """
    try:
        with open(file, "rb", closefd=isinstance(file, str)) as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(start if start <= end else 0, end - most))
            return log.read()
    except OSError:
        return b""


def describe_tail(path: str, *, start: int = 0) -> str:
    """A log's last lines and its path, for an error."""
    lines = _quote(read_tail(path, start=start))
    return f"last lines of {path}:\n{lines}" if lines else f"nothing was printed to {path}\n"


def describe_capture(captured: Owned) -> str:
    """The same of a file without a name."""
    if captured.closed:
        return ""
    lines = _quote(read_tail(captured.fileno()))
    return f"the last lines that it printed:\n{lines}" if lines else ""


def _quote(lines: list[str]) -> str:
    return "".join(f"  | {line}\n" for line in lines)
