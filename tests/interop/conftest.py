"""What the frameworks leave behind themselves, so that no test here is blamed for it."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from multiprocessing import forkserver, util
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _standard_multiprocessing() -> None:
    """Started once for the whole run, since multiprocessing never stops or frees them.

    torch's spawn uses the standard forkserver; the first Barrier opens the shared heap.
    """
    folder = tempfile.gettempdir()
    place = str(Path(folder).parent)
    # In it is the Unix socket of multiprocessing's server, whose path has 107 bytes at most.
    if len(place) > 60:
        place = "/tmp"
    # multiprocessing removes its folder when Python ends, and complains if that is gone by
    # then; so it must not lie inside the run's own.
    tempfile.tempdir = place
    util.get_temp_dir()
    tempfile.tempdir = folder
    forkserver.ensure_running()
    multiprocessing.get_context("spawn").Barrier(1)


@pytest.fixture(autouse=True)
def _error_files_of_torch() -> Iterator[None]:
    """Removes the files in which torch's workers report an exception; torch leaves them."""
    yield
    for path in Path(tempfile.gettempdir()).glob("pytorch-errorfile-*.pickle"):
        path.unlink()


@pytest.fixture(autouse=True)
def _compiler_of_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Has torch make the folder of its compiler where the test's files are."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torchinductor"))
