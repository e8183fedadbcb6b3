"""Whether this program is a notebook's kernel, found out without importing anything."""

from __future__ import annotations

import sys


def in_notebook() -> bool:
    """Standard output is a cell of a notebook."""
    return type(sys.stdout).__module__.partition(".")[0] == "ipykernel"
