"""The findings about other machines, given as facts, and the report made of them."""

from __future__ import annotations

from typing import Any

import pytest

from rankspawn.doctor.facts import forecast_spawn
from rankspawn.doctor.findings import Finding, find_problems
from rankspawn.doctor.report_text import format_report
from tests.plan.conftest import FakeMachine

GIB = 2**30


def facts(**changes: Any) -> dict[str, Any]:
    """A machine on which all is well, with changes given as ``limits__open_files``."""
    disk = {"path": "/dev/shm", "total": 8 * GIB, "free": 8 * GIB, "writable": True}
    found: dict[str, Any] = {
        "software": {
            "rankspawn": "1",
            "python": "cpython 3",
            "system": "Linux",
            "in_worker": False,
        },
        "devices": [],
        "cpus": {
            "machine": 8,
            "affinity": 8,
            "cgroup_quota": 2.5,
            "usable": 2,
            "CPU_NUM": "2",
        },
        "limits": {
            "open_files": {"soft": 1024, "hard": None},
            "processes": {"soft": None, "hard": None},
            "cgroup_processes": {"limit": None, "used": None},
            "memory": {"total": 16 * GIB, "available": 8 * GIB},
            "cgroup_memory": {"limit": None, "used": None},
            "shared_memory": disk,
            "temporary": {**disk, "path": "/tmp"},
        },
        "start_methods": {"available": ["spawn", "fork"], "default": "spawn"},
        "system": {
            "platform": "linux",
            "pidfd": True,
            "memfd": True,
            "missing_calls": [],
            "portable_forced": False,
            "sh": True,
            "proc": True,
            "sigint_ignored": False,
            "sigchld_ignored": False,
            "ptrace_scope": 1,
        },
        "packages": {},
        "variables": {},
    }
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = found
        for parent in parents:
            place = place[parent]
        place[name] = value
    return found


FORECAST: dict[str, Any] = {"error": None, "nprocs": 4}
LITTLE = {"path": "/dev/shm", "total": 64 * 2**20, "free": 64 * 2**20, "writable": True}


def test_all_is_well() -> None:
    assert find_problems(facts(), FORECAST) == []


# In one test, since there are many and each is quick.
def test_every_finding_says_what_to_do() -> None:
    mask = {"type": "gpu", "found": 8, "masks": {"M": "0,9,1"}, "visible": ["0"]}
    phantom = {"type": "gpu", "found": 0, "masks": {"M": "0,1"}, "visible": ["0", "1"]}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"system__missing_calls": ["pidfd_open"]}, "warning", "pidfd_open does not work"),
        ({"system__missing_calls": ["eventfd", "x"]}, "warning", "calls eventfd, x do not work"),
        ({"system__portable_forced": True}, "note", "RANKSPAWN_PORTABLE is set"),
        ({"system__platform": "darwin"}, "warning", "never been tested"),
        ({"system__proc": False}, "warning", "/proc"),
        ({"system__sh": False}, "warning", "/bin/sh"),
        ({"system__sigchld_ignored": True}, "warning", "SIGCHLD"),
        ({"system__sigint_ignored": True}, "note", "SIGINT"),
        ({"limits__open_files": {"soft": 64, "hard": 64}}, "error", "need 76 open files"),
        ({"limits__open_files": {"soft": 256, "hard": None}}, "warning", "256 files"),
        ({"limits__processes__soft": 100}, "warning", "100 processes"),
        ({"limits__cgroup_processes": {"limit": 10, "used": 7}}, "error", "3 more processes"),
        ({"limits__cgroup_processes": {"limit": 20, "used": 7}}, "warning", "13 more processes"),
        ({"limits__cgroup_memory": {"limit": GIB, "used": GIB // 2}}, "warning", "512 MiB"),
        ({"limits__shared_memory": LITTLE}, "warning", "64 MiB free; data loaders"),
        ({"limits__shared_memory": None}, "warning", "/dev/shm is missing"),
        ({"limits__temporary": None}, "warning", "temporary files"),
        ({"limits__temporary": {**LITTLE, "path": "/t"}}, "warning", "/t has 64 MiB"),
        ({"devices": [mask]}, "warning", "M=0,9,1 has 3 entries, but shows 1"),
        ({"devices": [phantom]}, "warning", "none is found on this machine"),
        ({"variables": {"OMP_NUM_THREADS": "8"}}, "warning", "32 threads on 2 CPUs"),
        ({"variables": {"RANK": "1", "WORLD_SIZE": "2"}}, "note", "another launcher"),
        ({"variables": {"http_proxy": "p"}}, "note", "http_proxy"),
        ({"software__in_worker": True}, "note", "itself a worker"),
    ]
    for changes, level, words in cases:
        [finding] = find_problems(facts(**changes), FORECAST)
        assert (finding.level, words in finding.what) == (level, True), finding
        assert finding.do


def test_errors_come_first() -> None:
    files = {"soft": 64, "hard": 64}
    found = find_problems(
        facts(system__sigint_ignored=True, system__sh=False, limits__open_files=files), FORECAST
    )

    assert [finding.level for finding in found] == ["error", "warning", "note"]


@pytest.mark.parametrize("ranks", [1, 300])
def test_the_text_fits_80_columns(ranks: int) -> None:
    machine = FakeMachine(cpu=ranks)
    forecast = forecast_spawn({}, machine)
    finding = Finding("warning", "word " * 60, "do " * 60)
    device = {
        "type": "gpu",
        "vendor": "nvidia",
        "found": 64,
        "masks": {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(64)))},
        "visible": [str(number) for number in range(64)],
    }

    lines = format_report(facts(devices=[device]), forecast, [finding]).splitlines()

    assert max(map(len, lines)) <= 80
    assert f"  workers         {ranks}, backend gloo" in lines


def test_an_impossible_environment_is_an_answer_too() -> None:
    forecast = forecast_spawn({"CPU_NUM": "0"}, FakeMachine(cpu=2))

    assert forecast == {"error": "ValueError: CPU_NUM='0' must be a positive number"}
    assert "CPU_NUM='0'" in format_report(facts(), forecast, [])
    assert find_problems(facts(), forecast)[0].level == "error"
