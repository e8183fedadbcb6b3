"""What the tests of this folder share."""

from __future__ import annotations

import os
import pty
import termios
from collections.abc import Iterator

import pytest


@pytest.fixture(
    params=[
        "spawn",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("fork", "forkserver")),
    ]
)
def start_method(request: pytest.FixtureRequest) -> str:
    """Each of them; all but the default among the slow tests, since little depends on it here."""
    return str(request.param)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


@pytest.fixture
def terminal() -> Iterator[int]:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (33, 111))
    yield slave
    os.close(master)
    os.close(slave)
