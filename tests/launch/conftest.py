"""Jobs of several nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.members import Job, running_job
from tests.ports import free_port


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with running_job(tmp_path) as job:
        yield job


@pytest.fixture
def master() -> str:
    return f"127.0.0.1:{free_port()}"
