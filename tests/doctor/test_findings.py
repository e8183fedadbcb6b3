"""What the facts mean: pure, with facts of other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankspawn.doctor.cgroups import Cgroups
from rankspawn.doctor.findings import Finding, judge
from rankspawn.doctor.forecast import foresee
from rankspawn.doctor.wording import write
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
            "pidfd": True,
            "memfd": True,
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
    assert judge(facts(), FORECAST) == []


# In one test, since there are many and each is quick.
def test_every_finding_says_what_to_do() -> None:
    mask = {"type": "gpu", "found": 8, "masks": {"M": "0,9,1"}, "visible": ["0"]}
    phantom = {"type": "gpu", "found": 0, "masks": {"M": "0,1"}, "visible": ["0", "1"]}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"system__pidfd": False}, "error", "pidfd_open"),
        ({"system__memfd": False}, "error", "memfd_create"),
        ({"system__proc": False}, "error", "/proc"),
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
        [finding] = judge(facts(**changes), FORECAST)
        assert (finding.level, words in finding.what) == (level, True), finding
        assert finding.do


def test_errors_come_first() -> None:
    found = judge(
        facts(system__sigint_ignored=True, system__sh=False, system__pidfd=False), FORECAST
    )

    assert [finding.level for finding in found] == ["error", "warning", "note"]


@pytest.mark.parametrize("ranks", [1, 300])
def test_the_text_fits_80_columns(ranks: int) -> None:
    machine = FakeMachine(cpu=ranks)
    forecast = foresee({}, machine)
    finding = Finding("warning", "word " * 60, "do " * 60)
    device = {
        "type": "gpu",
        "vendor": "nvidia",
        "found": 64,
        "masks": {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(64)))},
        "visible": [str(number) for number in range(64)],
    }

    lines = write(facts(devices=[device]), forecast, [finding]).splitlines()

    assert max(map(len, lines)) <= 80
    assert f"  workers         {ranks}, backend gloo" in lines


def test_an_impossible_environment_is_an_answer_too() -> None:
    forecast = foresee({"CPU_NUM": "0"}, FakeMachine(cpu=2))

    assert forecast == {"error": "ValueError: CPU_NUM='0' must be a positive number"}
    assert "CPU_NUM='0'" in write(facts(), forecast, [])
    assert judge(facts(), forecast)[0].level == "error"


def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/a/b\n4:memory:/c\n")
    files = {
        "a/cpu.max": "150000 100000",
        "a/b/cpu.max": "max 100000",
        "a/memory.max": "4000",
        "a/memory.current": "100",
        "a/pids.max": "max",
        "memory/c/memory.limit_in_bytes": "3000",
        "memory/c/memory.usage_in_bytes": "1000",
        "memory/memory.limit_in_bytes": "9223372036854771712",
    }
    for name, text in files.items():
        path = tmp_path / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    groups = Cgroups(proc=str(tmp_path / "proc"), sys=str(tmp_path / "sys"))

    assert groups.cpu_quota() == 1.5
    assert groups.memory() == {"limit": 3000, "used": 1000}
    assert groups.processes() == {"limit": None, "used": None}
