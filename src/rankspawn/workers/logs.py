"""One log file per rank: where a worker's output goes, and its last lines for the error."""

from __future__ import annotations

import os

from rankspawn.descriptors import Owned

# Enough to see what a rank did before it failed; the file has the rest.
TAIL_LINES = 20
# Far more than a line has, as a rule; of longer ones fewer are shown.
_BYTES_PER_LINE = 800


def log_path(folder: str, rank: int) -> str:
    """Where a rank's output is kept."""
    return os.path.join(folder, f"workerlog.{rank}")


def open_log(path: str, *, keep: bool) -> Owned:
    """A descriptor that appends to the log; what is in it goes, unless ``keep``.

    Raises:
        OSError: The folder cannot be made, or the file not be written.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # Appending, because descendants and restarts write to it as well.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return Owned(os.open(path, flags if keep else flags | os.O_TRUNC, 0o644))


def read_tail(path: str, *, start: int = 0, lines: int = TAIL_LINES) -> list[str]:
    """The last lines; none if the file is empty or gone.

    Args:
        path: Of the log.
        start: Where it began this time; what is before it belongs to others.
        lines: At most so many.
    """
    try:
        with open(path, "rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(start if start <= end else 0, end - lines * _BYTES_PER_LINE))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-lines:]
