"""Where the parent's output goes, and which board belongs there. No processes in here."""

from __future__ import annotations

import io
import os
import sys
import threading

import pytest

from rankspawn.view.screen import DescriptorScreen, NoScreen, StreamScreen, open_screen
from tests.jobs import DEADLOCK


def test_a_descriptor_that_does_not_wait_gets_all(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.set_blocking(write, False)
    screen = DescriptorScreen(write)
    data = os.urandom(500_000)
    writer = threading.Thread(target=screen.write, args=(data,))
    writer.start()
    got = b""
    while len(got) < len(data):
        got += os.read(read, 65536)
    writer.join(DEADLOCK)
    assert got == data
    assert screen.taken == len(data)
    assert not screen.is_terminal
    assert screen.size() == (80, 24)
    screen.close()


def test_a_terminal_has_a_size(terminal: int) -> None:
    screen = DescriptorScreen(terminal)
    assert screen.is_terminal
    assert screen.size() == (111, 33)
    screen.close()


def test_what_stands_in_for_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    screen = open_screen()
    screen.write("grüße\n".encode())
    assert isinstance(screen, StreamScreen)
    assert stream.getvalue() == "grüße\n"
    stream.close()
    with pytest.raises(OSError, match="takes nothing"):
        screen.write(b"more")
    assert isinstance(open_screen(), NoScreen)


def test_what_was_printed_before_comes_first(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = pipe
    with open(write, "w", closefd=False) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        print("before")
        screen = open_screen()
        screen.write(b"after\n")
        screen.close()
    assert os.read(read, 100) == b"before\nafter\n"
