"""Scripts as users have them, run by interpreters of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.jobs import DEADLOCK

SOURCE = str(Path(__file__).parent.parent / "src")


def python(
    *arguments: str, cwd: Path, stdin: str | None = None, fails: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter in a folder, which is also all it can import from but us."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": ""},
        check=False,
    )
    assert fails == (done.returncode != 0), done.stdout + done.stderr
    return done


def script(folder: Path, text: str, name: str = "script.py") -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name
