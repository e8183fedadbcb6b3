"""Runs trials: each in a process of its own, all of them in every round, in mixed order."""

from __future__ import annotations

import compileall
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.records import Measurement, Trial
from benchmarks.trials.frame import PREFIX

ROOT = Path(__file__).resolve().parent.parent
# Longer than the slowest trial of the slowest peer takes on a busy machine.
DEADLOCK_SECONDS = 600
MODULES = {
    "torch": "torch",
    "Paddle": "paddle",
    "loky": "loky",
    "torchrunx": "torchrunx",
}
LIBRARIES = {"NumPy": "numpy", "torch": "torch", "pandas": "pandas", "Arrow": "pyarrow"}


# The metric of a run that did not come to its end.
FAILED = "failed"


class TrialError(Exception):
    """A trial did not come to its end, so it has no figures."""


def possible(trials: Sequence[Trial], has: Callable[[str], bool]) -> list[Trial]:
    """Those whose peer and whose type of object are installed.

    Args:
        trials: All that one would like to run.
        has: Tells whether a module can be imported.
    """

    def needs(trial: Trial) -> set[str]:
        peer = MODULES.get(trial.contender.partition(" ")[0])
        # The objects of every type are made from a NumPy array.
        library = {LIBRARIES.get(trial.kind, "numpy"), "numpy"} if trial.kind else set()
        uses_torch = {"torch"} if trial.script == "torch_ranks" else set()
        return {peer} - {None} | library | uses_torch  # type: ignore[return-value]

    return [trial for trial in trials if all(map(has, needs(trial)))]


@contextmanager
def frozen_source(source: Path) -> Iterator[Path]:
    """A compiled copy of the library: what somebody edits during a run does not count."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "src")
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(copy, quiet=1)
        yield copy


def run_rounds(
    trials: Sequence[Trial], rounds: int, source: Path, tell: Callable[[str], None]
) -> Iterator[Measurement]:
    """Measure everything ``rounds`` times.

    A trial that fails has no figures in that round, but a count of its failure.

    Args:
        trials: What to run.
        rounds: How often.
        source: The folder that has the library.
        tell: Gets a line about each run.
    """
    for number in range(rounds):
        due = mixed([trial for trial in trials if number % trial.every == 0], number)
        for at, trial in enumerate(due):
            tell(f"round {number + 1} of {rounds}, {at + 1} of {len(due)}: {name_of(trial)}")
            try:
                figures = run_trial(trial, source)
            except TrialError as error:
                tell(f"!!! {name_of(trial)} failed: {error}")
                figures = {FAILED: 1.0}
            for metric, value in figures.items():
                yield Measurement(trial, number, metric, value)


def mixed(trials: Sequence[Trial], seed: int) -> list[Trial]:
    """Another order for each seed, with those that differ in the contender alone together.

    They are what gets compared, so they should see the same load; and nobody should always
    come after the same neighbour.
    """
    alike: dict[Trial, list[Trial]] = {}
    for trial in trials:
        alike.setdefault(replace(trial, contender=""), []).append(trial)
    groups = list(alike.values())
    dice = random.Random(seed)
    dice.shuffle(groups)
    for group in groups:
        dice.shuffle(group)
    return [trial for group in groups for trial in group]


def run_trial(trial: Trial, source: Path) -> dict[str, float]:
    """One run of one trial in a fresh process.

    Raises:
        TrialError: It failed, or did not end in time.
    """
    script = ROOT / "benchmarks" / "trials" / f"{trial.script}.py"
    with subprocess.Popen(
        [sys.executable, str(script), json.dumps(asdict(trial))],
        env=surroundings_of_a_trial(source),
        cwd=source.parent,  # torchrunx keeps logs in the current folder
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A group of its own, so that what a peer leaves behind can be ended with it.
        start_new_session=True,
    ) as program:
        try:
            output, errors = program.communicate(timeout=DEADLOCK_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            raise TrialError(f"no end after {DEADLOCK_SECONDS} s") from None
    for line in output.splitlines():
        if line.startswith(PREFIX):
            figures: dict[str, float] = json.loads(line.removeprefix(PREFIX))
            return figures
    last = (errors.strip().splitlines() or ["no output"])[-1]
    raise TrialError(f"exit code {program.returncode}, {last}")


def surroundings_of_a_trial(source: Path) -> dict[str, str]:
    """The environment of every contender alike.

    Compiled modules are kept: a library that is compiled anew in every worker, because
    somebody set PYTHONDONTWRITEBYTECODE, is not what anybody uses.
    """
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return environ


def name_of(trial: Trial) -> str:
    """A trial in a few words."""
    what = f" {trial.size >> 20} MiB {trial.kind}" if trial.size else ""
    return f"{trial.script}: {trial.contender}, n={trial.nprocs}{what}"
