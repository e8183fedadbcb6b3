"""Where the nodes' secret comes from."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rankspawn.launch.rendezvous.tokens import TokenError, find_token, given_token, new_token

SECRET = "sixteen letters!"


@pytest.mark.parametrize("name", ["RANKSPAWN_JOB_TOKEN", "PADDLE_JOB_TOKEN"])
def test_from_a_variable(name: str) -> None:
    token = find_token({name: SECRET})
    assert (token.secret, token.source) == (SECRET, name)


def test_ours_comes_first() -> None:
    environ = {"PADDLE_JOB_TOKEN": "x" * 20, "RANKSPAWN_JOB_TOKEN": SECRET}
    assert find_token(environ).secret == SECRET


def test_one_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(TokenError, match="6 characters"):
        find_token({"RANKSPAWN_JOB_TOKEN": "secret"})


def test_a_file_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    first = find_token(environ)
    assert find_token(environ) == first
    path = Path(first.source)
    assert path == tmp_path / ".local/state/rankspawn/token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["token"]


def test_the_file_can_be_elsewhere(tmp_path: Path) -> None:
    environ = {"HOME": "/nowhere", "XDG_STATE_HOME": str(tmp_path)}
    assert find_token(environ).source == str(tmp_path / "rankspawn/token")


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    path = Path(find_token(environ).source)
    path.chmod(0o640)
    with pytest.raises(TokenError, match="chmod 600"):
        find_token(environ)


def test_without_a_place_for_it_the_variable_is_named() -> None:
    with pytest.raises(TokenError, match="set RANKSPAWN_JOB_TOKEN"):
        find_token({"HOME": "/proc/nowhere"})


def test_that_of_the_environment_alone(tmp_path: Path) -> None:
    assert given_token({"HOME": str(tmp_path)}) is None
    assert os.listdir(tmp_path) == []
    given = given_token({"PADDLE_JOB_TOKEN": SECRET})
    assert given is not None
    assert (given.secret, given.source, given.is_new) == (SECRET, "PADDLE_JOB_TOKEN", False)


def test_a_new_one_is_long_and_never_the_same() -> None:
    first, second = new_token(), new_token()
    assert first != second
    assert len(first.secret) >= 16


def test_it_is_not_shown_by_accident() -> None:
    assert SECRET not in repr(find_token({"RANKSPAWN_JOB_TOKEN": SECRET}))
