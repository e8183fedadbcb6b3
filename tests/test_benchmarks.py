"""What is wanted, measured and shown fits together; nothing is measured here."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest
from benchmarks import page
from benchmarks.goals import GOALS, machines, talking, waiting
from benchmarks.judging import figures_of, judge
from benchmarks.measurements_file import merged, read_measurements, write_measurements
from benchmarks.needs import missing, needs
from benchmarks.planning import Case, cases_of, cheapest_first, trials_of
from benchmarks.records import FAILED, Figure, Goal, Measurement, Table, Trial
from benchmarks.running import OutOfTimeError, Runner, TrialError, end_group
from benchmarks.sources import earlier_source
from benchmarks.trials import meeting
from benchmarks.trials.remote_python import python_with_path

from tests.jobs import DEADLOCK

ROOT = Path(__file__).parent.parent
MAKE = "run python -m benchmarks --pages"
OURS = Trial("start", "rankspawn fork", 8)
PEER = Trial("start", "multiprocessing fork", 8)
SLOW = Trial("start", "torch spawn", 8, slow=True)
GOAL = Goal("start", "ours over theirs", "slower", Figure(OURS), Figure(PEER), at_most=1.2)


class TestPages:
    def test_pages_show_what_is_kept(self) -> None:
        made = page.parts(read_measurements())

        stale = [
            p.name for p in page.pages() if page.replaced(p.read_text(), made) != p.read_text()
        ]

        assert stale == [], MAKE

    def test_pictures_show_what_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(ROOT / "docs"))
        made = importlib.import_module("measured_pictures").make_all()

        folder = ROOT / "docs" / "pictures"
        assert made == {name: (folder / name).read_text() for name in made}, MAKE
        for text in made.values():
            ElementTree.fromstring(text)
            assert "prefers-color-scheme: dark" in text

    def test_a_part_that_nothing_is_made_for_is_an_error(self) -> None:
        text = "<!-- made: gone -->\nold\n<!-- end -->"
        with pytest.raises(ValueError, match="gone"):
            page.replaced(text, {})
        assert page.replaced(text, {"gone": "new"}) == text.replace("old", "new")


class TestGoals:
    def test_each_is_one_row_with_a_program_of_its_own(self) -> None:
        assert len({(goal.section, goal.what) for goal in GOALS}) == len(GOALS)
        scripts = {trial.script for trial in trials_of(GOALS)}
        folder = ROOT / "benchmarks" / "trials"
        assert {name for name in scripts if not (folder / f"{name}.py").exists()} == set()

    def test_a_quick_run_has_these_sections_whole_and_names_the_rest(self) -> None:
        wanted = [goal for goal in GOALS if goal.has_goal]
        whole = {waiting.SECTION, talking.SECTION, machines.SECTION}
        assert all(goal.quick for goal in wanted if goal.section in whole)
        later = page.left_out(GOALS).splitlines()
        assert later == [f"- {goal.what}" for goal in wanted if not goal.quick]

    def test_what_is_missed_says_so(self) -> None:
        table = Table([measured(OURS, 2.0), measured(PEER, 1.0)])
        assert judge(GOAL, table).verdict == "MISSED"
        assert judge(replace(GOAL, at_most=2.5), table).verdict == "met"
        assert judge(replace(GOAL, at_most=None), table).verdict == ""
        assert judge(GOAL, Table([measured(OURS, 2.0)])).verdict == "not measured"

    def test_peers_have_one_version_each(self) -> None:
        groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
        pinned = [package for group in groups.values() for package in group]
        assert all(re.fullmatch(r"[\w-]+==[\d.]+", package) for package in pinned)
        others = (ROOT / "noxfile.py", ROOT / "benchmarks" / "install_peers.py")
        for package in pinned:
            assert all(f"{package.partition('==')[0]}==" not in path.read_text() for path in others)


class TestTrials:
    def test_a_host_behind_ssh_has_the_library_that_is_measured(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = tmp_path / "a folder"
        source.mkdir()
        (source / "measured_here.py").write_text("print('found')")
        monkeypatch.setenv("PYTHONPATH", str(source))
        program = python_with_path(tmp_path)

        done = subprocess.run(
            [str(program), "-m", "measured_here"],
            env={"PATH": os.defpath},
            check=True,
            capture_output=True,
            text=True,
            timeout=DEADLOCK,
        )

        assert done.stdout == "found\n"

    def test_processes_that_meet_are_known_and_one_is_the_first(self, tmp_path: Path) -> None:
        code = (
            "from benchmarks.trials import meeting; import sys; print(meeting.arrive(sys.argv[1]))"
        )
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        running = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(tmp_path)],
                env=environ,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(3)
        ]
        told = [one.communicate(timeout=DEADLOCK)[0].strip() for one in running]

        assert sorted(told) == ["False", "False", "True"]
        assert sorted(meeting.arrived(str(tmp_path))) == sorted(one.pid for one in running)


class TestKeeping:
    def test_new_figures_take_the_place_of_old_ones(self, tmp_path: Path) -> None:
        old = [measured(OURS, 1.0), measured(OURS, 1.5, 1), measured(PEER, 3.0)]
        new = [of_run("2", measured(OURS, 2.0)), of_run("2", measured(PEER, 1.0))]
        path = tmp_path / "kept.csv"

        write_measurements(path, merged(old, new, [GOAL]))

        assert read_measurements(path) == sorted(new, key=lambda one: one.trial.contender)

    def test_figures_of_different_runs_are_not_held_against_each_other(self) -> None:
        beside_slow = replace(GOAL, other=Figure(SLOW))
        old = [measured(OURS, 4.0), measured(PEER, 2.0), measured(SLOW, 8.0)]
        failed = replace(measured(PEER, 1.0), metric=FAILED)
        new = [of_run("2", measured(OURS, 100.0)), of_run("2", failed)]

        kept = merged(old, [*new, of_run("2", measured(SLOW, 50.0))], [GOAL, beside_slow])

        both = [judge(goal, Table(kept)) for goal in (GOAL, beside_slow)]
        assert [line.figure and line.figure.median for line in both] == [2.0, 2.0]
        assert {row.run for row in both[1].rows} == {"2"}
        assert [one.trial for one in kept if not one.run] == [OURS, PEER]
        assert judge(GOAL, Table([old[1], new[0]])).verdict == "not measured"

    def test_a_series_is_of_one_run(self) -> None:
        goal = Goal("start", "growth", "exponent", Figure(OURS), nprocs=(2, 4))
        few, many = (measured(replace(OURS, nprocs=n), float(n)) for n in (2, 4))
        newer = of_run("2", replace(many, value=100.0))

        figure = judge(goal, Table(merged([few, many], [newer], [goal]))).figure

        assert figure is not None
        assert figure.median == pytest.approx(1.0)


class TestPlanning:
    def test_what_is_compared_runs_together(self) -> None:
        alone = Trial("idle", "rankspawn fork", 4)
        goals = [
            GOAL,
            replace(GOAL, other=Figure(SLOW)),
            replace(GOAL, ours=Figure(alone), other=None),
        ]
        found = [case.trials for case in cases_of(goals, trials_of(goals))]
        assert found == [[OURS, PEER, SLOW], [alone]]

    def test_what_is_short_and_has_a_goal_comes_first(self) -> None:
        alone = Trial("idle", "rankspawn fork", 4)
        ray = Trial("engines", "Ray Train", 2)
        goals = [
            replace(GOAL, ours=Figure(one), other=None, at_most=limit)
            for one, limit in ((alone, None), (ray, 1.0), (OURS, 1.0))
        ]
        found = cheapest_first(cases_of(goals, trials_of(goals)), goals)
        assert [case.trials for case in found] == [[OURS], [ray], [alone]]

    def test_what_is_missing_is_named(self) -> None:
        assert missing([OURS, SLOW], lambda _: False) == {"torch": [SLOW]}
        assert needs(Trial("engines", "Slurm", 2)) >= {"program srun"}

    def test_series_have_every_number_of_workers(self) -> None:
        goal = Goal("start", "growth", "exponent", Figure(OURS), nprocs=(2, 4))
        assert [one.trial.nprocs for one in figures_of(goal)] == [2, 4]
        table = Table([measured(replace(OURS, nprocs=n), float(n)) for n in (2, 4)])
        figure = judge(goal, table).figure
        assert figure is not None
        assert figure.median == pytest.approx(1.0)


class Clock:
    """Stands still."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def raise_out_of_time() -> None:
    raise OutOfTimeError("on purpose")


