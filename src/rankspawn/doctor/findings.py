"""Findings: what would make ``spawn`` fail here, and what to look out for. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rankspawn.view.ranks import size_text

ERROR = "error"
WARNING = "warning"
NOTE = "note"

_MIB = 2**20
# Docker gives 64 MiB; one DataLoader of torch with image batches needs more.
_LITTLE_SHARED_MEMORY = 512 * _MIB
_LITTLE_MEMORY_PER_RANK = 256 * _MIB
_LITTLE_TEMPORARY = 100 * _MIB
# Three for each rank, and what the rest of a program has open; see descriptors.py.
_FILES_PER_RANK = 3
_SPARE_FILES = 64
# A worker that imports a framework has a few threads, and each counts as a process.
_PROCESSES_PER_RANK = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or something to know, and what to do about it.

    Attributes:
        level: ``error`` if spawn would fail, ``warning`` if something may, else ``note``.
        what: What was seen.
        do: What to do about it.
    """

    level: str
    what: str
    do: str


def find_problems(facts: dict[str, Any], forecast: dict[str, Any]) -> list[Finding]:
    """All findings about a machine and what ``spawn`` would do there, errors first."""
    ranks = forecast.get("nprocs") or 1
    found = [
        *_of_forecast(forecast),
        *_of_system(facts["system"]),
        *_of_limits(facts["limits"], ranks),
        *_of_devices(facts["devices"]),
        *_of_variables(facts, ranks),
    ]
    order = (ERROR, WARNING, NOTE)
    return sorted(found, key=lambda finding: order.index(finding.level))


def _of_forecast(forecast: dict[str, Any]) -> Iterator[Finding]:
    if forecast["error"]:
        yield Finding(ERROR, f"spawn(func) would raise {forecast['error']}", "See the message.")


def _of_system(system: dict[str, Any]) -> Iterator[Finding]:
    if system["missing_calls"] or system["portable_forced"]:
        yield _of_calls(system["missing_calls"])
    if system["platform"] != "linux":
        yield Finding(
            WARNING,
            f"this is {system['platform']}, on which rankspawn has never been tested.",
            "Use Linux for what matters; docs/reference.md says what is not promised elsewhere.",
        )
    if not system["proc"]:
        yield Finding(
            WARNING,
            "there is no /proc: processes that workers start are not found, workers outlive a "
            "killed parent, stacks of hanging ranks are not shown, and rankrun starts no job "
            "whose nodes may change.",
            "On Linux mount it: mount -t proc proc /proc",
        )
    if not system["sh"]:
        yield Finding(
            WARNING,
            "there is no /bin/sh, which ends workers whose parent was killed.",
            "Install a shell in this image, or make sure that the parent is not killed.",
        )
    if system["sigchld_ignored"]:
        yield Finding(
            WARNING,
            "SIGCHLD is ignored, so that exit codes of workers are lost.",
            "Start this program from a shell or supervisor that does not ignore it.",
        )
    if system["sigint_ignored"]:
        yield Finding(
            NOTE,
            "SIGINT is ignored, as in background jobs of scripts: Ctrl-C has no effect.",
            "Stop such a program with SIGTERM.",
        )


def _of_calls(missing: list[str]) -> Finding:
    """What the portable way does not promise; the table is in ``docs/reference.md``."""
    lost = (
        "no fork server (forkserver starts fresh interpreters, preload has no effect), a thread "
        "for each rank, outcomes and arguments in the temporary folder, large results copied, and "
        "a copy of the parent that C code forks keeps workers of a killed parent alive."
    )
    if not missing:
        return Finding(NOTE, f"RANKSPAWN_PORTABLE is set: {lost}", "Unset it for all promises.")
    calls = f"the system calls {', '.join(missing)} do" if missing[1:] else f"{missing[0]} does"
    return Finding(
        WARNING,
        f"{calls} not work here. spawn does without: {lost}",
        "Use Linux 5.4 or later, and a sandbox or container profile that allows them.",
    )


def _of_limits(limits: dict[str, Any], ranks: int) -> Iterator[Finding]:
    needed = _FILES_PER_RANK * ranks + _SPARE_FILES
    soft, hard = limits["open_files"]["soft"], limits["open_files"]["hard"]
    if hard is not None and needed > hard:
        yield Finding(
            ERROR,
            f"{ranks} workers need {needed} open files, but at most {hard} are allowed.",
            "Raise the hard limit (ulimit -Hn, or docker run --ulimit nofile=65536).",
        )
    elif soft is not None and soft < 1024:
        yield Finding(
            WARNING,
            f"only {soft} files may be open at once, in workers too.",
            f"Raise it before the start: ulimit -n {min(hard or 65536, 65536)}",
        )
    yield from _of_processes(limits, ranks)
    yield from _of_memory(limits, ranks)
    yield from _of_folders(limits)


