"""Where a trace goes, checked before anything starts."""

from __future__ import annotations

import errno
import os
import platform
import shlex
import sys
import time

from rankspawn.file_systems import check_answers
from rankspawn.option_values import read_path

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import Any

ENDINGS = (".html", ".json")


def read_trace(name: str, value: Any) -> str:
    """The path of a trace, whose ending says what it is to be.

    Args:
        name: The option's.
        value: What was given.
    """
    path = read_path(name, value)
    if not path.lower().endswith(ENDINGS):
        raise ValueError(
            f"{name}={path!r}: a trace ends in .html, for a page that any browser shows, or in "
            ".json, for Perfetto and Chrome"
        )
    return path


def place_trace(path: str, *, node_rank: int = 0) -> str:
    """The absolute path of this node's trace, where it can be written.

    Args:
        path: As it was given.
        node_rank: Nodes may share a folder: all but the first one add their number.

    Raises:
        OSError: It cannot be written there, as far as that can be known.
    """
    whole = os.path.abspath(path)
    if node_rank:
        stem, ending = os.path.splitext(whole)
        whole = f"{stem}.node{node_rank}{ending}"
    folder = os.path.dirname(whole)
    check_answers(folder)
    if os.path.isdir(whole):
        raise IsADirectoryError(errno.EISDIR, "the trace cannot be written: it is a folder", whole)
    if not os.path.isdir(folder):
        raise FileNotFoundError(
            errno.ENOENT, "the trace cannot be written: make its folder first", folder
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(
            errno.EACCES, "the trace cannot be written: its folder is not yours to write to", folder
        )
    return whole


def describe_run(what: str) -> dict[str, str]:
    """What a trace says of the run: what ran, when, where, and how it was started."""
    return {
        "what": what,
        "host": os.uname().nodename,
        "began": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "python": platform.python_version(),
        "command": shlex.join([os.path.basename(sys.executable), *sys.argv])[:1000],
    }


def write_atomically(path: str, data: bytes) -> None:
    """Write a file that is there whole or not at all."""
    beside = f"{path}.{os.getpid()}.part"
    try:
        with open(beside, "wb") as file:
            file.write(data)
        os.replace(beside, path)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise
