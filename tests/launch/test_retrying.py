"""What failed in a way that another start would repeat is not started again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rankspawn.launch.retrying import failed_import, why_not_again
from rankspawn.values import replace
from tests.launch.factories import config_of

LEVEL = "--elastic_level 1"


def traceback_of(script: str, line: int, last: str, frame: str = "") -> list[str]:
    return [
        "some line",
        "Traceback (most recent call last):",
        f'  File "{script}", line {line}, in <module>',
        "    import nosuch",
        *([frame] if frame else []),
        last,
    ]


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        ("", 3, ""),
        ("--restart_exit_codes 1,75", 75, ""),
        ("--restart_exit_codes 1,75", 3, "exit code 3 is none of --restart_exit_codes"),
        ("--no_restart_exit_codes 3", 3, "exit code 3 is one of --no_restart_exit_codes"),
        ("--no_restart_exit_codes 3", 137, ""),
        ("--restart_exit_codes 3 --no_restart_exit_codes 3", 3, "is one of --no_restart"),
    ],
)
def test_exit_codes(flags: str, code: int, told: str) -> None:
    assert told in why_not_again(config_of(f"{LEVEL} {flags}"), code, [])
    if not told:
        assert why_not_again(config_of(f"{LEVEL} {flags}"), code, []) == ""


@pytest.mark.parametrize(
    ("text", "line", "is_final"),
    [
        ("import os\nimport nosuch\n", 2, True),
        ('"""Trains."""\nfrom __future__ import annotations\nimport nosuch\n', 3, True),
        ("print(1)\nimport nosuch\n", 2, False),
        ("import os\nos.getpid()\nimport nosuch\n", 3, False),
        ("if True:\n    import nosuch\n", 2, False),
        ("not Python", 1, False),
    ],
)
def test_an_import_at_the_top(
    text: str, line: int, is_final: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(text)
    lines = traceback_of(str(tmp_path / "train.py"), line, "ModuleNotFoundError: No module 'x'")

    assert bool(why_not_again(config_of(LEVEL), 1, lines)) == is_final
    # Who names the code wants it.
    assert not why_not_again(config_of(f"{LEVEL} --restart_exit_codes 1"), 1, lines)


def test_other_ends_are_no_failed_import() -> None:
    assert failed_import(traceback_of("train.py", 4, "ImportError: x"), "train.py") == (
        "train.py",
        4,
    )
    assert failed_import(traceback_of("/a/other.py", 4, "ImportError: x"), "train.py") is None
    assert failed_import(traceback_of("train.py", 4, "ValueError: x"), "train.py") is None
    assert failed_import(["ImportError: x"], "train.py") is None
    assert failed_import([], "train.py") is None


RUNNER = [
    "Traceback (most recent call last):",
    '  File "<frozen runpy>", line 198, in _run_module_as_main',
    '  File "/usr/lib/python3.11/runpy.py", line 88, in _run_code',
]
LAST = "ModuleNotFoundError: No module named 'nosuch'"


@pytest.mark.parametrize(
    ("file", "text", "lines", "reason"),
    [
        ("go.py", "import nosuch", [LAST], "an import failed before anything of pkg.go itself"),
        ("go.py", "print(1); import nosuch", [LAST], ""),
        ("__init__.py", "print(1); import nosuch", [LAST], "an import failed before anything"),
        ("other.py", "import nosuch", [LAST], ""),
        ("go.py", "", [f"{sys.executable}: No module named pkg.go"], "there is no module pkg.go"),
    ],
)
def test_a_module(file: str, text: str, lines: list[str], reason: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.write_text(text)
    config = replace(config_of(LEVEL), script="pkg.go", is_module=True)
    frame = f'  File "{path}", line 1, in <module>'
    why = why_not_again(config, 1, [*RUNNER, frame, "    import nosuch", *lines])
    assert why.startswith(reason)
    assert bool(why) == bool(reason)
