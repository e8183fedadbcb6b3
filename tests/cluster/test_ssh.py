"""Agents over ssh: the command line, what went wrong in words, and a real server."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from rankspawn.cluster.engine import AgentRequest
from rankspawn.cluster.programs import ProgramChannel
from rankspawn.cluster.ssh import Ssh, address_of, explain
from tests.cluster.sshd import HOSTS, Sshd, running_sshd, why_no_sshd
from tests.jobs import DEADLOCK

REQUEST = AgentRequest("job", (1, 1), DEADLOCK)
with_sshd = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_sshd()), reason=why_no_sshd()),
]


def test_the_command_line_is_ssh_s_and_holds_no_secret() -> None:
    engine = Ssh(
        "gpu1",
        user="train",
        port=2222,
        identity=Path("/keys/a"),
        python="/opt/my env/bin/python",
        options={"ProxyJump": "gate"},
    )
    command = engine.command("gpu1", REQUEST.command("/opt/my env/bin/python"))
    assert command[:3] == ["ssh", "-o", "ProxyJump=gate"]
    assert "BatchMode=yes" in command
    assert command[-9:-3] == ["-p", "2222", "-l", "train", "-i", "/keys/a"]
    end = "exec '/opt/my env/bin/python' -m rankspawn.cluster.agent"
    assert command[-3:] == ["--", "gpu1", end]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["ProxyJump=gate"], ["-o", "ProxyJump=gate"]),
        (["-F", "config"], ["-F", "config"]),
        ({"Port": 1}, ["-o", "Port=1"]),
    ],
)
def test_options_are_names_with_values_or_words(options: Any, words: list[str]) -> None:
    assert Ssh("a", options=options).command("a", ["true"])[1:3] == words


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"port": 0}, "port=0 is no port"),
        ({"user": "-l"}, "no user's name"),
        ({"user": ""}, "no user's name"),
        ({"options": "ProxyJump=gate"}, "are no options"),
        ({"options": [1]}, "are no options"),
    ],
)
def test_what_makes_no_sense_is_refused(keywords: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Ssh("a", **keywords)


def test_without_the_program_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="install OpenSSH's client"):
        Ssh("a").nodes()


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (255, "Host key verification failed.", "does not know the key of a, or it has changed"),
        (255, "me@a: Permission denied (publickey).", "put a key into authorized_keys there"),
        (255, "ssh: connect to host a port 22: Connection refused", "there is no connection to a"),
        (127, "sh: 1: exec: /x/python: not found", "a has no /x/python: say where Python is"),
        (1, "(ModuleNotFoundError: No module named 'rankspawn')", "on a has no rankspawn"),
        (1, "/x/python: No module named rankspawn.cluster", "on a has no rankspawn, or one"),
        (3, "", "ssh ended with code 3"),
    ],
)
def test_what_went_wrong_comes_with_what_to_do(code: int, said: str, words: str) -> None:
    told = explain("a", "/x/python", code, said)
    assert words in told
    assert told.endswith(said)


def test_other_last_words_are_left_as_they_are() -> None:
    assert explain("a", "/x/python", 1, "MemoryError") == "MemoryError"
    assert explain("a", "/x/python", None, "") == ""


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.2", "127.0.0.2"), ("me@10.0.0.1", "10.0.0.1"), ("::1", "::1"), ("localhost", None)],
)
def test_an_address_is_one_that_others_can_use(host: str, address: str | None) -> None:
    assert address_of(host) == address


def _with_program(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def _started(engine: Ssh, stack: ExitStack) -> list[ProgramChannel]:
    return [stack.enter_context(closing(channel)) for channel in engine.start(REQUEST)]


def test_each_host_has_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = 'while [ "$1" != -- ]; do shift; done; echo "$2"; exec cat'
    _with_program(tmp_path, monkeypatch, "ssh", said)
    engine = Ssh("127.0.0.2,alias.invalid:2")
    assert [(node.host, node.slots) for node in engine.nodes()] == [
        ("127.0.0.2", None),
        ("alias.invalid", 2),
    ]
    with ExitStack() as stack:
        channels = _started(engine, stack)
        for channel in channels:
            assert os.read(channel.read_fileno(), 100).decode() == f"{channel.host}\n"
        assert [channel.address for channel in channels] == ["127.0.0.2", None]


def test_one_that_cannot_be_started_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such/folder")
    with pytest.raises(FileNotFoundError):
        Ssh("a,b").start(REQUEST)


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    with running_sshd() as server:
        yield server


def engine_for(sshd: Sshd, hosts: Any = HOSTS, **changed: Any) -> Ssh:
    asked: dict[str, Any] = {"port": sshd.port, "identity": sshd.identity, "options": sshd.options}
    return Ssh(hosts, **(asked | changed))


def _why(engine: Ssh) -> str:
    with ExitStack() as stack:
        for channel in _started(engine, stack):
            while os.read(channel.read_fileno(), 4096):
                pass
            return channel.why_lost()
    raise AssertionError


@pytest.mark.usefixtures("sshd")
class TestRealServer:
    pytestmark = with_sshd

    def test_an_unknown_key_of_a_host(self, sshd: Sshd) -> None:
        why = _why(engine_for(sshd, HOSTS[0], options={"UserKnownHostsFile": "/dev/null"}))
        assert why.startswith(f"this machine does not know the key of {HOSTS[0]}")

    def test_no_key_of_ours(self, sshd: Sshd) -> None:
        options = {**sshd.options, "IdentitiesOnly": "yes", "IdentityFile": "none"}
        why = _why(engine_for(sshd, HOSTS[0], identity=None, options=options))
        assert why.startswith(f"{HOSTS[0]} lets nobody in without a password")

    def test_no_server(self, sshd: Sshd) -> None:
        why = _why(engine_for(sshd, "127.0.0.3"))
        assert "Connection refused" in why

    def test_no_python_there(self, sshd: Sshd) -> None:
        assert f"{HOSTS[0]} has no /no/python" in _why(engine_for(sshd, python="/no/python"))

    def test_no_rankspawn_there(self, sshd: Sshd, tmp_path: Path) -> None:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
        python.chmod(stat.S_IRWXU)
        assert f"{python} on {HOSTS[0]} has no rankspawn" in _why(engine_for(sshd, python=python))
