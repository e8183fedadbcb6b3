"""A program's input and output as a channel."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from rankspawn.cluster.programs import ProgramChannel, SharedDeadline, close_all
from tests.jobs import DEADLOCK


def _explain(code: int | None, said: str) -> str:
    return f"{code}: {said}"


def _open(*command: str, seconds: float = DEADLOCK) -> ProgramChannel:
    return ProgramChannel("a", command, deadline=SharedDeadline(seconds), explain=_explain)


@pytest.fixture
def echo() -> Iterator[ProgramChannel]:
    with closing(_open("cat")) as channel:
        yield channel


def test_bytes_go_there_and_come_back(echo: ProgramChannel) -> None:
    os.write(echo.write_fileno(), b"\0\n\r\xff")
    assert os.read(echo.read_fileno(), 100) == b"\0\n\r\xff"


def test_its_last_words_say_why_it_is_gone() -> None:
    with closing(_open("sh", "-c", "echo no such host >&2; exit 255")) as channel:
        assert os.read(channel.read_fileno(), 1) == b""
        assert channel.why_lost() == "255: no such host"
    assert channel.why_lost() == ""


def test_only_the_end_of_many_words_counts() -> None:
    with closing(_open("sh", "-c", "yes a | head -c 99999 >&2; echo last >&2")) as channel:
        said = channel.why_lost()
    assert said.endswith("last")
    assert len(said) < 9000


def test_closing_ends_a_program_that_heeds_the_end_of_its_input(echo: ProgramChannel) -> None:
    echo.close()
    echo.close()


def test_closing_kills_a_program_that_does_not_heed_it() -> None:
    script = "import signal; signal.pause()"
    channels = [_open(sys.executable, "-c", script, seconds=0.1) for _ in range(2)]
    for channel in channels:
        channel.close()


def test_killing_ends_the_stream(echo: ProgramChannel) -> None:
    echo.kill()
    assert os.read(echo.read_fileno(), 1) == b""
    assert echo.why_lost() == f"{-signal.SIGKILL}: "
    echo.kill()


def test_a_program_that_is_not_there_leaves_nothing() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        _open("no-such-program")


def test_those_before_it_are_ended_at_once() -> None:
    close_all([_open(sys.executable, "-c", "import signal; signal.pause()") for _ in range(2)])


def test_a_deadline_is_shared() -> None:
    deadline = SharedDeadline(DEADLOCK)
    assert deadline.seconds_left() >= deadline.seconds_left()
    assert SharedDeadline(-1).seconds_left() == 0
