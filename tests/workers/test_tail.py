"""What is added to a file, and only that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankspawn.descriptors import Owned
from rankspawn.workers.tail import CHUNK, Growth, Tail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(b"old|new")
    return path


@pytest.fixture
def tail(path: Path) -> Iterator[Tail]:
    tail = Tail(Owned(os.open(path, os.O_RDONLY)), len(b"old|"))
    yield tail
    tail.close()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_what_was_added_is_read_once(path: Path, tail: Tail) -> None:
    assert [tail.read(), tail.read()] == [b"new", b""]
    append(path, b"er")
    assert [tail.read(), tail.read()] == [b"er", b""]


def test_a_file_that_was_emptied_is_read_from_its_beginning(path: Path, tail: Tail) -> None:
    tail.read()
    path.write_bytes(b"")
    assert tail.read() == b""
    append(path, b"more")
    assert tail.read() == b"more"


def test_what_comes_after_the_end_is_not_read(path: Path, tail: Tail) -> None:
    append(path, b"x" * CHUNK)
    tail.end_here()
    append(path, b"late")
    tail.end_here()

    read = [(len(tail.read()), tail.is_over) for _ in range(3)]

    assert read == [(CHUNK, False), (3, True), (0, True)]


def test_a_wait_ends_when_a_file_grows_or_somebody_wakes(path: Path) -> None:
    growth = Growth()
    growth.watch_only([str(path)])
    append(path, b"more")
    growth.wait()
    growth.wake()
    growth.wait()
    growth.close()
    growth.wake()
    assert growth.closed
