"""What the ranks of the tests of clusters do; importable on every node."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path

import rankspawn
from tests.jobs import DEADLOCK


def sleep_for_ever() -> None:
    while True:
        time.sleep(0.2)


def describe(*args: object, **kwargs: object) -> dict[str, object]:
    names = ("LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "OWN")
    return {
        "rank": rankspawn.get_rank(),
        "size": rankspawn.get_world_size(),
        "args": args,
        "kwargs": kwargs,
        "pid": os.getpid(),
        "endpoints": os.environ["PADDLE_TRAINER_ENDPOINTS"].split(","),
        **{name: os.environ.get(name) for name in names},
    }


def fail(which: int, how: str, after: str = "") -> int:
    """One rank fails, once that file is there; the others wait to be stopped."""
    if rankspawn.get_rank() == which:
        while after and not os.path.exists(after):
            time.sleep(0.02)
        print("about to fail", flush=True)
        if how == "raise":
            raise ValueError("on purpose")
        os.kill(os.getppid() if how == "agent" else os.getpid(), signal.SIGKILL)
    sleep_for_ever()
    return 0


def speak(size: int) -> bytes:
    print(f"rank {rankspawn.get_rank()} speaks", flush=True)
    print("half a line", end="", flush=True)
    return b"x" * size


def fail_once(marks: str) -> str | None:
    """The first try fails on the second node."""
    path = os.path.join(marks, "tried")
    if rankspawn.get_rank() == 2 and not os.path.exists(path):
        with open(path, "w"):
            raise ValueError("the first try")
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


def report_and_wait() -> None:
    rankspawn.report(step=3, total=10)
    sleep_for_ever()


def beat(folder: str) -> None:
    """Ignore SIGTERM, and say who this is."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    path = os.path.join(folder, f"{rankspawn.get_rank()}")
    with open(f"{path}.new", "w") as file:
        file.write(f"{os.getpid()} {os.getppid()}")
    os.rename(f"{path}.new", path)
    sleep_for_ever()


def end_the_agent() -> None:
    """On the second node."""
    if rankspawn.get_rank() == 1:
        os.kill(os.getppid(), signal.SIGTERM)
    sleep_for_ever()


def save_on_sigterm(folder: str) -> None:
    """Takes SIGTERM for the call to save, which needs its time, and is done then.

    SIGUSR1 says that this will come.
    """
    rank = rankspawn.get_rank()

    def save(*_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGCONT):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(0.5)
        Path(folder, f"saved.{rank}").touch()
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGUSR1, lambda *_: Path(folder, f"warned.{rank}").touch())
    Path(folder, f"ready.{rank}").touch()
    sleep_for_ever()


def wait_for(*paths: Path) -> None:
    """Until these files are there."""
    deadline = time.monotonic() + DEADLOCK
    while missing := [path.name for path in paths if not path.exists()]:
        assert time.monotonic() < deadline, f"missing: {missing}"
        time.sleep(0.02)


LOGGER = "rankspawn.tests.cluster"


async def take_part(*, own: str) -> tuple[str, int]:
    """Report, and give back what the rank was told; one of them fails."""
    await asyncio.sleep(0)
    rankspawn.report(step=1)
    print(own)
    if own == "b":
        raise ValueError(f"on purpose: {own}")
    return own, logging.getLogger(LOGGER).level


def wait_for_word(folder: str) -> tuple[int, int]:
    """Do what a file says, once it is there."""
    path = Path(folder, "word")
    while not path.exists() or not (word := path.read_text()):
        time.sleep(0.05)
    print(f"it is {word}", flush=True)
    if word == "raise":
        raise ValueError("on purpose")
    return rankspawn.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
