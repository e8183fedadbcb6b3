"""Reading the kernel's counters of processes that it killed for want of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankspawn.workers.oom import OomCounts, describe_change, read_counts


def tree(folder: Path, cgroup: str, files: dict[str, str]) -> tuple[str, str]:
    """A stand-in for /proc and /sys/fs/cgroup."""
    files = {"proc/self/cgroup": cgroup, **files}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "proc"), str(folder / "cgroup")


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
        ("1:cpu:/job\n", {"proc/vmstat": "oom_kill 1\n"}, OomCounts(group=None, machine=1)),
        ("0::/job\n", {"cgroup/job/memory.events": "garbage\n"}, OomCounts(None, None)),
    ],
    ids=["version 2", "version 1", "no memory controller", "unreadable"],
)
def test_counters_are_found_in_both_versions_of_cgroups(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: OomCounts
) -> None:
    proc, cgroups = tree(tmp_path, cgroup, files)

    assert read_counts(proc, cgroups) == expected


def test_nothing_is_read_where_there_is_nothing(tmp_path: Path) -> None:
    assert read_counts(str(tmp_path), str(tmp_path)) == OomCounts(None, None)


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
    story = describe_change(before, after)

    assert (story is None) == (words is None)
    assert words is None or words in str(story)
