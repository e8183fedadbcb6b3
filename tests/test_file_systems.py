"""File systems that do not answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rankspawn
from rankspawn import file_systems
from tests import jobs

LINE = "{number} 1 0:{number} / {place} rw,relatime shared:1 - {kind} server:/export rw\n"


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the mount table of this process say so: kinds by place."""

    def mount(**kinds: str) -> None:
        lines = [LINE.format(number=10, place="/", kind="ext4")]
        for number, (name, kind) in enumerate(kinds.items(), 20):
            place = str(tmp_path / name).replace(" ", r"\040")
            lines.append(LINE.format(number=number, place=place, kind=kind))
        table = tmp_path / "mountinfo"
        table.write_text("".join(lines))
        monkeypatch.setattr(file_systems, "_MOUNTS", str(table))

    return mount


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Nothing that is asked for answers; what was asked for."""
    asked: list[str] = []
    is_over = threading.Event()

    def wait(path: str) -> None:
        asked.append(path)
        is_over.wait(jobs.DEADLOCK)

    monkeypatch.setattr(file_systems, "_look_up", wait)
    monkeypatch.setattr(file_systems, "_PATIENCE_SECONDS", 0.05)
    yield asked
    is_over.set()
    for thread in threading.enumerate():
        if thread.name == "rankspawn-file-system":
            thread.join()


def test_logs_on_one_are_refused_before_anything_starts(
    mount: Callable[..., None], silent: list[str], tmp_path: Path
) -> None:
    mount(shared="nfs4")
    folder = tmp_path / "shared" / "logs"

    with pytest.raises(TimeoutError, match=r"its file system \(nfs4\) does not answer") as caught:
        rankspawn.spawn(jobs.do_nothing, nprocs=1, backend="gloo", log_dir=folder)

    assert caught.value.filename == str(folder)
    assert silent == [str(folder)]
    assert not folder.exists()


def test_those_of_this_machine_are_not_asked(
    mount: Callable[..., None], silent: list[str], tmp_path: Path
) -> None:
    mount(shared="nfs4")

    rankspawn.spawn(jobs.do_nothing, nprocs=1, backend="gloo", log_dir=tmp_path / "own")

    assert silent == []


def test_one_that_answers(mount: Callable[..., None], tmp_path: Path) -> None:
    mount(shared="fuse.sshfs")

    rankspawn.spawn(jobs.do_nothing, nprocs=1, backend="gloo", log_dir=tmp_path / "shared")

    assert os.listdir(tmp_path / "shared") == ["workerlog.0"]


@pytest.mark.parametrize(
    ("kinds", "folder", "expected"),
    [
        ({}, "anywhere", "ext4"),
        ({"a": "nfs"}, "a", "nfs"),
        ({"a": "nfs"}, "a/b", "nfs"),
        ({"a": "nfs"}, "ab", "ext4"),
        ({"a": "nfs", "a/b": "xfs"}, "a/b/c", "xfs"),
        ({"a/b": "xfs", "a": "nfs"}, "a/b/c", "xfs"),
        ({"a b": "fuse"}, "a b/c", "fuse"),
        ({"a": "autofs", "a/": "nfs"}, "a/c", "nfs"),
    ],
)
def test_which_one_a_path_leads_to(
    mount: Callable[..., None],
    tmp_path: Path,
    kinds: dict[str, str],
    folder: str,
    expected: str,
) -> None:
    mount(**kinds)

    assert file_systems._kind_of(str(tmp_path / folder)) == expected


def test_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_systems, "_MOUNTS", "/nowhere/mountinfo")

    file_systems.check_answers("/anywhere")
