"""What cannot come to its first line is known before it is started, without an import."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from rankspawn.launch.config import LaunchConfig
from rankspawn.launch.first_line import check_first_line

WRONG = "print('here'\n"
# Nobody may import it to look inside.
HARMFUL = "raise SystemExit('imported')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def check(script: str, *, is_module: bool = True) -> None:
    check_first_line(LaunchConfig(script=script, is_module=is_module))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("train", "train.py"),
        ("train", "train/__init__.py"),
        ("train", "train/__main__.py"),
        ("pkg.train", "pkg/train.py"),
        ("pkg.train", "pkg/train/__main__.py"),
        ("pkg.space.train", "pkg/space/train.py"),
        ("space.train", "space/train.py"),
    ],
)
def test_a_module(folder: Path, name: str, file: str) -> None:
    write(folder / "pkg" / "__init__.py", HARMFUL)
    write(folder / file, HARMFUL)
    check(name)
    write(folder / file, WRONG)
    with pytest.raises(OSError, match=r"cannot be run, so nothing is started:\n(?s:.*)SyntaxError"):
        check(name)


def test_the_packages_of_a_module_come_first(folder: Path) -> None:
    write(folder / "pkg" / "__init__.py", WRONG)
    write(folder / "pkg" / "train.py", "pass")
    with pytest.raises(OSError, match="__init__"):
        check("pkg.train")


@pytest.mark.parametrize("name", ["platform", "json.tool", "math", "is_not_there", "json.no.no"])
def test_the_rest_is_the_workers_matter(name: str) -> None:
    """Found elsewhere, without a source, or not at all."""
    check(name)


def test_a_module_that_python_cannot_decode(folder: Path) -> None:
    (folder / "train.py").write_bytes(b"text = '\xff'\n")
    with pytest.raises(OSError, match="cannot be run"):
        check("train")


@pytest.mark.parametrize("text", [HARMFUL, WRONG], ids=["fine", "wrong"])
@pytest.mark.parametrize("kind", ["file", "folder", "archive"])
def test_a_script(folder: Path, kind: str, text: str) -> None:
    if kind == "file":
        write(folder / "train.py", text)
    elif kind == "folder":
        write(folder / "train.py" / "__main__.py", text)
    else:
        with zipfile.ZipFile(folder / "train.py", "w") as archive:
            archive.writestr("__main__.py", text)
    if text == HARMFUL:
        check("train.py", is_module=False)
        return
    with pytest.raises(OSError, match=r"train.py cannot be run(?s:.*)SyntaxError"):
        check("train.py", is_module=False)


def test_a_folder_with_nothing_to_run(folder: Path) -> None:
    (folder / "train.py").mkdir()
    with pytest.raises(FileNotFoundError, match=r"there is no __main__\.py in train\.py"):
        check("train.py", is_module=False)
