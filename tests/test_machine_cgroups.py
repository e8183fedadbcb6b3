"""Reading what control groups allow, and the counters of processes killed for want of memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankspawn.machine import Cgroups, OomCounts, describe_oom_kills, read_oom_counts
from tests.jobs import DEADLOCK


def tree(folder: Path, cgroup: str, files: dict[str, str]) -> tuple[str, str]:
    """A stand-in for /proc and /sys/fs/cgroup."""
    files = {"proc/self/cgroup": cgroup, **files}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "proc"), str(folder / "cgroup")


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

    groups = Cgroups(proc=str(tmp_path / "proc"), root=str(tmp_path / "sys/fs/cgroup"))

    assert groups.cpu_quota() == 1.5
    assert groups.memory() == {"limit": 3000, "used": 1000}
    assert groups.processes() == {"limit": None, "used": None}
    assert groups.memory_left() == 2000


def test_caches_and_swap_are_left_too(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal:  9000 kB\nSwapFree:  2 kB\n",
        "cgroup/memory/job/memory.limit_in_bytes": "5000\n",
        "cgroup/memory/job/memory.usage_in_bytes": "4900\n",
        "cgroup/memory/job/memory.stat": "cache 900\ninactive_file 7\ntotal_inactive_file 20\n",
    }
    proc, cgroups = tree(tmp_path, "4:memory:/job\n", files)
    assert Cgroups(proc=proc, root=cgroups).memory_left() == 100 + 20 + 2048

    (tmp_path / "cgroup/memory/job/memory.usage_in_bytes").write_text("9000\n")
    assert Cgroups(proc=proc, root=cgroups).memory_left() == 0
    assert Cgroups(proc=str(tmp_path / "none"), root=cgroups).memory_left() is None


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        (
            "0::/job.slice\n",
            {
                "proc/vmstat": "nr_free_pages 5\noom_kill 7\n",
                "cgroup/job.slice/memory.events": "low 0\noom 2\noom_kill 3\n",
            },
            OomCounts(group=3, machine=None),
        ),
        (
            "4:memory:/job\n1:cpu:/job\n0::/\n",
            {"cgroup/memory/job/memory.oom_control": "under_oom 0\noom_kill 2\n"},
            OomCounts(group=2, machine=None),
        ),
        (
            "0::/\n",
            {"cgroup/memory.events": "oom_kill 4\n", "proc/vmstat": "oom_kill 7\n"},
            OomCounts(group=4, machine=None),
        ),
        (
            "0::/docker/4711\n",
            {"cgroup/memory.events": "oom_kill 4\n", "proc/vmstat": "oom_kill 7\n"},
            OomCounts(group=4, machine=None),
        ),
        (
            "0::/../sibling\n",
            {"cgroup/memory.events": "oom_kill 4\n", "proc/vmstat": "oom_kill 7\n"},
            OomCounts(group=4, machine=None),
        ),
        (
            "0::/init.scope\n",
            {
                "cgroup/init.scope/cgroup.procs": "1\n",
                "cgroup/memory.events": "oom_kill 4\n",
                "proc/vmstat": "oom_kill 7\n",
            },
            OomCounts(group=4, machine=None),
        ),
        (
            "4:memory:/docker/4711\n0::/docker/4711\n",
            {
                "cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 4\n",
                "proc/vmstat": "oom_kill 7\n",
            },
            OomCounts(group=4, machine=None),
        ),
        ("1:cpu:/job\n", {"proc/vmstat": "oom_kill 1\n"}, OomCounts(group=None, machine=1)),
        ("0::/job\n", {"cgroup/job/memory.events": "garbage\n"}, OomCounts(None, None)),
    ],
    ids=[
        "version 2",
        "version 1",
        "container, own namespace",
        "container, the path is the host's",
        "container, the path leads out of the namespace",
        "container, the own group has no memory controller",
        "container, version 1",
        "no memory controller",
        "unreadable",
    ],
)
def test_counters_are_found_in_both_versions_of_cgroups(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: OomCounts
) -> None:
    proc, cgroups = tree(tmp_path, cgroup, files)

    assert read_oom_counts(proc, cgroups) == expected


def test_nothing_is_read_where_there_is_nothing(tmp_path: Path) -> None:
    assert read_oom_counts(str(tmp_path), str(tmp_path)) == OomCounts(None, None)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (OomCounts(1, 5), OomCounts(2, 6), "1 process(es) of this control group"),
        (OomCounts(1, 5), OomCounts(1, 7), "2 process(es) on this machine"),
        (OomCounts(None, 5), OomCounts(None, 6), "1 process(es) on this machine"),
        (OomCounts(1, 5), OomCounts(1, 5), None),
        (OomCounts(None, None), OomCounts(None, None), None),
        (OomCounts(None, None), OomCounts(3, 3), None),
    ],
)
def test_only_a_change_is_evidence(before: OomCounts, after: OomCounts, words: str | None) -> None:
    story = describe_oom_kills(before, after)

    assert (story is None) == (words is None)
    assert words is None or words in str(story)


OUT_OF_MEMORY = """
import os, sys
import rankspawn
from tests import jobs

