"""The public names as checkers see them: what they accept, what they refuse, what they know."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PATIENCE = 300.0

pytestmark = pytest.mark.slow


def check(checker: str, *arguments: str) -> str:
    """What a checker of this environment says; it has to find nothing wrong."""
    if find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    # pyright takes the first python that it finds, and asks it for its path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", checker, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={
            **os.environ,
            "PATH": path,
            "PYTHONPATH": str(ROOT / "src"),
            # Without it pyright asks the network for a newer version.
            "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
        },
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_mypy(tmp_path: Path) -> None:
    files = [str(HERE / name) for name in ("right.py", "wrong.py")]
    check("mypy", "--strict", "--cache-dir", str(tmp_path), *files)


def test_pyright() -> None:
    check("pyright", "-p", str(HERE))


def test_every_public_symbol_has_a_type() -> None:
    told = check("pyright", "--verifytypes", "rankspawn", "--ignoreexternal")
    assert "Type completeness score: 100%" in told
