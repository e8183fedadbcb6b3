"""Runs launchers as black boxes, and compares what their processes and ours are told."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankspawn.launch.programs import ProgramSpec
from tests import jobs

# Importing a framework takes seconds on a busy machine, twice for two nodes.
DEADLOCK = 2 * jobs.DEADLOCK
WORKER = str(Path(__file__).with_name("reporting_worker.py"))

Environment = dict[str, str]

# The whole environment of the launchers, so that nothing of the tests' own gets in between.
BASE = {
    "PATH": os.environ.get("PATH", ""),
    "HOME": os.environ.get("HOME", "/"),
    "LC_ALL": "C.UTF-8",
    "http_proxy": "http://proxy.invalid:1",
    "https_proxy": "http://proxy.invalid:1",
}


def run(
    commands: Sequence[Sequence[str]], count: int, folder: Path, environ: Mapping[str, str]
) -> list[Environment]:
    """The environments of ``count`` processes that these launchers start together."""
    return run_with([(command, environ) for command in commands], count, folder)


def run_with(
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], count: int, folder: Path
) -> list[Environment]:
    """The same, each launcher with an environment of its own."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(DEADLOCK)
        told = {"REPORT_TO": str(listener.getsockname()[1]), "TMPDIR": str(folder)}
        launchers = []
        for number, (command, environ) in enumerate(commands):
            output = stack.enter_context((folder / f"launcher.{number}").open("wb"))
            launcher = subprocess.Popen(
                command, cwd=folder, env={**environ, **told}, stdout=output, stderr=output
            )
            launchers.append(stack.enter_context(launcher))
            # Runs before the wait of Popen's own exit.
            stack.callback(launcher.kill)
        reports = [_read_report(listener, stack) for _ in range(count)]
        for connection, _ in reports:
            connection.close()
        codes = [launcher.wait(DEADLOCK) for launcher in launchers]
    words = [(folder / f"launcher.{n}").read_text()[-2000:] for n in range(len(commands))]
    assert codes == [0] * len(commands), words
    # Not a part of either launcher's doing.
    return [{k: v for k, v in report.items() if k not in told} for _, report in reports]


def _read_report(
    listener: socket.socket, stack: contextlib.ExitStack
) -> tuple[socket.socket, Environment]:
    connection = stack.enter_context(listener.accept()[0])
    connection.settimeout(DEADLOCK)
    with connection.makefile("rb") as lines:
        return connection, json.loads(lines.readline())


def outputs(commands: Sequence[tuple[Sequence[str], Environment]], start: str) -> list[str]:
    """What each of these programs, run together, printed on the line that begins so."""
    with contextlib.ExitStack() as stack:
        programs = []
        for command, environ in commands:
            program = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
            programs.append(stack.enter_context(program))
            stack.callback(program.kill)
        texts = [program.communicate(timeout=DEADLOCK)[0] for program in programs]
    lines = [[line for line in text.splitlines() if line.startswith(start)] for text in texts]
    return [one.removeprefix(start) for (one,) in lines]


def with_changes(environ: Mapping[str, str], program: ProgramSpec) -> Environment:
    """The environment that a program of ours finds."""
    changed = {**environ, **program.env}
    return {name: value for name, value in changed.items() if value is not None}


def differing(ours: Environment, theirs: Environment) -> set[str]:
    return {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}


def compare(
    ours: list[Environment], theirs: list[Environment], expected: Mapping[str, str]
) -> None:
    """Process by process: what differs is what is expected to, no more and no less."""
    assert len(ours) == len(theirs)
    found: set[str] = set()
    for mine, other in zip(ours, theirs, strict=True):
        names = differing(mine, other)
        unexpected = {name: (mine.get(name), other.get(name)) for name in names - expected.keys()}
        assert unexpected == {}
        found |= names
    assert expected.keys() - found == set(), "these do not differ any more"


def listed_endpoints(host: str, *counts: int) -> list[str]:
    """Lists of so many endpoints, all different.

    Nobody listens on them: the processes here only say what they were told.
    """
    lists = []
    with contextlib.ExitStack() as stack:
        for count in counts:
            servers = [
                stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
            ]
            lists.append(",".join(f"{host}:{one.getsockname()[1]}" for one in servers))
    return lists
