"""What is written to a file is shown while it is written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankspawn.workers import follow, tail
from rankspawn.workers.follow import LogFollower, Way


@pytest.fixture(params=["told by the system", "by looking"])
def pipe(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LogFollower, int]]:
    """A follower, and the end of a pipe at which all that it shows arrives."""
    if request.param == "by looking":
        monkeypatch.setattr(tail, "_call", lambda *_: -1)
    read, write = os.pipe()
    follower = LogFollower(write)
    yield follower, read
    follower.close()
    os.close(write)
    os.close(read)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Appends to a file; its path."""

    def append(text: str, name: str = "log") -> str:
        with open(tmp_path / name, "a") as file:
            file.write(text)
        return str(tmp_path / name)

    return append


def shown(fd: int, size: int) -> str:
    """So many bytes of what was shown; waits for them."""
    text = b""
    while len(text) < size:
        text += os.read(fd, size - len(text))
    return text.decode()


def test_what_is_there_and_what_comes(
    pipe: tuple[LogFollower, int], write: Callable[..., str]
) -> None:
    follower, read = pipe
    path = write("old|before|")
    follower.follow({path: len("old|")})
    assert shown(read, 7) == "before|"
    write("after|")
    assert shown(read, 6) == "after|"


def test_what_was_written_last_is_shown_before_the_end(
    pipe: tuple[LogFollower, int], write: Callable[..., str]
) -> None:
    follower, read = pipe
    path = write("")
    follower.follow({path: 0})
    write("last words")
    follower.finish()
    assert shown(read, 10) == "last words"


def test_an_end_that_comes_after_the_look_at_a_line_without_one(
    pipe: tuple[LogFollower, int],
    write: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    follower, read = pipe
    looked, ended = threading.Event(), threading.Event()
    take_overdue = follow._Lines.take_overdue

    def take_and_wait(lines: follow._Lines) -> bytes:
        if lines._rest:
            looked.set()
            assert ended.wait(60)
        return take_overdue(lines)

    monkeypatch.setattr(follow._Lines, "take_overdue", take_and_wait)
    path = write("no end")
    follower.follow({path: 0}, {path: Way(follower._sink, b"[0]:")})
    assert looked.wait(60)
    follower.follow({})
    ended.set()
    follower.finish()
    os.set_blocking(read, False)  # nothing more comes
    assert shown(read, 11) == "[0]:no end\n"


def test_another_file_in_its_place(
    pipe: tuple[LogFollower, int], write: Callable[..., str]
) -> None:
    follower, read = pipe
    first = write("first|")
    follower.follow({first: 0})
    write("rest|")
    follower.follow({})
    write("not shown|")
    follower.follow({write("second|", "other"): 0})
    assert shown(read, 18) == "first|rest|second|"
    write("not shown either|")
    write("more", "other")
    assert shown(read, 4) == "more"


def test_the_same_file_again(pipe: tuple[LogFollower, int], write: Callable[..., str]) -> None:
    follower, read = pipe
    path = write("first|")
    follower.follow({path: 0})
    follower.follow({})
    write("second|")
    follower.follow({path: len("first|")})
    write("third")
    assert shown(read, 18) == "first|second|third"


def test_a_file_that_is_emptied(pipe: tuple[LogFollower, int], write: Callable[..., str]) -> None:
    follower, read = pipe
    path = write("first")
    follower.follow({path: 0})
    assert shown(read, 5) == "first"
    os.truncate(path, 0)
    follower.follow({path: 0})
    write("new")
    assert shown(read, 3) == "new"


def test_a_file_that_is_gone(pipe: tuple[LogFollower, int], write: Callable[..., str]) -> None:
    follower, read = pipe
    follower.follow({"/nowhere/at/all": 0, write("here"): 0})
    assert shown(read, 4) == "here"


def test_the_reader_left(write: Callable[..., str]) -> None:
    read, sink = os.pipe()
    os.close(read)
    follower = LogFollower(sink)
    follower.follow({write("x" * 1000): 0})
    follower.close()
    os.close(sink)


def test_nobody_reads(write: Callable[..., str]) -> None:
    read, sink = os.pipe()
    follower = LogFollower(sink)
    follower.follow({write("x" * 1_000_000): 0})
    follower.finish(timeout=0.01)
    # It is still at it, and ends once somebody reads.
    thread = next(one for one in threading.enumerate() if one.name == "rankspawn-logs")
    assert len(shown(read, 1_000_000)) == 1_000_000
    thread.join()
    follower.close()
    os.close(read)
    os.close(sink)


def test_a_sink_that_does_not_wait(write: Callable[..., str]) -> None:
    read, sink = os.pipe()
    os.set_blocking(sink, False)
    follower = LogFollower(sink)
    follower.follow({write("x" * 1_000_000): 0})
    assert len(shown(read, 1_000_000)) == 1_000_000
    follower.close()
    os.close(read)
    os.close(sink)


def test_nothing_to_follow() -> None:
    follower = LogFollower(1)
    follower.finish()
    follower.close()
    follower.close()


class TestSeveralFiles:
    def test_lines_are_not_mixed(
        self,
        pipe: tuple[LogFollower, int],
        write: Callable[..., str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(follow, "_PATIENCE", 3600.0)
        follower, read = pipe
        sink = follower._sink
        paths = [write("first, ", "a"), write("second\n", "b")]
        follower.follow(dict.fromkeys(paths, 0), {path: Way(sink, shares=True) for path in paths})
        assert shown(read, 7) == "second\n"
        write("to its end\n", "a")
        assert shown(read, 18) == "first, to its end\n"

    def test_a_question_is_shown_without_an_end(
        self, pipe: tuple[LogFollower, int], write: Callable[..., str]
    ) -> None:
        follower, read = pipe
        path = write("(Pdb) ")
        follower.follow({path: 0}, {path: Way(follower._sink, shares=True)})
        assert shown(read, 6) == "(Pdb) "

    def test_prefixes(self, pipe: tuple[LogFollower, int], write: Callable[..., str]) -> None:
        follower, read = pipe
        path = write("one\ntw")
        follower.follow({path: 0}, {path: Way(follower._sink, b"[0]:")})
        assert shown(read, 8) == "[0]:one\n"
        write("o\nthree")
        assert shown(read, 8) == "[0]:two\n"
        follower.follow({})
        assert shown(read, 10) == "[0]:three\n"

    def test_lines_that_are_copied(
        self, pipe: tuple[LogFollower, int], write: Callable[..., str], tmp_path: Path
    ) -> None:
        follower, read = pipe
        path, copy = write("apple\npear\n"), tmp_path / "copy"
        way = Way(follower._sink, b"", (b"app", b"x"), str(copy))
        follower.follow({path: 0}, {path: way})
        assert shown(read, 11) == "apple\npear\n"
        assert copy.read_text() == "apple\n"

    def test_one_sink_that_is_closed(
        self, pipe: tuple[LogFollower, int], write: Callable[..., str]
    ) -> None:
        follower, read = pipe
        gone, other = os.pipe()
        os.close(gone)
        lost, path = write("lost", "a"), write("here", "b")
        follower.follow({lost: 0, path: 0}, {lost: Way(other)})
        assert shown(read, 4) == "here"
        os.close(other)
