"""Runs trials, each in a process of its own, those that are compared right after each other."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import costs, surroundings
from benchmarks.needs import needs
from benchmarks.planning import Case
from benchmarks.records import FAILED, Measurement, Trial
from benchmarks.trials.frame import PREFIX

ROOT = Path(__file__).resolve().parent.parent
# Longer than the slowest trial of the slowest peer takes on a busy machine.
DEADLOCK_SECONDS = 600
# A run that has to end in time gives what it has begun so much longer.
LATE_SECONDS = 15.0
# What a trial has to end its servers, when it is told to.
CLEANING_SECONDS = 10.0
# Where Debian keeps servers, away from the PATH of plain users.
SERVERS = ("/usr/sbin", "/sbin")
# Figures of one program that were measured in turns have numbers of their own.
TURNS = 1000


class TrialError(Exception):
    """A trial did not come to its end, so it has no figures."""


class OutOfTimeError(TrialError):
    """The time of the whole run was over."""


@dataclass
class Runner:
    """Runs cases until all have their rounds, or the time is over.

    Attributes:
        source: The folder that has the library.
        tell: Gets a line about each run.
        rounds: How often a case is run at most.
        slow_every: Slow trials run in each round that this divides.
        deadline: When nothing is begun any more, on the monotonic clock.
        before: The folder of an older state of the library, if there is one.
        quick: Trials that take long do less, for all contenders alike.
        began: The name of this run.
    """

    source: Path
    tell: Callable[[str], None]
    rounds: int
    slow_every: int
    deadline: float = float("inf")
    before: Path | None = None
    quick: bool = False
    began: str = field(default_factory=surroundings.now)
    _dice: random.Random = field(default_factory=lambda: random.Random(1))

    def run(self, cases: Sequence[Case]) -> Iterator[Measurement]:
        """Every case once, then again those on which the least time was spent so far.

        The order is that of dice; of a run that has to end in time, that of the cases.
        """
        left = list(cases)
        if self.deadline == float("inf"):
            self._dice.shuffle(left)
        while left and time.monotonic() < self.deadline:
            case = min(left, key=lambda one: (one.rounds_done > 0, one.spent))
            yield from self._round(case)
            case.rounds_done += 1
            # Another round of it would not come to its end in time.
            over = time.monotonic() + case.next_seconds > self.deadline
            if case.rounds_done >= self.rounds or over:
                left.remove(case)
        for case in left:
            if not case.rounds_done:
                self._tell_late(case.trials)

    def _round(self, case: Case) -> Iterator[Measurement]:
        number = case.rounds_done
        due = case.due(number, self.slow_every)
        self._dice.shuffle(due)
        if self.deadline < float("inf"):
            due.sort(key=costs.seconds_of)  # the slow peers last, which may not be reached
        for trial in due:
            began = time.monotonic()
            if began >= self.deadline:
                if not number:
                    self._tell_late([trial])
                continue
            self.tell(f"round {number + 1}: {name_of(trial)}")
            yield from self._measure(trial, number)
            case.note(trial, time.monotonic() - began)

    def _tell_late(self, trials: Sequence[Trial]) -> None:
        self.tell(f"!!! no time left for {', '.join(map(name_of, trials))}")

    def _measure(self, trial: Trial, number: int) -> Iterator[Measurement]:
        date, load = surroundings.now(), surroundings.load()
        try:
            figures = self.run_trial(trial)
        except OutOfTimeError:
            self._tell_late([trial])
            return
        except TrialError as error:
            self.tell(f"!!! {name_of(trial)} failed: {error}")
            figures = {FAILED: 1.0}
        machine, versions = surroundings.machine(), surroundings.versions(needs(trial))
        for metric, value in figures.items():
            several = isinstance(value, list)
            for turn, one in enumerate(value if isinstance(value, list) else [value]):
                place = TURNS * number + turn if several else number
                where = (date, load, machine, versions, self.began)
                yield Measurement(trial, place, metric, one, *where)

    def run_trial(self, trial: Trial) -> dict[str, float | list[float]]:
        """One run of one trial in a fresh process.

        Raises:
            TrialError: It failed, or did not end in time.
        """
        script = ROOT / "benchmarks" / "trials" / f"{trial.script}.py"
        source = self.source
        if trial.contender == "before":
            assert self.before is not None, "it needs the option"
            source = self.before
        with subprocess.Popen(
            [sys.executable, str(script), json.dumps({**asdict(trial), "quick": self.quick})],
            env=surroundings_of_a_trial(source),
            cwd=self.source.parent,  # torchrunx keeps logs in the current folder
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A group of its own, so that what a peer leaves behind can be ended with it.
            start_new_session=True,
        ) as program:
            left = self.deadline + LATE_SECONDS - time.monotonic()
            try:
                output, errors = program.communicate(timeout=min(DEADLOCK_SECONDS, left))
            except BaseException as error:  # Ctrl-C, too: the group does not get it
                end_group(program)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                if left < DEADLOCK_SECONDS:
                    raise OutOfTimeError("the run's time was over") from None
                raise TrialError(f"no end after {DEADLOCK_SECONDS} s") from None
        for line in output.splitlines():
            if line.startswith(PREFIX):
                figures: dict[str, float | list[float]] = json.loads(line.removeprefix(PREFIX))
                return figures
        last = (errors.strip().splitlines() or ["no output"])[-1]
        raise TrialError(f"exit code {program.returncode}, {last}")


def end_group(program: subprocess.Popen[str]) -> None:
    """End a trial that leads a group: first it may end its servers, then nobody is asked."""
    program.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(CLEANING_SECONDS)
    with contextlib.suppress(ProcessLookupError):  # nobody is left
        os.killpg(program.pid, signal.SIGKILL)


def surroundings_of_a_trial(source: Path) -> dict[str, str]:
    """The environment of every contender alike.

    Compiled modules are kept: a library that is compiled anew in every worker, because
    somebody set PYTHONDONTWRITEBYTECODE, is not what anybody uses.
    """
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # What pip has installed beside this interpreter comes before what the machine has.
    folders = (Path(sys.executable).parent, environ.get("PATH", os.defpath), *SERVERS)
    environ["PATH"] = os.pathsep.join(map(str, folders))
    return environ


def name_of(trial: Trial) -> str:
    """A trial in a few words."""
    what = f" {trial.size / (1 << 20):g} MiB" if trial.size else ""
    return f"{trial.script}: {trial.contender}, n={trial.nprocs}{what} {trial.kind}".rstrip()