def fill_memory_in_rank_1():
    if jobs.rank() != 1:
        jobs.sleep_for_ever()
    hoard = []
    while True:
        hoard.append(b"x" * (1 << 24))

if __name__ == "__main__":
    try:
        rankspawn.spawn(fill_memory_in_rank_1, nprocs=2, backend="gloo", start_method=sys.argv[1])
    except rankspawn.ProcessExitedException as error:
        print(error)
"""


def own_groups() -> Iterator[tuple[Path, str]]:
    """Where the memory of this process is limited, and by which file, in both versions."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield Path("/sys/fs/cgroup/memory", path.lstrip("/")), "memory.limit_in_bytes"
        elif not controllers:
            yield Path("/sys/fs/cgroup", path.lstrip("/")), "memory.max"


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory, for a program to be run in."""
    for parent, limit in own_groups():
        folder = parent / f"rankspawn-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if (folder / limit).exists():
                (folder / limit).write_text(str(120 << 20))
                yield folder
                return
        finally:
            remove_group(folder)
    pytest.skip("no control group for memory can be made here")


def remove_group(folder: Path) -> None:
    """Once the last process of it is gone, which the system does not tell."""
    deadline = time.monotonic() + DEADLOCK
    while True:
        try:
            folder.rmdir()
        except OSError:
            left = (folder / "cgroup.procs").read_text().split()
            assert time.monotonic() < deadline, f"left in the control group: {left}"
            time.sleep(0.05)
        else:
            return


def run_in(group: Path, text: str, folder: Path, *arguments: str) -> str:
    """What a script says that runs in a control group."""
    script = folder / "script.py"
    script.write_text(text)
    root = Path(__file__).parent.parent

    def enter() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"},
        preexec_fn=enter,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLOCK,
        check=True,
    ).stdout


def test_a_worker_that_used_up_the_memory_of_its_group(
    small_group: Path, tmp_path: Path, start_method: str
) -> None:
    said = run_in(small_group, OUT_OF_MEMORY, tmp_path, start_method)

    assert "Process 1 terminated with signal SIGKILL" in said
    assert "memory ran out: the kernel killed 1 process(es) of this control group" in said


MUCH_TO_SHARE = """
import rankspawn

def share_more_than_there_is():
    comm = rankspawn.init_parallel_env()
    try:
        comm.empty(100 << 20, "uint8")
    except MemoryError as error:
        return str(error)

if __name__ == "__main__":
    for said in rankspawn.spawn(share_more_than_there_is, nprocs=2, backend="gloo").results():
        print(said)
"""


def test_shared_arrays_that_a_group_has_no_memory_for(small_group: Path, tmp_path: Path) -> None:
    said = run_in(small_group, MUCH_TO_SHARE, tmp_path).splitlines()

    assert len(said) == 2
    for line in said:
        assert line.startswith("no room for 209,715,200 bytes of memory that ranks share: the con")
