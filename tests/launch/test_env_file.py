"""Files of variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankspawn.launch.env_file import parse, with_env_file
from rankspawn.launch.flags import UsageError
from tests.launch.factories import config_of

TEXT = """
# a comment
export A="two words"
B=1=2
C = 'x'
D=
E="
"""


def test_lines_as_shells_have_them() -> None:
    assert dict(parse(TEXT, "vars")) == {"A": "two words", "B": "1=2", "C": "x", "D": "", "E": '"'}


def test_what_is_no_variable_is_told_without_its_text() -> None:
    with pytest.raises(UsageError, match="--env_file vars, line 2: no NAME=VALUE") as caught:
        parse("A=1\nthe secret of 5", "vars")
    assert "secret" not in str(caught.value)


def test_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "vars").write_text("A=1\nB=1\n")
    config = with_env_file(config_of(f"--env B=2 --env_file {tmp_path}/vars --env C=3"))

    assert dict(config.env) == {"A": "1", "B": "2", "C": "3"}
    assert "('C', '3')" not in repr(config)  # it may be a secret


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere cannot be read: No such file"):
        with_env_file(config_of(f"--env_file {tmp_path}/nowhere"))
