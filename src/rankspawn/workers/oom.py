"""Evidence that the kernel ended a worker because memory ran out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OomCounts:
    """How often memory ran out so far: in this control group, or else on the whole machine."""

    group: int | None
    machine: int | None


def read_counts(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> OomCounts:
    """The kernel's counters; None where it has none that can be read."""
    for path in _event_files(proc, cgroups):
        count = _counter(path)
        if count is not None:
            return OomCounts(count, None)
    return OomCounts(None, _counter(os.path.join(proc, "vmstat")))


def describe_change(before: OomCounts, after: OomCounts) -> str | None:
    """What the counters say about the time in between; None if they say nothing."""
    if before.group is not None and after.group is not None and after.group > before.group:
        return (
            "memory ran out: the kernel killed "
            f"{after.group - before.group} process(es) of this control group meanwhile"
        )
    if before.machine is not None and after.machine is not None and after.machine > before.machine:
        return (
            "memory ran out: the kernel killed "
            f"{after.machine - before.machine} process(es) on this machine meanwhile"
        )
    return None


def _event_files(proc: str, cgroups: str) -> Iterator[str]:
    """Where the counter of this process's control group may be, in both versions of cgroups."""
    try:
        with open(os.path.join(proc, "self", "cgroup"), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield os.path.join(cgroups, path.lstrip("/"), "memory.events")
            yield os.path.join(cgroups, "unified", path.lstrip("/"), "memory.events")
        elif "memory" in controllers.split(","):
            yield os.path.join(cgroups, "memory", path.lstrip("/"), "memory.oom_control")


def _counter(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    except (OSError, ValueError):
        return None
    return None
