"""What every fault must leave behind: nothing."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

from rankspawn.workers import assembling
from rankspawn.workers.marker import find_marked, new_mark

AssertNothingLeft = Callable[[], None]


@pytest.fixture
def assert_nothing_left(monkeypatch: pytest.MonkeyPatch) -> AssertNothingLeft:
    """A check that no process of any group of this test is left, not even a zombie.

    Descriptors, files and variables are checked after every test; see ``tests/conftest.py``.
    """
    marks: list[str] = []
    before = psutil.Process().children(recursive=True)

    def note_mark() -> str:
        marks.append(new_mark())
        return marks[-1]

    monkeypatch.setattr(assembling, "new_mark", note_mark)

    def check() -> None:
        assert marks, "no group was started"
        assert [pid for mark in marks for pid in find_marked(mark)] == []
        new = [one for one in psutil.Process().children(recursive=True) if one not in before]
        assert [one for one in new if one.status() == psutil.STATUS_ZOMBIE] == []

    return check
