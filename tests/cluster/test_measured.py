"""What an agent measures of its ranks, and when."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankspawn.cluster import measured
from rankspawn.cluster.measured import Measures
from rankspawn.parallel.looking import Talks
from rankspawn.parallel.statistics import Talk
from rankspawn.view.measure import Meters
from rankspawn.view.ranks import Usage
from tests.jobs import DEADLOCK
from tests.scripts import python, script


class Clock:
    """Time as the test has it; a look at a rank takes so much of a core."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.used = self.each = 0.0
        self.looks = 0
        clock = SimpleNamespace(monotonic=lambda: self.now, thread_time=lambda: self.used)
        monkeypatch.setattr(measured, "time", clock)
        monkeypatch.setattr(Meters, "look", self.look)

    def look(self, _: int) -> Usage:
        self.looks += 1
        self.used += self.each
        return Usage(-0.5, 4096)

    def seconds_to_look(self, measures: Measures) -> float:
        """Until the rank is looked at again, in steps of a tenth."""
        began, seen = self.now, self.looks
        while self.looks == seen:
            self.now += 0.1
            measures.look([0])
        return self.now - began


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def complaints() -> list[str]:
    return []


def measures_of(world_size: int, complaints: list[str], *, talks: bool = False) -> Measures:
    return Measures([os.getpid()], [None], world_size, complaints.append, talks=talks)


@pytest.mark.parametrize(
    ("world_size", "each", "seconds"),
    [(1, 0.0, 0.2), (1000, 0.0, 1.0), (100_000, 0.0, 5.0), (1, 0.01, 2.5)],
)
def test_looks_are_rarer_if_ranks_are_many_or_looks_take_long(
    clock: Clock, complaints: list[str], world_size: int, each: float, seconds: float
) -> None:
    measures = measures_of(world_size, complaints)
    measures.look([0])  # what the first one compares with
    assert measures.fields_of(0) == {}
    clock.seconds_to_look(measures)
    clock.each = each
    clock.seconds_to_look(measures)
    assert clock.seconds_to_look(measures) == pytest.approx(seconds, abs=0.15)
    # A clock that went back: no rank takes less than nothing.
    assert measures.fields_of(0) == {"measured": {"usage": [0.0, 4096, None]}}
    measures.close()
    assert complaints == []


def test_what_cannot_be_measured_is_said_once(
    monkeypatch: pytest.MonkeyPatch, complaints: list[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(Meters, "__init__", refuse)
    measures = measures_of(1, complaints)
    for running in ([0], [0], []):
        measures.look(running)
    measures.close()
    (complaint,) = complaints
    assert "no such file" in complaint
    assert measures.fields_of(0) == {}


def test_numbers_that_a_rank_has_written_over_are_left_out(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, complaints: list[str]
) -> None:
    talk = Talk({"barrier": 1}, {"barrier": float("nan")}, 0, {})
    monkeypatch.setattr(Talks, "look", lambda _: {0: talk})
    measures = measures_of(1, complaints, talks=True)
    measures.look([0])
    clock.seconds_to_look(measures)
    measures.close()
    assert measures.fields_of(0) == {"measured": {"usage": [0.0, 4096, None]}}
    assert complaints == []


PROGRAM = """
import os, time
import rankspawn
from rankspawn.cluster import Local

def has_psutil():
    with open(f"/proc/{{os.getppid()}}/maps") as maps:
        return "_psutil" in maps.read()

def look(heard):
    rankspawn.report(step=1)
    while not (os.path.exists(heard) if heard else has_psutil()):
        time.sleep(0.02)
    return has_psutil()

def spawn(heard, **options):
    return rankspawn.spawn(look, (heard,), 1, cluster=Local(nodes=1), backend="gloo",
                           timeout={timeout}, **options).results()

if __name__ == "__main__":
    heard = os.path.abspath("heard")
    # Heard of its report, the agent has looked at its rank.
    print(spawn(heard, on_report=lambda *_: open(heard, "w").close()), spawn("", trace="run.json"))
"""


def test_an_agent_loads_what_measures_only_if_somebody_looks(tmp_path: Path) -> None:
    name = script(tmp_path, PROGRAM.format(timeout=DEADLOCK))
    assert python(name, cwd=tmp_path).stdout == "[False] [True]\n"
