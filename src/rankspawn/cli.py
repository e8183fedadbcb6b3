"""``rankspawn``: the command for what is neither ``spawn`` nor ``rankrun``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from rankspawn import __version__

_BROKEN_PIPE = 141  # as a shell has it for SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command, which is run with these arguments or the process's own."""
    arguments = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
        # Here, where the error can be caught, and not when the interpreter ends.
        sys.stdout.flush()
    except BrokenPipeError:  # `rankspawn doctor | head`
        # What is still in the buffer gets written at the end, to a place that takes it.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return code


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "doctor":
        return _doctor(as_json=arguments.json)
    from rankspawn.inspect.commands import run

    return run(arguments)


def _parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="rankspawn",
        description="Tools around rankspawn.spawn. To run a script once per device, see rankrun.",
    )
    parser.add_argument("--version", action="version", version=f"rankspawn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    of_doctor = commands.add_parser(
        "doctor",
        help="show what rankspawn sees on this machine, and what spawn would do",
        description="Show devices, CPUs, limits and versions as rankspawn sees them, and what "
        "spawn(func) would do. Starts nothing and imports no framework. "
        "Exit code 1 if spawn would fail.",
    )
    of_doctor.add_argument("--json", action="store_true", help="the same for programs")
    _add_inspection(commands)
    return parser


def _add_inspection(commands: Any) -> None:
    """What looks at running jobs, see ``rankspawn.inspect``."""
    whose = "Sees groups of spawn and jobs of rankrun of this user, on this machine."
    ps = commands.add_parser(
        "ps",
        help="list what runs",
        description=f"List every running job: what it runs, its ranks, what they take and report. "
        f"{whose}",
    )
    ps.add_argument("--json", action="store_true", help="the same for programs")
    top = commands.add_parser(
        "top", help="the live table of a job", description=f"Show a job's ranks live. {whose}"
    )
    top.add_argument("--interval", type=_seconds, metavar="S", help="seconds between two looks")
    stacks = commands.add_parser(
        "stacks",
        help="where every rank is",
        description="Show the Python stacks of every rank, the one that differs first. Ranks are "
        f"not disturbed. Programs of rankrun are looked into by py-spy, if that is there. {whose}",
    )
    logs = commands.add_parser(
        "logs", help="what the ranks printed", description=f"Show the logs of a job. {whose}"
    )
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the ranks end")
    stop = commands.add_parser(
        "stop",
        help="end a job",
        description="Send SIGTERM to the process that started the job, which ends its ranks and "
        f"then itself; kill what is left when the time is over. {whose}",
    )
    stop.add_argument(
        "--grace",
        type=_seconds,
        metavar="S",
        help="seconds until what is left is killed; default: the job's own grace period, and 5 s",
    )
    for command in (stacks, logs):
        command.add_argument("--rank", type=int, metavar="N", help="of this rank only")
    for command in (top, stacks, logs, stop):
        command.add_argument(
            "job",
            nargs=None if command is stop else "?",
            metavar="JOB",
            help="the first letters of its name in ps, or the number of one of its processes"
            + ("" if command is stop else "; not needed if one runs"),
        )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return seconds


def _doctor(*, as_json: bool) -> int:
    """Print what the doctor found; 1 if something would make ``spawn`` fail, else 0."""
    from rankspawn.doctor.facts import forecast_spawn, gather_facts
    from rankspawn.doctor.findings import ERROR, find_problems
    from rankspawn.doctor.report_text import format_report
    from rankspawn.machine import RealMachine

    machine = RealMachine()
    facts, forecast = gather_facts(os.environ, machine), forecast_spawn(os.environ, machine)
    findings = find_problems(facts, forecast)
    if as_json:
        found = {**facts, "spawn": forecast, "findings": list(map(asdict, findings))}
        print(json.dumps(found, indent=2))  # noqa: T201 - what the command is for
    else:
        encoding = sys.stdout.encoding or "utf-8"
        # A terminal that knows no arrows gets question marks, no traceback.
        text = format_report(facts, forecast, findings)
        print(text.encode(encoding, "replace").decode(encoding))  # noqa: T201
    return int(any(finding.level == ERROR for finding in findings))
