"""A debugger of an editor that is attached to a rank: ``debugpy=1``. Runs in the worker."""

from __future__ import annotations

import os
import sys

from rankspawn.parallel_env import get_rank
from rankspawn.plan.environ import has_own_breakpoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def listen(asked: str) -> None:
    """Do what the variable asks for, and have breakpoints stop for whoever is attached.

    Args:
        asked: The port, with a comma and a word to wait there; empty for a rank that nobody chose.
    """
    # A program that this one starts is not asked.
    os.environ.pop("RANKSPAWN_DEBUGPY", None)
    if not asked:
        _take_breakpoints(_pass)
        return
    port, waits = asked.partition(",")[:2]
    # It would say how to start Python so that its own modules can be stepped through.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    import debugpy

    host, number = debugpy.listen(("127.0.0.1", int(port)))
    verb = "waits for" if waits else "listens for"
    print(f"rank {get_rank()} {verb} a debugger at {host}:{number}", file=sys.stderr, flush=True)  # noqa: T201 - what people look for
    _take_breakpoints(debugpy.breakpoint)
    if waits:
        debugpy.wait_for_client()


def _take_breakpoints(hook: Any) -> None:
    """Unless the program has chosen something else for them."""
    if not has_own_breakpoints(os.environ):
        sys.breakpointhook = hook


def _pass(*_: object, **__: object) -> None:
    """A breakpoint in a rank while another one is debugged."""