def _of_processes(limits: dict[str, Any], ranks: int) -> Iterator[Finding]:
    group = limits["cgroup_processes"]
    if group["limit"] is not None:
        left = group["limit"] - (group["used"] or 0)
        if left < _PROCESSES_PER_RANK * ranks:
            yield Finding(
                ERROR if left <= ranks else WARNING,
                f"the control group leaves room for {left} more processes and threads, and "
                f"{ranks} workers are to be started.",
                "Raise pids.max (docker run --pids-limit), or start fewer workers.",
            )
    soft = limits["processes"]["soft"]
    if soft is not None and soft < 512:
        yield Finding(
            WARNING,
            f"this user may have only {soft} processes and threads in all.",
            "Raise the limit: ulimit -u",
        )


def _of_memory(limits: dict[str, Any], ranks: int) -> Iterator[Finding]:
    group, machine = limits["cgroup_memory"], limits["memory"]
    rooms = [machine["available"]]
    if group["limit"] is not None:
        rooms.append(group["limit"] - (group["used"] or 0))
    known = [room for room in rooms if room is not None]
    if known and min(known) < _LITTLE_MEMORY_PER_RANK * ranks:
        by = "the control group" if min(known) != machine["available"] else "this machine"
        yield Finding(
            WARNING,
            f"{by} has {size_text(min(known))} of memory left for {ranks} workers; one that "
            "runs out is killed by SIGKILL.",
            "Give it more (docker run --memory), or start fewer workers with nprocs.",
        )


def _of_folders(limits: dict[str, Any]) -> Iterator[Finding]:
    shared = limits["shared_memory"]
    if shared is None or not shared["writable"]:
        yield Finding(
            WARNING,
            "/dev/shm is missing or cannot be written to: no locks, queues or shared tensors.",
            "Mount it: mount -t tmpfs tmpfs /dev/shm",
        )
    elif shared["free"] < _LITTLE_SHARED_MEMORY:
        yield Finding(
            WARNING,
            f"/dev/shm has {size_text(shared['free'])} free; data loaders and NCCL put their "
            "batches and buffers there, and die of SIGBUS when it is full.",
            "In a container: docker run --shm-size=8g (or --ipc=host). rankspawn itself does "
            "not use it.",
        )
    temporary = limits["temporary"]
    if temporary is None or not temporary["writable"]:
        yield Finding(
            WARNING, "there is no folder for temporary files.", "Set TMPDIR to one that exists."
        )
    elif temporary["free"] < _LITTLE_TEMPORARY:
        yield Finding(
            WARNING,
            f"{temporary['path']} has {size_text(temporary['free'])} free.",
            "Make room there, or set TMPDIR to another folder.",
        )


def _of_devices(devices: list[dict[str, Any]]) -> Iterator[Finding]:
    for device in devices:
        for name, value in device["masks"].items():
            entries = [entry for entry in value.split(",") if entry.strip()]
            shown = len(device["visible"])
            if entries and value.strip() != "-1" and shown < len(entries):
                yield Finding(
                    WARNING,
                    f"{name}={value} has {len(entries)} entries, but shows {shown} devices.",
                    "An entry that is invalid or twice hides what follows: correct it.",
                )
        if device["visible"] and not device["found"]:
            names = ", ".join(device["masks"])
            yield Finding(
                WARNING,
                f"{names} shows {len(device['visible'])} devices of type {device['type']}, but "
                "none is found on this machine.",
                "Check the driver; or unset the variable, or use backend='gloo'.",
            )


def _of_variables(facts: dict[str, Any], ranks: int) -> Iterator[Finding]:
    variables = facts["variables"]
    threads = variables.get("OMP_NUM_THREADS", "")
    usable = facts["cpus"]["usable"]
    if threads.isdecimal() and int(threads) > 1 and int(threads) * ranks > 2 * usable:
        yield Finding(
            WARNING,
            f"OMP_NUM_THREADS={threads} is kept: {ranks} workers would run "
            f"{int(threads) * ranks} threads on {usable} CPUs.",
            "Unset it for a fair share, or use the option threads_per_rank.",
        )
    if facts["software"]["in_worker"]:
        yield Finding(
            NOTE,
            "this process is itself a worker of rankspawn.",
            "Run the doctor outside of it to see what the first spawn sees.",
        )
    elif "RANK" in variables and "WORLD_SIZE" in variables:
        yield Finding(
            NOTE,
            f"another launcher has set RANK={variables['RANK']}; workers get ranks of their own.",
            "Use either that launcher or spawn, unless you want both.",
        )
    if "http_proxy" in variables or "https_proxy" in variables:
        yield Finding(
            NOTE,
            "http_proxy and https_proxy are removed in workers, so that local traffic is direct.",
            "Set them by the option env if workers download something.",
        )
