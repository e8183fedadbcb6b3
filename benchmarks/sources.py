"""The states of the library that are measured: copies, so that no edit during a run counts."""

from __future__ import annotations

import compileall
import contextlib
import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.needs import BEFORE


@contextmanager
def frozen_source(source: Path) -> Iterator[Path]:
    """A compiled copy of the library."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "src")
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(copy, quiet=1)
        yield copy


@contextmanager
def earlier_source(root: Path, commit: str = BEFORE) -> Iterator[Path | None]:
    """The library as it was at a commit; None where git or the commit is not to be had."""
    with tempfile.TemporaryDirectory() as folder:
        packed = _archive(root, commit)
        if packed is None:
            yield None
            return
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        compileall.compile_dir(folder, quiet=1)
        yield Path(folder, "src")


def _archive(root: Path, commit: str) -> bytes | None:
    # A copy of the tree may lie in the folder of another project.
    if not (root / ".git").exists():
        return None
    with contextlib.suppress(FileNotFoundError):
        command = ["git", "-C", str(root), "archive", commit, "src"]
        done = subprocess.run(command, capture_output=True, check=False)
        return done.stdout if done.returncode == 0 else None
    return None
