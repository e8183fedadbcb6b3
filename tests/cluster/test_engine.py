"""Finding an engine by what the caller gave."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata

import pytest

from rankspawn.cluster import AgentRequest, Channel, Node
from rankspawn.cluster.engine import find_engine


class Theirs:
    """Somebody else's engine."""

    name = "Theirs"
    start_timeout = 60.0
    lease = None
    shares_files = False

    def nodes(self) -> Sequence[Node]:
        return [Node("a"), Node("b", slots=2)]

    def start(self, request: AgentRequest) -> Sequence[Channel]:
        raise NotImplementedError


def test_an_engine_is_itself() -> None:
    engine = Theirs()

    assert find_engine(engine) is engine


def test_a_name_is_looked_up_among_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    point = metadata.EntryPoint("theirs", f"{__name__}:Theirs", "rankspawn.engines")
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [point])

    assert find_engine("theirs").name == "Theirs"


def test_an_unknown_name_is_an_error_that_has_those_there_are() -> None:
    with pytest.raises(
        ValueError, match=r"cluster='slrum' is no engine: there are .*rankspawn\.eng"
    ):
        find_engine("slrum")


def test_one_that_has_no_defaults_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match=r"Ssh has to know its hosts: cluster=Ssh\('gpu1,gpu2'\)"):
        find_engine("ssh")


@pytest.mark.parametrize(
    ("given", "words"), [(Theirs, r"not Theirs: call it: cluster=Theirs\(\)"), (4, "not int: see")]
)
def test_what_is_no_engine_is_an_error(given: object, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        find_engine(given)


def test_the_command_of_an_agent_names_this_interpreter_or_theirs() -> None:
    request = AgentRequest("job", (2, None), grace=5.0)

    assert request.command() == [sys.executable, "-m", "rankspawn.cluster.agent"]
    assert request.command("python3.12")[0] == "python3.12"
