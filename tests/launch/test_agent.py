"""The agent between a scripted session and programs that are not there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

import pytest

from rankspawn import handlers
from rankspawn.interrupts import ENDING, Signals
from rankspawn.launch.agent import Agent
from rankspawn.launch.config import LaunchConfig
from rankspawn.launch.pod import Ending
from rankspawn.launch.programs import TRAINER, Node, ProgramSpec
from rankspawn.launch.session import (
    Cause,
    Instruction,
    JobOver,
    JobResult,
    StartWorkers,
    StopWorkers,
)
from rankspawn.supervise.outcome import End, Outcome

if TYPE_CHECKING:
    from rankspawn.launch.node import ThisNode
    from rankspawn.launch.session import Session

START = StartWorkers(1, (Node(0, "10.0.0.1", ()), Node(1, "10.0.0.2", ())), 1, 0, "run")
SPEC = ProgramSpec(TRAINER, 3, ("x",), {}, "workerlog.3", False)
FAILURE = Ending("rank 3", SPEC, Outcome(3, 42, End.DIED, 7, 0, True), 1.0, "/nowhere", 0)
CONFIG = LaunchConfig(script="train.py")
LEFT = JobResult((Cause("left", "node 1 was ended", 130),))


class FakePod:
    """Programs about which there is always something to collect."""

    has_trainers = True

    def __init__(
        self,
        log: list[str],
        happens: Callable[[FakePod], None],
        *,
        while_stopping: Callable[[], None] = lambda: None,
    ) -> None:
        self.failures: list[Ending] = []
        self.endings: list[Ending] = []
        self.is_done = self.is_empty = False
        self.lost: Outcome | None = None
        self.running: dict[int, int] = {}
        self._log = log
        self._happens = happens
        self._event = os.eventfd(1)
        self._while_stopping = while_stopping

    def fileno(self) -> int:
        return self._event

    def collect(self) -> None:
        self._happens(self)

    def close(self) -> None:
        os.close(self._event)

    def note_stacks(self, _: Mapping[int, str]) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., None]:
        assert name in ("stop_helpers", "kill"), name
        return lambda **_: self._log.append(name)

    def stop(self, **_: object) -> None:
        self._while_stopping()
        self._log.append("stop")


class Here:
    """A node that starts such a pod."""

    host = "10.0.0.2"

    def __init__(self, pod: FakePod, config: LaunchConfig = CONFIG) -> None:
        self._pod, self.config = pod, config

    def start(self, _: StartWorkers) -> FakePod:
        return self._pod

    def fresh_ports(self) -> None:
        return None


class Script:
    """A session that has decided everything beforehand."""

    def __init__(self, log: list[str], *batches: list[Instruction]) -> None:
        self._log = log
        self._batches = iter(batches)

    def fileno(self) -> None:
        return None

    def take(self) -> list[Instruction]:
        return next(self._batches)

    def may_start(self, _: StartWorkers) -> bool:
        return True

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: self._log.append(name)


@pytest.fixture
def signals() -> Iterator[Signals]:
    before = {number: signal.getsignal(number) for number in ENDING}
    with Signals() as signals:
        yield signals
    for number, action in before.items():
        signal.signal(number, action)


def run(
    signals: Signals,
    happens: Callable[[FakePod], None],
    *batches: list[Instruction],
    while_stopping: Callable[[], None] = lambda: None,
    config: LaunchConfig = CONFIG,
) -> tuple[JobResult, list[str]]:
    """The result, and what the session and the pod were told meanwhile."""
    log: list[str] = []
    here = cast("ThisNode", Here(FakePod(log, happens, while_stopping=while_stopping), config))
    session = cast("Session", Script(log, [START], *batches))
    return Agent(here, signals).run(lambda: session), log


def fail(pod: FakePod) -> None:
    pod.failures = [FAILURE]


def test_a_failure_after_an_order_to_stop_is_no_cause(signals: Signals) -> None:
    over = JobOver(JobResult((Cause("failed", "rank 0 failed", 9),)))
    stop = StopWorkers(1, "a worker of another node failed")
    result, log = run(signals, fail, [], [stop], [over])
    assert log == ["stop", "stopped", "close"]
    assert result.exit_code == 9


def test_a_failure_is_told_once(signals: Signals) -> None:
    over = JobOver(JobResult((Cause("failed", "rank 3 failed", 7),)))
    result, log = run(signals, fail, [], [], [], [StopWorkers(1)], [over])
    assert log == ["failed", "stop", "stopped", "close"]
    assert result.exit_code == 7


def test_what_ends_together_with_a_signal_has_not_failed(signals: Signals) -> None:
    def be_interrupted(pod: FakePod) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        fail(pod)

    result, log = run(signals, be_interrupted, [], [], [JobOver(LEFT)])
    assert log == ["leave", "stop", "stopped", "close"]
    assert (result.exit_code, result.text) == (130, "")


def test_the_first_signal_is_no_repeat(signals: Signals) -> None:
    """The scheduler ends all nodes, and this one stops its workers because another has left."""
    stop = StopWorkers(1, "node 0 was ended by SIGTERM to its launcher")
    result, log = run(
        signals,
        lambda _: None,
        [],
        [stop],
        [],
        [JobOver(LEFT)],
        while_stopping=lambda: signal.raise_signal(signal.SIGTERM),
    )
    assert log == ["stop", "stopped", "leave", "close"]
    assert result.exit_code == 143


def test_who_asks_again_does_not_wait(signals: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_twice() -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(handlers, "_ECHO", 0.0)
    batches: list[list[Instruction]] = [[], [StopWorkers(1)], [], [JobOver(LEFT)]]
    _, log = run(signals, lambda _: None, *batches, while_stopping=ask_twice)
    assert log == ["kill", "stopped", "leave", "close"]


def test_who_served_is_stopped_and_nobody_else(signals: Signals) -> None:
    def finish(pod: FakePod) -> None:
        pod.is_done = True

    stop = StopWorkers(1, succeeded=True)
    result, log = run(signals, finish, [], [], [stop], [JobOver(JobResult())])
    assert log == ["done", "stop_helpers", "stopped", "close"]
    assert result.succeeded


def test_nothing_runs_after_an_error(signals: Signals) -> None:
    log: list[str] = []

    def break_down(_: FakePod) -> None:
        raise MemoryError

    here = cast("ThisNode", Here(FakePod(log, break_down)))
    session = cast("Session", Script(log, [START], []))
    with pytest.raises(MemoryError):
        Agent(here, signals).run(lambda: session)
    assert log == ["stop", "stopped", "close"]


class Waits(Script):
    """A session that has nothing to say until it is told that the node leaves."""

    def take(self) -> list[Instruction]:
        if "leave" in self._log:
            return [JobOver(LEFT)]
        return next(self._batches, [])


def test_the_end_of_its_time(signals: Signals) -> None:
    def run_on(pod: FakePod) -> None:
        pod.endings = [Ending("rank 3", SPEC, None, 1.0, "/nowhere", 0)]

    log: list[str] = []
    config = LaunchConfig(script="train.py", timeout=0.01)
    here = cast("ThisNode", Here(FakePod(log, run_on), config))

    result = Agent(here, signals).run(lambda: cast("Session", Waits(log, [START], [])))

    assert result.exit_code == 124
    assert "--timeout" in result.text
    assert "still running: rank 3" in result.text
    assert log.index("leave") < log.index("stop")


@pytest.mark.parametrize(("level", "told"), [(-1, True), (1, False)])
def test_where_the_others_are_at_a_last_failure(
    level: int, told: bool, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[int, int]] = []

    def describe(pids: dict[int, int], **_: object) -> str:
        asked.append(pids)
        return "meanwhile"

    monkeypatch.setattr("rankspawn.launch.agent.describe_others", describe)
    over = JobOver(JobResult((Cause("failed", "rank 3 failed", 7),)))
    config = LaunchConfig(script="train.py", elastic_level=level)
    run(signals, fail, [], [], [], [StopWorkers(1)], [over], config=config)
    assert asked == [{}] * told