# Leads a group, has a child that hears no SIGINT, and does something before it ends.
STUBBORN = """
import pathlib, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True);"
try:
    child = subprocess.Popen(
        [sys.executable, "-c", code + "time.sleep(1000)"], stdout=subprocess.PIPE
    )
    child.stdout.readline()
    print(child.pid, flush=True)
    time.sleep(1000)
finally:
    pathlib.Path({ended!r}).touch()
"""


class Pretended(Runner):
    """Trials that take no time, and the last of them fails."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def run_trial(self, trial: Trial) -> dict[str, float | list[float]]:
        """What is told to take long does not."""
        self.meanwhile()
        if trial is PEER:
            raise TrialError("on purpose")
        return {"seconds": [1.0, 2.0] if trial is SLOW else 1.0}


class TestRunning:
    def run(self, told: list[str], deadline: float = float("inf")) -> Iterator[Measurement]:
        cases = [Case([OURS, SLOW]), Case([PEER])]
        runner = Pretended(Path(), told.append, rounds=3, slow_every=3, deadline=deadline)
        return runner.run(cases)

    def test_slow_ones_run_less_often_and_failures_are_counted(self) -> None:
        told: list[str] = []
        found = list(self.run(told))

        counts = [len([one for one in found if one.trial == t]) for t in (OURS, SLOW, PEER)]
        assert counts == [3, 2, 3]
        assert [one.round for one in found if one.trial == SLOW] == [0, 1]
        assert {one.metric for one in found if one.trial == PEER} == {FAILED}
        assert any("failed: on purpose" in line for line in told)

    def test_nothing_begins_when_the_time_is_over(self) -> None:
        told: list[str] = []
        assert list(self.run(told, deadline=0.0)) == []
        assert len([line for line in told if "no time left" in line]) == 2

    def test_nothing_else_of_a_case_begins_when_the_time_is_over(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[str] = []
        clock = Clock()
        monkeypatch.setattr("benchmarks.running.time", clock)
        runner = Pretended(Path(), told.append, rounds=3, slow_every=3, deadline=100.0)
        runner.meanwhile = lambda: setattr(clock, "now", 100.0)

        found = list(runner.run([Case([SLOW, OURS])]))

        # The peer that takes long comes last.
        assert [one.trial for one in found] == [OURS]
        assert told[1:] == ["!!! no time left for start: torch spawn, n=8"]

    def test_a_trial_that_is_cut_off_did_not_fail(self) -> None:
        told: list[str] = []
        runner = Pretended(Path(), told.append, rounds=1, slow_every=1)
        runner.meanwhile = raise_out_of_time
        assert list(runner.run([Case([OURS])])) == []
        assert told[1:] == ["!!! no time left for start: rankspawn fork, n=8"]

    def test_a_trial_may_end_its_servers_and_leaves_nobody(self, tmp_path: Path) -> None:
        folder = tmp_path / "ended"
        code = STUBBORN.format(ended=str(folder))
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as program:
            assert program.stdout is not None
            other = psutil.Process(int(program.stdout.readline()))

            end_group(program)

            assert folder.exists()
            psutil.wait_procs([other], timeout=DEADLOCK)
            assert not other.is_running() or other.status() == psutil.STATUS_ZOMBIE


class TestEarlierState:
    def test_it_is_that_of_a_commit(self, tmp_path: Path) -> None:
        if shutil.which("git") is None:
            pytest.skip("needs git (Debian: git)")
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "one.py").write_text("old = 1\n")
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        for words in (["init", "-q"], ["add", "src"], [*identity, "commit", "-qm", "old"]):
            subprocess.run(["git", "-C", str(tmp_path), *words], check=True, timeout=DEADLOCK)
        (tmp_path / "src" / "one.py").write_text("new = 1\n")

        with earlier_source(tmp_path, "HEAD") as found:
            assert found is not None
            assert (found / "one.py").read_text() == "old = 1\n"
        assert not found.exists()
        with earlier_source(tmp_path, "0123456") as found:
            assert found is None

    def test_without_a_repository_there_is_none(self, tmp_path: Path) -> None:
        with earlier_source(tmp_path) as found:
            assert found is None


def of_run(run: str, one: Measurement) -> Measurement:
    return replace(one, run=run)


def measured(trial: Trial, value: float, number: int = 0) -> Measurement:
    date = "2026-11-18 00:00:00"
    return Measurement(trial, number, "seconds", value, date, 1.0, "2 CPUs", "")
