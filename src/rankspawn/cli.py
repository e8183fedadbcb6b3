"""``rankspawn``: the command for what is neither ``spawn`` nor ``rankrun``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from rankspawn import __version__

__all__ = ["main"]

_BROKEN_PIPE = 141  # as a shell has it for SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit code is what it found."""
    arguments = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    try:
        code = doctor(as_json=arguments.json)
        sys.stdout.flush()
    except BrokenPipeError:  # `rankspawn doctor | head`
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rankspawn",
        description="Tools around rankspawn.spawn. To run a script once per device, see rankrun.",
    )
    parser.add_argument("--version", action="version", version=f"rankspawn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    one = commands.add_parser(
        "doctor",
        help="show what rankspawn sees on this machine, and what spawn would do",
        description="Show devices, CPUs, limits and versions as rankspawn sees them, and what "
        "spawn(func) would do. Starts nothing and imports no framework. "
        "Exit code 1 if spawn would fail.",
    )
    one.add_argument("--json", action="store_true", help="the same for programs")
    return parser


def doctor(*, as_json: bool) -> int:
    """Print the report; 1 if something would make ``spawn`` fail, else 0."""
    from rankspawn.doctor.facts import gather
    from rankspawn.doctor.findings import ERROR, judge
    from rankspawn.doctor.forecast import foresee
    from rankspawn.doctor.wording import write
    from rankspawn.machine import RealMachine

    machine = RealMachine()
    facts, forecast = gather(os.environ, machine), foresee(os.environ, machine)
    findings = judge(facts, forecast)
    if as_json:
        report = {**facts, "spawn": forecast, "findings": [asdict(one) for one in findings]}
        print(json.dumps(report, indent=2))  # noqa: T201 - what the command is for
    else:
        encoding = sys.stdout.encoding or "utf-8"
        # A terminal that knows no arrows gets question marks, no traceback.
        text = write(facts, forecast, findings).encode(encoding, "replace").decode(encoding)
        print(text)  # noqa: T201
    return int(any(finding.level == ERROR for finding in findings))
