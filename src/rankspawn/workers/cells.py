"""Lines of code for tracebacks of functions that have no file: those of notebooks and REPLs.

A worker cannot read a cell, but whoever runs cells keeps them here for Python's own tracebacks.
"""

from __future__ import annotations

import linecache
import re

# A frame that is not followed by its line of code.
_BARE_FRAME = re.compile(r'^  File "(.+)", line (\d+), in .+\n(?!    )', re.MULTILINE)


def add_lines_of_cells(traceback: str) -> str:
    """The same traceback with the code of frames that lack it, where it is known here."""
    return _BARE_FRAME.sub(_with_line, traceback)


def _with_line(frame: re.Match[str]) -> str:
    line = linecache.getline(frame[1], int(frame[2])).strip()
    return f"{frame[0]}    {line}\n" if line else frame[0]
