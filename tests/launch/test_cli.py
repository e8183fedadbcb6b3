"""What the launcher says arrives, however its standard error is read."""

from __future__ import annotations

import os
import select

import pytest

from rankspawn.launch import console
from tests.jobs import DEADLOCK


def test_a_full_pipe_that_does_not_want_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    monkeypatch.setattr(console, "_STDERR", write)
    filling = os.write(write, b"x" * (1 << 20))
    shown = console.Console()
    text = "y" * 100_000  # longer than a pipe, so that it is written in pieces

    shown.say(text)
    shown.finish(0.2)  # waits for who does not read
    expected = filling + len(f"rankrun: {text}\n")
    arrived = b""
    while len(arrived) < expected:
        assert select.select([read], [], [], DEADLOCK)[0], f"{len(arrived)} of {expected} bytes"
        arrived += os.read(read, 65536)

    assert arrived[filling:].decode() == f"rankrun: {text}\n"
    os.close(read)
    os.close(write)
