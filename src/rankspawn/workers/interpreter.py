"""The command line of a fresh interpreter that runs one of our modules."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import spawn

# The folder that holds this package: a worker finds it there whatever its own path says.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def command(module: str, arguments: Sequence[object]) -> list[str]:
    """This interpreter, with this process's flags, running ``main()`` of the module."""
    # Our folder comes first only for our own package, and the current one not at all: neither
    # may stand before the standard library while the worker gets ready.
    code = (
        f"import sys; sys.path.insert(0, {_ROOT!r}); import rankspawn; "
        f"sys.path[:] = filter(None, sys.path[1:]); from {module} import main; main()"
    )
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    # What multiprocessing.set_executable() was given counts, as it does for multiprocessing.
    executable = spawn.get_executable() or sys.executable
    return [os.fsdecode(executable), *flags, "-c", code, *map(str, arguments)]
