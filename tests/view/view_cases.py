"""What the workers of these tests run; a module of its own, since each worker imports it."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import rankspawn
from tests import jobs
from tests.jobs import DEADLOCK


def print_everywhere() -> None:
    rank = jobs.rank()
    print(f"out {rank}")
    print(f"err {rank}", file=sys.stderr)
    os.write(1, f"fd {rank}\n".encode())
    os.system(f"echo shell {rank}")
    print(f"no end {rank}", end="")


def print_many(count: int) -> None:
    rank = jobs.rank()
    for number in range(count):
        text = f"{rank} {number} " + "x" * 50
        half = len(text) // 2  # in two pieces, as unbuffered programs do
        os.write(1, text[:half].encode())
        os.write(1, text[half:].encode() + b"\n")


def print_much_and_look(size: int) -> int:
    """The room that this rank's output takes in the end, in bytes."""
    line = b"x" * 999 + b"\n"
    for _ in range(size // len(line)):
        os.write(1, line)
    limit = time.monotonic() + DEADLOCK
    while (room := os.fstat(1).st_blocks * 512) > size // 4 and time.monotonic() < limit:
        time.sleep(0.01)  # until the parent has read, and freed, what is there
    return room


def bars(ready: Any) -> None:
    for percent in range(101):
        sys.stderr.write(f"\r{percent}%")
    ready.wait()
    if jobs.rank() == 0:
        sys.stderr.write("\n")


def half_a_bar(shown: Any) -> None:
    sys.stderr.write("\r50%")
    assert shown.wait(DEADLOCK)
    sys.stderr.write("\r100%\n")


def say_and_wait(text: str) -> None:
    print(text)
    jobs.sleep_for_ever()


def fail_after_printing(printed: Any) -> None:
    print_many(2000)
    printed.wait()
    if jobs.rank() == 1:
        raise ValueError("on purpose")
    jobs.sleep_for_ever()


def print_and_fail(how: str) -> None:
    for at in range(30):
        print(f"line {at}")
    sys.stdout.write("\r1%\r99%\n")
    jobs.fail(how)


def count_tries() -> str:
    print("try", os.environ["TORCHELASTIC_RESTART_COUNT"])
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ConnectionError("not yet")
    return "through"


def report_and_wait(steps: int, go: Any) -> int:
    rankspawn.report(step=steps + rankspawn.get_rank(), total=10, loss=0.25)
    assert go.wait(DEADLOCK)
    rankspawn.report(step=10, total=10, loss=0.125)
    return rankspawn.get_rank()


def report_and_sleep(step: int) -> None:
    rankspawn.report(step=step)
    jobs.sleep_for_ever()


def report_quickly(count: int) -> None:
    for step in range(1, count + 1):
        rankspawn.report(step=step, total=count, loss=1 / step)


def report_strange_values() -> None:
    class Rude:
        def __str__(self) -> str:
            raise ValueError

    rankspawn.report(step=3, note="a\nb", rude=Rude(), whole=7, text="x" * 10_000)
    rankspawn.report(step="no number", total=object())  # type: ignore[arg-type]
    rankspawn.report()
