"""Files of detached jobs: private, signed, found by the job's number."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from rankspawn.cluster.kept_jobs import KeptJob, home, load, new_folder, read_signed, write_signed


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def _kept(number: str = "7") -> KeptJob:
    folder, key = new_folder(None)
    job = KeptJob(number, folder, key, {"grace": 1.5})
    job.save()
    return job


def test_a_job_is_found_by_its_number_until_it_is_forgotten() -> None:
    job = _kept()
    assert load("7") == job
    job.forget()
    job.forget()
    assert list(home().iterdir()) == []
    with pytest.raises(LookupError, match="nothing is kept of a job 7"):
        load("7")


def test_a_number_that_comes_again_is_the_new_job_s() -> None:
    old, new = _kept(), _kept()
    assert load("7") == new
    assert not old.folder.exists()


def test_only_its_owner_may_look(tmp_path: Path) -> None:
    job = _kept()
    write_signed(job.folder, "task", job.key, [b"a", memoryview(b"b")])
    for path, mode in ((home(), 0o700), (job.folder, 0o700), (job.folder / "task", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    elsewhere, _ = new_folder(tmp_path / "shared")
    assert elsewhere.parent == tmp_path / "shared"


def test_what_was_written_is_read() -> None:
    job = _kept()
    with pytest.raises(FileNotFoundError):
        read_signed(job.folder, "results", job.key)
    write_signed(job.folder, "results", job.key, [b"one ", b"two"])
    assert read_signed(job.folder, "results", job.key) == b"one two"


@pytest.mark.parametrize("how", ["changed", "renamed", "open to all"])
def test_what_somebody_else_could_have_written_is_refused(how: str) -> None:
    job = _kept()
    write_signed(job.folder, "task", job.key, [b"data"])
    path = job.folder / "task"
    if how == "changed":
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    elif how == "renamed":
        path = path.rename(job.folder / "results")
    else:
        path.chmod(0o666)
    with pytest.raises(PermissionError, match=r"written by this job|others may write"):
        read_signed(job.folder, path.name, job.key)
