"""Starting a group that waits, and reading from outside what the system knows of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.trials import meeting

_GROUP = Path(__file__).with_name("waiting_group.py")


@dataclass(frozen=True)
class Watched:
    """A group that waits."""

    parent: int
    workers: list[int]


@contextmanager
def waiting_group(trial: Mapping[str, Any]) -> Iterator[Watched]:
    """The group of a trial, all of its workers waiting; it ends with the block."""
    with tempfile.TemporaryDirectory() as folder:
        gate = meeting.make_gate(folder)
        command = [sys.executable, str(_GROUP), json.dumps(trial), folder]
        with subprocess.Popen(command, stdout=sys.stderr) as program:
            try:
                pids = meeting.wait_for_all(folder, trial["nprocs"], program)
                yield Watched(program.pid, pids)
            finally:
                os.close(gate)
        if program.returncode:
            raise RuntimeError(f"the program failed with {program.returncode}")


def is_running(pid: int) -> bool:
    """False for a process that is gone, or dead and not yet reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # The name, in parentheses, may hold anything.
    return stat.rpartition(")")[2].split()[0] != "Z"


def wake_ups(pid: int) -> int:
    """How often the threads of a process got the CPU so far."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.endswith("voluntary_ctxt_switches"):
                total += int(value)
    return total


def proportional_memory(pid: int) -> int:
    """Bytes of a process, with what it shares divided among those who share it (PSS)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell PSS")
