"""Programs that something happens to: they are killed, interrupted, or have too few rights."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from soaking.watch import Program, watched
from soaking.work import GRACE_SECONDS, HANG_SECONDS

SOAK = Path(__file__).resolve().parent.parent / "soak.py"
# Nobody else's, so that a limit of its processes is about ours.
USER = 40_000 + os.getpid() % 20_000
ROUNDS = 8
OWN_USER = ("killed parent", "interrupted", "interrupted close")
OTHER_USER = ("limited", "hidden", "limited and hidden", "limited start")
# How long after a parent's death its workers may be there.
PATIENCE = GRACE_SECONDS + HANG_SECONDS / 3


def run_program(
    fault: str, method: str, rng: random.Random, injected: Counter[str]
) -> list[tuple[str, list[str]]]:
    """The verdicts on a program, each with what was left."""
    if fault == "killed parent":
        injected[fault] += 1
        return [_kill_a_parent(method, rng)]
    if fault.startswith("interrupted"):
        return _interrupt(fault, method, rng, injected)
    if fault == "limited start":
        return [_limit_a_start(method, rng, injected)]
    return [_kill_as_other_user(fault, method, rng, injected)]


def why_no_other_user() -> str:
    """Why programs cannot be run as another user; empty if they can."""
    if os.geteuid() != 0:
        return "only root can run programs as another user"
    if shutil.which("setpriv") is None:
        return "the command setpriv (util-linux) is not installed"
    tried = subprocess.run(
        [*_as_other_user(), sys.executable, str(SOAK), "--help"],
        check=False,
        capture_output=True,
        text=True,
    )
    return "" if tried.returncode == 0 else f"another user cannot: {tried.stderr[-300:]}"


def _as_other_user() -> list[str]:
    # It may read what it must import, wherever that is. It may not look at others' processes.
    return [
        "setpriv",
        *(f"--reuid={USER}", f"--regid={USER}", "--clear-groups"),
        *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
        *("--bounding-set=-all,+dac_read_search", "--"),
    ]


def _command(what: str, *arguments: object) -> list[str]:
    return [sys.executable, str(SOAK), "--as", what, json.dumps(arguments)]


def _kill_a_parent(method: str, rng: random.Random) -> tuple[str, list[str]]:
    """A program with a group, killed at a random moment of its start or run."""
    number = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
    delay = rng.random() * 0.3

    def act(program: Program) -> str:
        said = _line(program)
        time.sleep(delay)
        program.send_signal(number)
        return "expected" if said == "starting" else f"it said {said!r}"

    return watched(_command("parent", method, rng.randint(1, 4)), act, patience=PATIENCE)


def _interrupt(
    fault: str, method: str, rng: random.Random, injected: Counter[str]
) -> list[tuple[str, list[str]]]:
    moment = "close" if fault == "interrupted close" else "any"

    def act(program: Program) -> str:
        told = [_line(program) for _ in range(ROUNDS)]
        if None in told:
            program.send_signal(signal.SIGABRT)  # shows where it is
            return json.dumps(told)
        with contextlib.suppress(subprocess.TimeoutExpired):
            told.append(f"exit code {program.wait(HANG_SECONDS)}")
        return json.dumps(told)

    told, left = watched(
        _command("interrupted", rng.randrange(10**9), method, moment, ROUNDS),
        act,
        patience=PATIENCE,
    )
    *rounds, end = json.loads(told)
    found = []
    for line in rounds:
        if not line:
            return [*found, ("hang" if line is None else "it ended too early", left)]
        one = json.loads(line)
        injected[fault] += one["fired"]
        about = "" if one["verdict"] == "expected" else f"{one['about']}: "
        found.append((about + one["verdict"], one["left"]))
    verdict = "expected" if end == "exit code 0" else str(end or "hang at its exit")
    return [*found, (verdict, left)]


def _kill_as_other_user(
    fault: str, method: str, rng: random.Random, injected: Counter[str]
) -> tuple[str, list[str]]:
    """Its workers hide, or nobody of that user can fork any more, when it is killed."""

    def act(program: Program) -> str:
        if (said := _line(program)) != "ready":
            return f"it said {said!r}"
        if "limited" in fault and (said := _ask(program)) != "limited":
            return f"it said {said!r}"
        program.kill()
        return "expected"

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        words = (method, rng.randint(1, 3), "hidden" in fault, folder)
        command = [*_as_other_user(), *_command("hidden", *words)]
        verdict, left = watched(command, act, patience=PATIENCE)
    injected[fault] += verdict == "expected"
    return verdict, left


def _limit_a_start(
    method: str, rng: random.Random, injected: Counter[str]
) -> tuple[str, list[str]]:
    nprocs = rng.randint(1, 3)

    def act(program: Program) -> str:
        told = _line(program)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(HANG_SECONDS)
            return str(told)
        return "hang"

    # From one that leaves no room for anything to one that is enough.
    words = (method, nprocs, rng.randint(1, nprocs + 4))
    verdict, left = watched(
        [*_as_other_user(), *_command("limited", *words)], act, patience=PATIENCE
    )
    injected["limited start"] += verdict == "refused"
    return "expected" if verdict in ("ran", "refused") else verdict, left


def _ask(program: Program) -> str | None:
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()
    return _line(program)


def _line(program: Program) -> str | None:
    """The next thing that it says, empty if it ended; None if it says nothing for too long."""
    assert program.stdout is not None
    # One line at a time is written, but for those that are read already.
    fd = program.stdout.fileno()
    line = b""
    deadline = time.monotonic() + HANG_SECONDS
    while not line.endswith(b"\n"):
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        data = os.read(fd, 1)
        if not data:
            break
        line += data
    return line.decode().strip()
