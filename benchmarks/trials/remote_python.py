"""An interpreter for the other end of ssh, which carries no variables over."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path


def python_with_path(folder: Path) -> Path:
    """A program in ``folder`` that is this interpreter with this PYTHONPATH.

    So it has the library that is measured, whatever is installed there.
    """
    words = [f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}", sys.executable]
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec env {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    return program
