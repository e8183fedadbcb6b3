"""Where a trace can go."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankspawn
from rankspawn.trace.request import place_trace, read_trace, write_atomically
from tests import jobs


@pytest.mark.parametrize("name", ["run.txt", "run", "html"])
def test_another_ending_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=rf"trace='{name}': a trace ends in .html, .* or in .json"):
        rankspawn.spawn(jobs.do_nothing, nprocs=1, backend="gloo", trace=name)
    with pytest.raises(TypeError, match="trace must be a path"):
        read_trace("trace", 7)


def test_what_cannot_be_written_is_an_error_before_the_start(tmp_path: Path) -> None:
    began = tmp_path / "began"
    with pytest.raises(FileNotFoundError, match="make its folder first"):
        rankspawn.spawn(began.touch, nprocs=1, backend="gloo", trace=tmp_path / "none" / "run.html")
    assert not began.exists()
    (tmp_path / "is.html").mkdir()
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        place_trace(str(tmp_path / "is.html"))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="make its folder first"):
        place_trace(str(tmp_path / "file" / "run.html"))


def test_each_node_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_trace("run.html") == str(tmp_path / "run.html")
    assert place_trace("run.html", node_rank=2) == str(tmp_path / "run.node2.html")


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    write_atomically(str(path), b"first")
    write_atomically(str(path), b"second")
    assert path.read_bytes() == b"second"
    with pytest.raises(TypeError):
        write_atomically(str(path), "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]
