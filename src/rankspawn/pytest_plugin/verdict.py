"""From what the ranks of a test said to one outcome with one report. Pure."""

from __future__ import annotations

import bdb
from dataclasses import dataclass, field
from typing import Any

import pytest

from rankspawn.pytest_plugin.conduct import Run, Story

__all__ = ["Verdict", "judge"]

_NO_DEBUGGER = (
    "--pdb was left out: the failure is in a worker process, which has no terminal. Run the "
    "function by itself under rankspawn.spawn(..., debug=RANK), or the test without its ranks"
)


class RankFailedError(AssertionError):
    """A rank failed without an exception that could be raised here."""


class RanksTimeoutError(TimeoutError):
    """The ranks of a test did not end in time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a test with ranks.

    Attributes:
        exception: What the parent raises, for pytest and its marks to judge; None if all passed.
        longrepr: What is shown for it.
        sections: Output of the ranks.
        user_properties: Those of the first rank.
    """

    exception: BaseException | None = None
    longrepr: Any = None
    sections: list[tuple[str, str]] = field(default_factory=list)
    user_properties: list[tuple[str, object]] = field(default_factory=list)


def judge(run: Run) -> Verdict:
    """Passed if all ranks passed, or some of them and the rest was skipped."""
    exception, longrepr = _failure(run) or _no_failure(run)
    if run.uses_pdb and exception is not None:
        exception = _without_debugger(exception)
    first = run.stories[0].reports
    return Verdict(
        exception,
        longrepr,
        _sections(run),
        list(first[-1].user_properties) if first else [],
    )


def _failure(run: Run) -> tuple[BaseException, Any] | None:
    if run.failed:
        story = run.failed[0]
        exception = story.exception or RankFailedError(f"rank {story.rank} failed: {story.broken}")
        longrepr = _show_failure(run, story)
    elif run.timeout is not None:
        text = f"the {len(run.stories)} ranks did not end within {run.timeout:g} s and were stopped"
        exception, longrepr = RanksTimeoutError(text), f"{text}\n{_describe(run, None)}"
    else:
        return None
    if run.uses_pdb:
        longrepr = _with_section(longrepr, "no debugger", _NO_DEBUGGER)
    return exception, longrepr


def _no_failure(run: Run) -> tuple[BaseException | None, Any]:
    for story in run.stories:
        expected = next((one for one in story.reports if hasattr(one, "wasxfail")), None)
        if expected is not None and expected.skipped:
            reason = str(expected.wasxfail).removeprefix("reason: ")
            return pytest.xfail.Exception(reason), expected.longrepr
    skips = [next((one for one in story.reports if one.skipped), None) for story in run.stories]
    if skips[0] is not None and all(skips):
        longrepr = skips[0].longrepr
        reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
        return pytest.skip.Exception(reason.removeprefix("Skipped: ")), longrepr
    return None, None


def _show_failure(run: Run, story: Story) -> Any:
    """The failed rank's own report, with the state of all ranks below it."""
    longrepr: Any = story.broken if story.failure is None else story.failure.longrepr
    if not hasattr(longrepr, "addsection"):
        longrepr = f"rank {story.rank} failed: {longrepr}"
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = f"rank {story.rank}: {crash.message}"  # for the short summary
    title = f"rank {story.rank} failed, as shown above; the {len(run.stories)} ranks of this test"
    longrepr = _with_section(longrepr, title, _describe(run, story))
    for other in run.failed[1:]:
        if other.failure is not None and not _is_like(other.failure, story.failure):
            title = f"rank {other.rank} failed in another way"
            longrepr = _with_section(longrepr, title, str(other.failure.longrepr))
    return longrepr


def _with_section(longrepr: Any, title: str, text: str) -> Any:
    """A report of pytest's, or one that is a text, with something more below it."""
    if not hasattr(longrepr, "addsection"):
        return f"{longrepr}\n{'-' * 10} {title} {'-' * 10}\n{text}"
    longrepr.addsection(title, text)
    return longrepr


def _is_like(one: pytest.TestReport, other: pytest.TestReport | None) -> bool:
    """Both failed at the same place, or for the same reason where no place is known."""
    if other is None or _place_of(one) != _place_of(other):
        return False
    return _place_of(one) is not None or str(one.longrepr) == str(other.longrepr)


def _place_of(report: pytest.TestReport) -> tuple[str, int] | None:
    crash = getattr(report.longrepr, "reprcrash", None)
    return None if crash is None else (str(crash.path), int(crash.lineno))


def _describe(run: Run, shown: Story | None) -> str:
    """One line for each rank, and its stack if it was running."""
    lines: list[str] = []
    for story in run.stories:
        lines.append(f"rank {story.rank}: {_state(story, shown)}")
        if story.stacks is not None and not story.has_failed:
            lines += [f"    {line}" for line in _own_frames(story.stacks)]
    return "\n".join(lines)


def _state(story: Story, shown: Story | None) -> str:
    if story is shown:
        when = "" if story.failure is None or story.failure.when == "call" else story.failure.when
        return f"failed in {when}" if when else "failed"
    if story.failure is not None:
        crash = getattr(story.failure.longrepr, "reprcrash", None)
        lines = str(crash.message if crash is not None else story.failure.longrepr).splitlines()
        return f"failed too: {lines[0] if lines else ''}"
    if story.broken is not None:
        return f"failed too: {story.broken.rstrip().splitlines()[-1] if story.broken else ''}"
    if story.stacks is not None:
        return f"was running {_phase(story)}, and was stopped here (innermost call first):"
    if any(report.skipped for report in story.reports):
        return "skipped"
    return "passed"


def _phase(story: Story) -> str:
    """Where a rank is after the phases that it reported."""
    done = {report.when for report in story.reports}
    if "teardown" in done:
        return "after the test, on its way out"
    if "call" in done:
        return "in teardown"
    return "the test" if "setup" in done else "in setup"


def _own_frames(stacks: str) -> list[str]:
    """The lines of faulthandler's dump, without pytest's own below the test."""
    kept: list[str] = []
    inside = True
    for line in stacks.splitlines():
        if not line.startswith("  File "):
            inside = True
            if line.strip(" .") and not line.startswith("Current thread"):
                kept.append(line)
        elif "/_pytest/" in line or "/pluggy/" in line:
            inside = False
        elif inside:
            kept.append(line)
    return kept


def _sections(run: Run) -> list[tuple[str, str]]:
    sections = []
    for story in run.stories:
        for report in story.reports[-1:]:
            sections += [(f"{name}, rank {story.rank}", text) for name, text in report.sections]
        if story.output:
            sections.append((f"Captured stdout and stderr, rank {story.rank}", story.output))
    return sections


def _without_debugger(exception: BaseException) -> BaseException:
    """The same for pytest's marks, but of a kind for which ``--pdb`` opens no debugger."""
    kind = type(exception)
    try:
        quiet: Any = type(kind.__name__, (kind, bdb.BdbQuit), {"__module__": kind.__module__})
        copy: BaseException = quiet.__new__(quiet, *exception.args)
        copy.args = exception.args
    except TypeError:  # classes that cannot be combined
        return bdb.BdbQuit(*exception.args)
    return copy
