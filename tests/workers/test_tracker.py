"""Multiprocessing's resource tracker, while signals come."""

from __future__ import annotations

import os
import signal
from multiprocessing import resource_tracker

import pytest

import rankspawn
from tests import jobs


class Alarm(TimeoutError):
    """Raised by a handler; an OSError, as many time limits are."""


def test_what_a_handler_raises_during_a_look_at_the_tracker_comes_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fd, write = resource_tracker.getfd(), os.write

    def interrupted_write(to: int, data: bytes) -> int:
        if to == fd:
            signal.raise_signal(signal.SIGALRM)
        return write(to, data)

    def give_up(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, give_up)
    monkeypatch.setattr(os, "write", interrupted_write)
    try:
        with pytest.raises(Alarm):
            rankspawn.spawn(jobs.return_rank, nprocs=1, start_method="spawn", backend="gloo")
    finally:
        signal.signal(signal.SIGALRM, before)
