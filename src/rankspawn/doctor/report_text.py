"""The doctor's report as text of 80 columns. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from rankspawn.doctor.findings import Finding
from rankspawn.view.ranks import size_text

_WIDTH = 80
_LABEL = 16
# More rows than this say the same thing again; --json has all of them.
_MOST_RANKS = 8


def format_report(facts: dict[str, Any], forecast: dict[str, Any], findings: list[Finding]) -> str:
    """The whole report: what there is, what ``spawn`` would do, and the findings."""
    software = facts["software"]
    parts = [
        textwrap.wrap(
            f"rankspawn {software['rankspawn']}, {software['python']}, {software['system']}", _WIDTH
        ),
        ["Devices", *_devices(facts["devices"])],
        ["CPUs", *_cpus(facts["cpus"])],
        ["Limits", *_limits(facts["limits"])],
        ["Starting", *_starting(facts)],
        ["Packages (not imported)", *_packages(facts["packages"])],
        ["spawn(func, nprocs=-1) would start", *_forecast(forecast)],
        ["Findings", *_findings(findings)],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts)


def _row(label: str, text: str) -> list[str]:
    """A label and a text, wrapped beside it."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"  {label:{_LABEL}}",
        subsequent_indent=" " * (_LABEL + 2),
        break_on_hyphens=False,
    ) or [f"  {label}"]


def _devices(devices: list[dict[str, Any]]) -> Iterator[str]:
    if not devices:
        yield from _row("none", "no GPU or other accelerator, and no mask is set")
    for device in devices:
        vendor = f" ({device['vendor']})" if device["vendor"] else ""
        shown = ", ".join(device["visible"]) or "none"
        yield from _row(device["type"] + vendor, f"{device['found']} found, visible: {shown}")
        for name, value in device["masks"].items():
            yield from _row("", f"{name}={value} {_meaning(device, name, value)}")


def _meaning(device: dict[str, Any], name: str, value: str) -> str:
    """What a mask does to the devices of this machine."""
    if not device["visible"]:
        return (
            "hides all of them" if device["found"] or value.strip() in ("", "-1") else "shows none"
        )
    if name.startswith("FLAGS_"):
        return "chooses by index"
    count = len(device["visible"])
    return f"shows {count}, which frameworks count from 0 to {count - 1}"


def _cpus(cpus: dict[str, Any]) -> Iterator[str]:
    yield from _row("usable", str(cpus["usable"]))
    quota = "none" if cpus["cgroup_quota"] is None else f"{cpus['cgroup_quota']:g} CPUs"
    yield from _row(
        "of", f"{cpus['machine']} in the machine, affinity {cpus['affinity']}, cgroup quota {quota}"
    )
    if cpus["CPU_NUM"]:
        yield from _row("CPU_NUM", f"{cpus['CPU_NUM']}: workers on the CPU for nprocs=-1")


def _limits(limits: dict[str, Any]) -> Iterator[str]:
    files, processes = limits["open_files"], limits["processes"]
    yield from _row("open files", f"{_limit(files['soft'])} (hard limit {_limit(files['hard'])})")
    group = limits["cgroup_processes"]
    by_group = f", cgroup {group['limit']}" if group["limit"] is not None else ""
    yield from _row("processes", f"{_limit(processes['soft'])}{by_group}")
    memory, group = limits["memory"], limits["cgroup_memory"]
    by_group = f", cgroup {_size(group['limit'])}" if group["limit"] is not None else ""
    yield from _row(
        "memory", f"{_size(memory['available'])} of {_size(memory['total'])} free{by_group}"
    )
    for label, disk in (("/dev/shm", limits["shared_memory"]), ("temporary", limits["temporary"])):
        if disk is None:
            yield from _row(label, "missing")
        else:
            place = "" if disk["path"] == label else f", {disk['path']}"
            yield from _row(label, f"{_size(disk['free'])} of {_size(disk['total'])} free{place}")


# Calls that are told by a shorter name, also if they work.
_TOLD = ("pidfd_open", "memfd_create")


def _starting(facts: dict[str, Any]) -> Iterator[str]:
    methods, system = facts["start_methods"], facts["system"]
    names = [
        f"{name} (default)" if name == methods["default"] else name for name in methods["available"]
    ]
    yield from _row("start methods", ", ".join(names))
    parts = [f"{name} {'works' if system[name] else 'FAILS'}" for name in ("pidfd", "memfd")]
    parts += [f"{call} FAILS" for call in system["missing_calls"] if call not in _TOLD]
    parts += [f"/bin/sh {'found' if system['sh'] else 'MISSING'}"]
    if system["ptrace_scope"]:
        parts.append(f"ptrace_scope {system['ptrace_scope']} (dump_stacks works all the same)")
    yield from _row("supervision", ", ".join(parts))


def _packages(packages: dict[str, str]) -> Iterator[str]:
    text = ", ".join(f"{name} {version}" for name, version in packages.items())
    yield from textwrap.wrap(
        text or "none of the known ones",
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )


def _forecast(forecast: dict[str, Any]) -> Iterator[str]:
    if forecast["error"]:
        yield from _row("nothing", forecast["error"])
        return
    ranks = forecast["ranks"]
    nodes = f" on each of {forecast['nnodes']} nodes" if forecast["nnodes"] > 1 else ""
    yield from _row("workers", f"{forecast['nprocs']}{nodes}, backend {forecast['backend']}")
    if forecast["note"]:
        yield from _row("because", forecast["note"].partition(": ")[2] or forecast["note"])
    shown = ", ".join(f"{entry['rank']} on {entry['device']}" for entry in ranks[:_MOST_RANKS])
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    yield from _row("ranks", shown + more)
    yield from _row("environment", f"of rank {ranks[0]['rank']}, beside what is set already:")
    environment = ranks[0]["environment"]
    for name, value in environment.items():
        if value is not None:
            room = _WIDTH - len(name) - 5
            yield f"    {name}={value if len(value) <= room else value[: room - 1] + '…'}"
    removed = ", ".join(name for name, value in environment.items() if value is None)
    if removed:
        yield from _row("removed", removed)


def _findings(findings: list[Finding]) -> Iterator[str]:
    if not findings:
        yield "  all is well"
    for finding in findings:
        yield from _row(finding.level, finding.what)
        yield from _row("", f"→ {finding.do}")


def _limit(number: int | None) -> str:
    return "no limit" if number is None else str(number)


def _size(count: int | None) -> str:
    return "unknown" if count is None else size_text(count)
